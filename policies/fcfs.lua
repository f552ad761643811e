return {
  api = 1,
  doc = "First come, first served: decodes first, then prefill chunks in the order of arrival.",
  params = {
    budget = { default = 2048, min = 1, type = "integer", doc = "tokens per step" },
  },
  step = function(view, act, p)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, p.budget)
      if b.tokens > 0 then
        act.forward(g, b, { tp = g.size })
      end
    end
  end,
}
