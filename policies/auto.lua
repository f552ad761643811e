-- The layout of each step is the one that will take least time, by what steps of each layout have taken so far. A
-- layout that has hardly been seen is tried now and then, and every other one again after a while, since machines
-- change; which and when follows from counts alone, so the same run decides the same.

--
-- Where FFN weights are pooled (--weights pooled), it also decides which layers lie on every rank for a while: KV that
-- stays idle is lent to layers, which are fetched no more, and KV that runs short gets it back.

local node, kept     -- what never changes; by size of a group, the layout that was the best last
local calm, changed  -- since when KV has been idle; when layers were last pooled or copied

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

-- Layers are copied in the order of the model, and pooled again from the last one on.
local function lay_weights(view, act, p)
  local ffn, n, free = node.ffn, view.replicas, view.kv_free
  if not ffn or ffn.replica_blocks == 0 then return end
  local spare = math.floor((free - p.idle * view.kv_total) / ffn.replica_blocks / 2)
  local short = free < p.short * view.kv_total
  if short or spare < 1 or view.was_wait_ms == 0 then calm = view.now end
  if short and n > 0 and view.now - changed >= p.calm / 10 then
    act.weights("all", "pooled", { layers = { math.floor(n / 2), n - 1 } })
    changed = view.now
  elseif n < ffn.layers and view.now - math.max(calm, changed) >= p.calm then
    act.weights("all", "replicated", { layers = { n, math.min(n + spare, ffn.layers) - 1 } })
    changed = view.now -- also where it is refused: it is not asked for at every step
  end
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
    short = { default = 0.1, min = 0, max = 1, doc = "pooled weights: KV is short with a smaller share of it free" },
    idle = { default = 0.5, min = 0, max = 1, doc = "pooled weights: what of it stays free when layers are copied" },
    calm = { default = 1, min = 0.01, max = 3600, doc = "pooled weights: seconds that it has to be idle before that" },
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

  start = function(facts, act, p, view)
    node, kept, calm, changed = facts, {}, view.now, view.now
    if p.bind then act.bind(node.ranks, { reason = "auto: one group" }) end
  end,

  admit = function(request, view, act, p)
    return p.preempt and request.arrival + request.priority * p.ageing + (request.offline and 1e9 or 0) or nil
  end,

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    lay_weights(view, act, p)
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

    ["layers are copied while KV is idle, and pooled when it runs short"] = function(t)
      local now = { ranks = 2, now = 100, pooled = 8, kv_blocks = 100, was_wait_ms = 3, fetch_ms = 9, running = { {} } }
      assert(#t.step(now).weights == 0)
      now.now = 101.5
      local copied = t.step(now).weights[1]
      assert(copied.residency == "replicated" and copied.from == 0 and copied.to == 2)
      local long = { prompt = 620, output = 1 }
      now.now, now.replicas, now.running = 102, 3, { long, long, long, long }
      local pooled = t.step(now).weights[1]
      assert(pooled.residency == "pooled" and pooled.from == 1 and pooled.to == 2)
    end,

    ["where no step waits for fetches, no layer is copied"] = function(t)
      local now = { ranks = 2, now = 100, pooled = 8, fetch_ms = 9, running = { {} } }
      t.step(now)
      now.now = 200
      assert(#t.step(now).weights == 0)
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
