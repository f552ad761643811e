-- First come, first served. Every step first gives each running request its next token, then fills what is left of the
-- budget with prompt chunks in the queue's order, which is the order of arrival since there is no `admit`. It takes the
-- groups as they are; only when none can hold the first in the queue does it ask for one that can.

return {
  api = 1,
  doc = "First come, first served: decodes first, then prompt chunks in the order of arrival.",

  params = {
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        act.forward(group, batch)
      end
    end
  end,

  tests = {
    ["the first to come is the first to run"] = function(t)
      local plan = t.step {
        max_num_seqs = 1, waiting = { { name = "late", arrival = 2 }, { name = "early", arrival = 1 } },
      }
      assert(#plan == 1 and plan[1].name == "early")
    end,

    ["decodes go before prompts"] = function(t)
      local plan = t.step {
        max_num_batched_tokens = 10, running = { { name = "old" } }, waiting = { { name = "new", prompt = 50 } },
      }
      assert(plan[1].name == "old" and plan[1].tokens == 1)
      assert(plan[2].name == "new" and plan[2].tokens == 9)
    end,

    ["every group takes its share"] = function(t)
      local plan = t.step { ranks = 2, groups = { { 0 }, { 1 } }, waiting = { { prompt = 300 }, { prompt = 300 } } }
      assert(#plan.forwards == 2 and plan.forwards[1].tokens == 300 and plan.forwards[2].tokens == 300)
    end,

    ["who fits no group gets the narrowest that holds it"] = function(t)
      local plan = t.step {
        ranks = 4, groups = { { 0 }, { 1 }, { 2 }, { 3 } }, kv_blocks = 10, waiting = { { prompt = 300 } },
      }
      assert(#plan.orders == 1 and #plan.orders[1].bind == 2 and #plan == 0)
    end,
  },
}
