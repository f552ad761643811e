-- Lower priority is sooner, as in vLLM. A request's place in the queue is its arrival, moved by `ageing` seconds for
-- each level of priority: waiting makes up for priority, so nothing starves. When a request finds no room, running
-- requests of lower rank give way to it, the last in order first, but only when that makes room for it.

return {
  api = 1,
  doc = "Lower priority is sooner; waiting makes up for priority; running requests of lower rank give way.",
  lib = { "victims" },

  params = {
    ageing = { default = 30, min = 0.001, max = 1e6, unit = "s", doc = "waiting makes up for a level of priority" },
    preempt = { default = true, doc = "running requests of lower rank give way when a request finds no room" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  admit = function(request, view, act, p)
    return request.arrival + request.priority * p.ageing + (request.offline and 1e9 or 0)
  end,

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    local settled = not p.preempt
    for _, group in ipairs(view.idle) do
      settled = settled or lib.victims.give_way(view, act, group) -- one group makes room, not all of them
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        act.forward(group, batch)
      end
    end
  end,

  tests = {
    ["the lower number goes first"] = function(t)
      local plan = t.step { max_num_seqs = 1, waiting = {
        { name = "later", priority = 1, arrival = 50 }, { name = "sooner", priority = 0, arrival = 60 } } }
      assert(#plan == 1 and plan[1].name == "sooner")
    end,

    ["waiting makes up for priority"] = function(t)
      local plan = t.step { max_num_seqs = 1, waiting = {
        { name = "aged", priority = 1, arrival = 10 }, { name = "fresh", priority = 0, arrival = 60 } } }
      assert(#plan == 1 and plan[1].name == "aged")
    end,

    ["a running request of lower rank gives way"] = function(t)
      local plan = t.step {
        max_num_seqs = 1, running = { { name = "low", priority = 9 } }, waiting = { { name = "high", priority = -9 } },
      }
      assert(plan.preempted[1] == "low" and plan[1].name == "high")
    end,

    ["one of the same rank does not"] = function(t)
      local plan = t.step { max_num_seqs = 1, running = { { name = "first" } }, waiting = { { name = "second" } } }
      assert(#plan.preempted == 0 and plan[1].name == "first")
    end,
  },
}
