-- SiDP: one pool of FFN weights for a node of data-parallel groups. A step that is long enough hides its fetches of
-- weights (WaS); a shorter one would wait for them, and sends its rows to their owners instead (CaS). Where the line
-- runs is measured: a step hides its fetches when one that sends rows would take as long as they do. A group changes
-- once the other way would have saved some time in all, and at once in the tail of a job. A group of several ranks
-- fetches in its usual layout, and sends rows as sequence parallel ranks. Without pooled weights it decides like fcfs.

local node           -- what never changes
local lost           -- by a group's first rank: ms that the other way would have saved since it was the better one
local tried          -- by width of the group and size of the batch, in powers of two: steps that have sent rows
local last_arrival   -- of any request

local WAS, CAS = { ffn = "was" }, { ffn = "cas" }

local function size_of(group, batch) return group.size * 64 + math.floor(math.log(batch.n) / math.log(2) + 1e-9) end

-- The layout in which the group can send rows; nil: the model has none of its width. With tensor parallelism all layers
-- are fetched.
local function sending_layout(group)
  for _, layout in ipairs(node.layouts[group.size]) do
    if layout.tp == 1 then return layout end
  end
end

-- What the step takes either way, and whether that is known well enough to be believed. No fetch is over before
-- view.fetch_ms have gone by, whatever the fit of both prompts and decodes says of a small step. Where decodes wait for
-- fetches, sending rows is tried with batches of each size, unless it is known to be hopeless.
local function compare(view, group, batch, p)
  local was = view.estimate(group, nil, batch, WAS)
  if group.size == 1 then was = math.max(was, view.fetch_ms) end -- others may fetch a share of each layer only
  local cas, seen = view.estimate(group, sending_layout(group), batch, CAS)
  local known = (tried[size_of(group, batch)] or 0) >= p.least or (seen >= p.least and cas > 2 * was)
  return was, cas, known or batch.n_decodes < batch.n
end

-- No request has come for a while, none waits, and the batch is getting smaller: it will not grow again.
local function in_tail(view, group, batch, p)
  return view.n_waiting == 0 and (view.now - last_arrival) * 1000 >= p.quiet_ms and batch.tokens < group.mean_tokens
end

-- Should the group change its way with this step?
local function shall_change(view, group, batch, p)
  local was, cas, known = compare(view, group, batch, p)
  local sends, first = group.ffn ~= "was", group.ranks[1]
  if not known then return sends ~= (view.was_wait_ms > p.margin * was) end
  local now, other = was, cas
  if sends then now, other = cas, was end
  if now - other <= p.margin * now then
    lost[first] = 0
    return false
  end
  lost[first] = (lost[first] or 0) + now - other
  return lost[first] > p.patience_ms or (not sends and in_tail(view, group, batch, p))
end

-- Returns whether the step sends rows.
local function choose_way(view, act, group, batch, p)
  if group.ffn == "local" or not sending_layout(group) then return false end
  local sends, last = group.ffn ~= "was", node.ffn.layers - 1
  if not shall_change(view, group, batch, p) then return sends end
  lost[group.ranks[1]] = 0
  local first = math.min(p.first, last)
  last = p.last < 0 and last or math.min(p.last, last)
  if sends then act.ffn(group, "was") else act.ffn(group, "cas", { layers = { first, last } }) end
  return not sends
end

return {
  api = 1,
  doc = "Pooled FFN weights: large steps fetch them, small ones send their rows to the owners.",

  params = {
    margin = {
      default = 0.05, min = 0, max = 1, unit = "share",
      doc = "share of a step by which the other way has to be better",
    },
    patience_ms = {
      default = 20, min = 0, max = 60000, unit = "ms",
      doc = "a group changes once the other way would have saved so much time in all",
    },
    quiet_ms = {
      default = 500, min = 0, max = 3600000, unit = "ms",
      doc = "without an arrival for so long, a batch that gets smaller is a tail",
    },
    least = {
      default = 8, min = 0, type = "integer", unit = "steps",
      doc = "steps that send rows that have to be seen before their estimate is trusted",
    },
    first = { default = 0, min = 0, type = "integer", unit = "layer", doc = "the first layer whose rows may be sent" },
    last = { default = -1, min = -1, type = "integer", unit = "layer", doc = "the last one; -1: of the model" },
    bind = { default = true, doc = "begin with the narrowest groups; else the partition stays as it is" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  fits = function(facts, p)
    if p.last >= 0 and p.last < p.first then
      return false, string.format("last=%d is before first=%d", p.last, p.first)
    end
    return true
  end,

  start = function(facts, act, p, view)
    node, lost, tried, last_arrival = facts, {}, {}, view.now
    for width = 1, p.bind and node.ffn and node.n_ranks or 0 do
      if node.layouts[width] and #node.layouts[width] > 0 then
        for _, ranks in ipairs(view.cover(width, width)) do act.bind(ranks, { reason = "sidp: data parallel" }) end
        break
      end
    end
  end,

  admit = function(request, view) last_arrival = view.now end,

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        local size, sends = size_of(group, batch), choose_way(view, act, group, batch, p)
        if sends and batch.n_decodes == batch.n then tried[size] = (tried[size] or 0) + 1 end
        act.forward(group, batch, sends and sending_layout(group) or nil)
      end
    end
  end,

  tests = {
    ["a small batch sends its rows once that would have saved enough"] = function(t)
      local small = {
        ranks = 2, groups = { { 0 }, { 1 } }, pooled = 8, fetch_ms = 20, was_wait_ms = 12,
        running = { { group = 1 }, { group = 1 } },
        measured = { { tokens = 2, ms = 20, n = 9 }, { tokens = 2, ms = 8, n = 9, ffn = "cas" } },
      }
      for _ = 1, 8 do assert(t.step(small).ffn[1].mode == "cas") end -- tried
      assert(#t.step(small).ffn == 0) -- 12 ms
      local way = t.step(small).ffn[1]
      assert(way.mode == "cas" and way.ranks[1] == 0 and way.from == 0 and way.to == 7)
    end,

    ["a large batch hides its fetches, and fetches"] = function(t)
      local large = {
        ranks = 2, groups = { { 0 }, { 1 } }, pooled = 8, fetch_ms = 20, waiting = { { prompt = 400 } },
        measured = { { tokens = 400, ms = 30, n = 9 }, { tokens = 400, ms = 60, n = 9, ffn = "cas" } },
      }
      for _ = 1, 5 do assert(#t.step(large).ffn == 0) end
      large.ffn = "cas"
      assert(t.step(large).ffn[1].mode == "was")
    end,

    ["sending rows is tried where decodes wait for fetches"] = function(t)
      local new = {
        ranks = 2, groups = { { 0 }, { 1 } }, pooled = 8, fetch_ms = 20, was_wait_ms = 5, running = { {} },
        measured = { { tokens = 1, ms = 20, n = 9 } },
      }
      assert(t.step(new).ffn[1].mode == "cas")
      new.was_wait_ms = 0
      assert(#t.step(new).ffn == 0)
    end,

    ["pooled, it begins with a group of each rank; else it takes the groups as they are"] = function(t)
      assert(#t.start { ranks = 4, pooled = 8 }.orders == 4)
      assert(#t.start { ranks = 4 }.orders == 0)
      local plan = t.step { ranks = 4, groups = { { 0 }, { 1 }, { 2 }, { 3 } }, running = { {} } }
      assert(#plan.forwards == 1 and #plan.ffn == 0)
    end,
  },
}
