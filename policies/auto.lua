-- The layout of each step is the one that will take least time, by what steps of each layout have taken so far. A
-- layout that has hardly been seen is tried now and then, and every other one again after a while, since machines
-- change; which and when follows from counts alone, so the same run decides the same.

--
-- Where FFN weights are pooled (--weights pooled), it also decides which layers lie on every rank for a while: KV that
-- stays idle is lent to layers, which are fetched no more, and KV that runs short gets it back.

local node, kept     -- what never changes; by size of a group, the layout that was the best last
local all            -- by size of a group, its layouts
local calm, changed  -- since when KV has been idle; when layers were last pooled or copied
local debts          -- by group and layout: the ms that the layout would have saved it since the last change
local barred         -- by layout, true: the last change to it was refused; until another one is not

-- Every layout of a group of this size, stage by stage: lists with `pp`, and one list of all.
local function layouts_of(size)
  if all[size] then return all[size] end
  local found = { all = {} }
  for _, pp in ipairs(node.stages[size] or {}) do
    found[pp] = {}
    for _, l in ipairs(node.layouts[size / pp] or {}) do
      local layout = { sp = l.sp, tp = l.tp, pp = pp }
      table.insert(found[pp], layout)
      table.insert(found.all, layout)
    end
  end
  all[size] = found
  return found
end

-- Many micro-batches keep all stages busy.
local function options_of(layout)
  return layout.pp > 1 and { micro = 4 * layout.pp } or nil
end

-- What the group can run now: ranks that hold a share of the weights only run one layout.
local function runnable(group)
  local list, w = layouts_of(group.size)[group.base.pp] or {}, group.weights
  if not w then return list end
  for _, l in ipairs(list) do
    if l.tp == w.tp and l.sp == w.sp then return { l } end
  end
  return {}
end

-- The layout with the least estimate, unless it is no better than the last by the margin, and that; and the least seen.
local function compare(view, group, batch, p)
  local best, best_ms, rare, rare_n
  for _, layout in ipairs(runnable(group)) do
    local ms, n = view.estimate(group, layout, batch, options_of(layout))
    if layout == kept[group.size] then ms = ms * (1 - p.margin) end
    if not best or ms < best_ms then best, best_ms = layout, ms end
    if not rare or n < rare_n then rare, rare_n = layout, n end
  end
  kept[group.size] = best
  return best, best_ms, rare, rare_n
end

-- To another number of stages, or to other shares of the weights. The KV of these ranks goes to host memory where it
-- has room there; else it moves.
local function change(view, act, group, to, why)
  local running, held = view.running, 0
  for row = 1, running.n do
    if running.group[row] == group.id then held = held + running.blocks[row] * group.size end
  end
  local done = act.bind(group.ranks, {
    base = { sp = group.size / to.pp, pp = to.pp }, kv = view.host_free > held and "host" or "migrate",
    weights = group.weights and { sp = to.sp, tp = to.tp, pp = to.pp } or nil,
    when = group.weights and "ready" or "hard", reason = "auto: " .. why,
  })
  if done then debts[group.id], barred = nil, {} else barred[to] = true end -- its shares find no room, say
  return done
end

-- Would the group have to change for it?
local function is_other(group, layout)
  local now = group.weights
  if barred[layout] then return false end
  return layout.pp ~= group.base.pp or now and (layout.tp ~= now.tp or layout.sp ~= now.sp)
end

-- What has never run cannot be judged: its turn is when nobody has KV that would have to move, and what the group has
-- now has been seen. True: it is about to change.
local function try_another(view, act, group, p)
  if group.steps == 0 or view.n_running > 0 or view.copies > 0 or #view.pending > 0 then return end
  for _, layout in ipairs(layouts_of(group.size).all) do
    local _, seen = view.estimate(group, layout, p.budget, options_of(layout))
    if seen < p.least and is_other(group, layout) and change(view, act, group, layout, "to see what it takes") then
      return true
    end
  end
end

-- What a step would have taken less in a layout that the group would have to change for adds up; where it would have
-- taken more, that counts against it. Its turn comes when it is more than the way there and back: so changes cost at
-- most about as much as it would have brought to know the future.
local function weigh(view, act, group, batch, ms, p)
  local running, tokens = view.running, 0
  for row = 1, running.n do
    if running.group[row] == group.id then tokens = tokens + running.computed[row] end
  end
  local list, move_ms, owed = layouts_of(group.size).all, view.estimate_move(tokens, "host"), debts[group.id] or {}
  debts[group.id] = owed
  for _, layout in ipairs(#view.pending == 0 and list or {}) do
    if is_other(group, layout) then
      local shares = group.weights and view.estimate_reshard(group, layout)
      local cost = 2 * (move_ms + (shares and shares.stop_ms or 0)) + 10 * ms -- pipes and caches begin anew
      local saves = ms * (1 - p.margin) - view.estimate(group, layout, batch, options_of(layout))
      owed[layout] = math.max(0, (owed[layout] or 0) + saves)
      if owed[layout] > cost then
        local why = "%d stages would have saved %.0f ms, the change takes %.0f"
        return change(view, act, group, layout, string.format(why, layout.pp, owed[layout], cost))
      end
    end
  end
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
  local best, ms, rare, seen = compare(view, group, batch, p)
  if best and seen < p.least and group.steps % p.try_every == p.try_every - 1 then return rare, ms end
  local again, list = math.floor(group.steps / p.again_every), runnable(group)
  if best and group.steps % p.again_every == p.again_every - 1 then return list[again % #list + 1], ms end
  return best, ms
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
    phases = {
      default = true,
      doc = "with host memory for KV: groups change their pipeline stages, and their shares of the weights",
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

  needs = { "running.computed", "running.blocks", "running.group" },

  start = function(facts, act, p, view)
    node, kept, all, debts, barred, calm, changed = facts, {}, {}, {}, {}, view.now, view.now
    if p.bind then act.bind(node.ranks, { reason = "auto: one group" }) end
  end,

  admit = function(request, view, act, p)
    return p.preempt and request.arrival + request.priority * p.ageing + (request.offline and 1e9 or 0) or nil
  end,

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    lay_weights(view, act, p)
    local settled, phases = not p.preempt, p.phases and node.host_kv_blocks > 0
    for _, group in ipairs(view.idle) do
      if phases and try_another(view, act, group, p) then act.wake(1) end
      for _, id in ipairs(settled and {} or view.victims(group)) do settled = act.preempt(id, "recompute") end
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        local layout, ms = pick(view, group, batch, p)
        if phases and ms then weigh(view, act, group, batch, ms, p) end
        act.forward(group, batch, layout, layout and options_of(layout))
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
