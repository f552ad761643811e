return { api = 1, admit = function(r) return r.arrival + r.priority * 30 end,
  step = function(view, act)
    act.widen()
    for _, g in ipairs(view.idle) do
      for _, id in ipairs(view.victims(g)) do act.preempt(id, "recompute") end
      local b = act.batch(g)
      b:decodes() b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }
