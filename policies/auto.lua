-- The layout of each step is the one that will take least time, by what steps of each layout have taken so far. A
-- layout that has hardly been seen is tried now and then, and every other one again after a while, since machines
-- change; which and when follows from counts alone, so the same run decides the same.

local node, kept -- what never changes; by size of a group, the layout that was the best last

-- The layout with the least estimate, unless it is no better than the last by the margin; and the least seen of all.
local function compare(view, group, batch, p)
  local best, best_ms, rare, rare_n
  for _, layout in ipairs(node.layouts[group.size] or {}) do
    local ms, n = view.estimate(group, layout, batch)
    if layout == kept[group.size] then ms = ms * (1 - p.margin) end
    if not best or ms < best_ms then best, best_ms = layout, ms end
    if not rare or n < rare_n then rare, rare_n = layout, n end
  end
  kept[group.size] = best
  return best, rare, rare_n
end

local function pick(view, group, batch, p)
  local best, rare, seen = compare(view, group, batch, p)
  if best and seen < p.least and group.steps % p.try_every == p.try_every - 1 then return rare end
  local again = math.floor(group.steps / p.again_every)
  if best and group.steps % p.again_every == p.again_every - 1 then
    return node.layouts[group.size][again % #node.layouts[group.size] + 1]
  end
  return best
end

return {
  api = 1,
  doc = "The layout of each step is the one that is estimated to take the least time.",

  params = {
    least = {
      default = 20, min = 0, type = "integer",
      doc = "steps of a layout that have to be seen before its estimate is trusted",
    },
    try_every = {
      default = 8, min = 1, type = "integer",
      doc = "until then, one step in so many tries the layout that was seen least",
    },
    again_every = {
      default = 500, min = 2, type = "integer",
      doc = "one step in so many tries a layout again, each in turn",
    },
    margin = {
      default = 0.02, min = 0, max = 0.5,
      doc = "share by which another layout has to be better than the last",
    },
    bind = { default = true, doc = "begin with one group of all ranks; else the partition stays as it is" },
    budget = { default = 8192, min = 1, type = "integer", doc = "tokens per step" },
    preempt = {
      default = false,
      doc = "lower priority numbers go first, and running requests of lower rank give way to them",
    },
    ageing = {
      default = 30, min = 0.001, max = 1e6,
      doc = "with preempt: seconds of waiting that make up for one level of priority",
    },
  },

  start = function(facts, act, p)
    node, kept = facts, {}
    if p.bind then act.bind(node.ranks, { reason = "auto: one group" }) end
  end,

  admit = function(request, view, act, p)
    return p.preempt and request.arrival + request.priority * p.ageing or nil
  end,

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    local settled = not p.preempt
    for _, group in ipairs(view.idle) do
      for _, id in ipairs(settled and {} or view.victims(group)) do settled = act.preempt(id, "recompute") end
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        act.forward(group, batch, pick(view, group, batch, p))
      end
    end
  end,

  tests = {
    ["the layout that took least runs"] = function(t)
      local seen = { { sp = 4, tp = 1, tokens = 100, ms = 9, n = 20 }, { sp = 2, tp = 2, tokens = 100, ms = 4, n = 20 },
        { sp = 1, tp = 4, tokens = 100, ms = 7, n = 20 } }
      local forward = t.step { ranks = 4, measured = seen, waiting = { { prompt = 100 } } }.forwards[1]
      assert(forward.sp == 2 and forward.tp == 2)
    end,

    ["a layout that was hardly seen has its turn"] = function(t)
      local seen = {
        { sp = 4, tp = 1, tokens = 100, ms = 1, n = 20 }, { sp = 1, tp = 4, tokens = 100, ms = 2, n = 20 },
      }
      local forward = t.step { ranks = 4, steps = 7, measured = seen, waiting = { { prompt = 100 } } }.forwards[1]
      assert(forward.sp == 2 and forward.tp == 2)
    end,
  },
}
