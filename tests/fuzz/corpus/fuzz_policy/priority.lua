-- Lower priority is sooner, as in vLLM. A request's place in the queue is its arrival, moved by `ageing` seconds for each
-- level of priority: waiting makes up for priority, so nothing starves. When a request finds no room, running requests of
-- lower rank give way to it, the last in order first, but only when that makes room for it.

local function lacks(view, need, freed, stopped)
  return view.kv_free + freed < need or view.n_running - stopped >= view.max_num_seqs
end

-- Who would have to stop for the first in the queue: how many of running.last, or 0 when nobody has to or too few can.
local function victims(view)
  local waiting, running = view.waiting, view.running
  local head = waiting.first[1]
  if not head then return 0 end
  local need = math.ceil(waiting.remaining[head] / view.tokens_per_block) + math.ceil(view.kv_total / 100)
  local freed, stopped = 0, 0
  for _, row in ipairs(running.last) do
    if not lacks(view, need, freed, stopped) then break end
    if running.priority[row] <= waiting.priority[head] or running.key[row] <= waiting.key[head] then return 0 end
    freed, stopped = freed + running.blocks[row], stopped + 1
  end
  return lacks(view, need, freed, stopped) and 0 or stopped
end

return {
  api = 1,
  doc = "Lower priority is sooner; waiting makes up for priority; running requests of lower rank give way.",

  params = {
    ageing = { default = 30, min = 0.001, max = 1e6, doc = "seconds of waiting that make up for one level of priority" },
    preempt = { default = true, doc = "running requests of lower rank give way when a request finds no room" },
    budget = { default = 2048, min = 1, type = "integer", doc = "tokens per step" },
  },

  needs = { "priority", "key", "waiting.first", "waiting.remaining", "running.last", "running.blocks" },

  admit = function(request, view, act, p)
    return request.arrival + request.priority * p.ageing
  end,

  step = function(view, act, p)
    for _, group in ipairs(view.idle) do
      for i = 1, p.preempt and victims(view) or 0 do
        act.preempt(view.running.id[view.running.last[i]], "recompute")
      end
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        act.forward(group, batch, { tp = group.size })
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
      local plan = t.step { max_num_seqs = 1, running = { { name = "low", priority = 9 } }, waiting = { { name = "high", priority = -9 } } }
      assert(plan.preempted[1] == "low" and plan[1].name == "high")
    end,

    ["one of the same rank does not"] = function(t)
      local plan = t.step { max_num_seqs = 1, running = { { name = "first" } }, waiting = { { name = "second" } } }
      assert(#plan.preempted == 0 and plan[1].name == "first")
    end,
  },
}
