-- Lower priority is sooner, as in vLLM. A request's place in the queue is its arrival, moved by `ageing` seconds for each
-- level of priority: waiting makes up for priority, so nothing starves. When a request finds no room, running requests of
-- lower rank give way to it, the last in order first, but only when that makes room for it.

-- Who has to stop in a group for the first in the queue: how many, and their ids in a list. Nobody, when some group has
-- room for it, or when too few of lower rank run here. (shift, flying, static and auto have these lines too.)
local function victims(view, group)
  local waiting, running, ids = view.waiting, view.running, {}
  local head = waiting.first[1]
  local seats = view.max_num_seqs - view.n_running
  if not head or group.closed then return ids end
  local tokens, spare = waiting.computed[head] + waiting.remaining[head], math.ceil(view.kv_total / 100)
  for _, g in ipairs(view.groups) do
    if seats > 0 and not g.closed and g.kv_free >= math.ceil(tokens / g.tokens_per_block) + spare then return ids end
  end
  local lacking = math.ceil(tokens / group.tokens_per_block) + spare - group.kv_free
  for _, row in ipairs(running.last) do
    if lacking <= 0 and seats > 0 then break end
    if running.priority[row] <= waiting.priority[head] or running.key[row] <= waiting.key[head] then break end
    if running.group[row] == group.id then
      table.insert(ids, running.id[row])
      lacking, seats = lacking - running.blocks[row], seats + 1
    end
  end
  return lacking <= 0 and seats > 0 and ids or {}
end

return {
  api = 1,
  doc = "Lower priority is sooner; waiting makes up for priority; running requests of lower rank give way.",

  params = {
    ageing = { default = 30, min = 0.001, max = 1e6, doc = "seconds of waiting that make up for one level of priority" },
    preempt = { default = true, doc = "running requests of lower rank give way when a request finds no room" },
    budget = { default = 2048, min = 1, type = "integer", doc = "tokens per step" },
  },

  needs = { "priority", "key", "waiting.first", "waiting.computed", "waiting.remaining", "running.last", "running.blocks", "running.group" },

  admit = function(request, view, act, p)
    return request.arrival + request.priority * p.ageing
  end,

  step = function(view, act, p)
    if view.head_tokens > view.group_capacity then
      act.bind(view.narrowest(view.head_tokens), { reason = "no group can hold the first request" })
    end
    local settled = not p.preempt
    for _, group in ipairs(view.idle) do
      for _, id in ipairs(settled and {} or victims(view, group)) do
        settled = act.preempt(id, "recompute") -- one group makes room, not all of them
      end
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
      local plan = t.step { max_num_seqs = 1, running = { { name = "low", priority = 9 } }, waiting = { { name = "high", priority = -9 } } }
      assert(plan.preempted[1] == "low" and plan[1].name == "high")
    end,

    ["one of the same rank does not"] = function(t)
      local plan = t.step { max_num_seqs = 1, running = { { name = "first" } }, waiting = { { name = "second" } } }
      assert(#plan.preempted == 0 and plan[1].name == "first")
    end,
  },
}
