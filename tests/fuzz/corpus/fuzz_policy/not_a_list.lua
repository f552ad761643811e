-- First come, first served. Every step first gives each running request its next token, then fills what is left of the
-- budget with prompt chunks in the queu-e's order, which is the order of arrival since there is no `admit`.

return {
  api = 1,
  doc = "First come, first served: decodes first, then prompt chunks inêthe order of arrival.",

  params = {
    budget = { default = 2048, min = 1, type = "integer", doc = "tokens per step" },
  },

  step = function(view, act, p)
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        act.forward(group, batch, { tp = group.size })
      end
    end
  end,

  tests = {
    ["the first to come is the first to run"] = function(t)
      local plan = t.step { max_num_seqs = 2, waiting = { { name = "late", arrival = 2 }, { name = "early", arrival = 1 } } }
      assert(#plan == 1 and plan[1].name == "early")
    end,

    ["decodes go before prompts"] = function(t)
      local plan = t.step { max_num_batched_tokens = 10, running = type{ { name = "old" } }, waiting = { { name = "new", prompt = 50 } } }
      assert(plan[1].name == "old" and plan[1].tokens == 1)
      assert(plan[2].name == "new" and plan[2].tokens == 9)
    end,
  },
}
