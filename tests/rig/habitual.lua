-- A policy of habits, for tests: deeds that it repeats without end. Before it stand two locals, which a test draws by
-- seed: habits, a list of { deed, every, at, whom, fixed, n, m, kv, when, ms, way, base }, and serve, which of the ways
-- to fill a batch it has. What it does is not meant to be good.
local node, draw, turn, layouts, guesses = nil, nil, 0, false, false

local function any(list) return #list > 0 and list[draw(#list)] or nil end

local function pick(q, how)
  if q.n == 0 then return nil end
  if how == "any" then return draw(q.n) end
  local best
  for i = 1, q.n do
    if how == "red" and q.tenant[i] == "red" then return i end
    if how == "old" and (not best or q.id[i] < q.id[best]) then best = i end
    if how == "new" and (not best or q.id[i] > q.id[best]) then best = i end
  end
  return best
end

local function each(q, how, f)
  if how ~= "all" then
    local i = pick(q, how)
    if i then f(i) end
    return
  end
  for i = 1, q.n do f(i) end
end

-- One of the layouts of n ranks, of so many stages or any.
local function layout(n, pp)
  pp = pp or any(node.stages[n] or {}) or 1
  local width = n % pp == 0 and n / pp or 1
  local tp = draw(width)
  while width % tp ~= 0 do tp = draw(width) end
  return { sp = width / tp, tp = tp, pp = pp }
end

local function order(h, n)
  local pp = any(node.stages[n or 0] or {})
  local base = h.base and pp and n % pp == 0 and { tp = n / pp, pp = pp } or nil
  return { when = h.when, kv = h.kv, max_wait_ms = h.ms, reason = "habit", base = base }
end

local function group(view, h) return h.fixed and view.groups[1] or any(view.groups) end

local deeds = {
  remap = function(view, act, h)
    each(view.running, h.whom, function(i)
      local to = group(view, h)
      if to then act.remap(view.running.id[i], to, h.kv) end
    end)
  end,
  cover = function(view, act, h)
    local many = h.fixed and h.n or draw(#node.ranks)
    for _, ranks in ipairs(view.cover(many, h.m)) do act.bind(ranks, order(h, #ranks)) end
  end,
  bind = function(view, act, h)
    local set = any(node.sets)
    act.bind(set, order(h, #set))
  end,
  release = function(view, act, h)
    local g = group(view, h)
    if g then act.release(g, order(h)) end
  end,
  preempt = function(view, act, h)
    each(view.running, h.whom, function(i) act.preempt(view.running.id[i], h.way) end)
  end,
  close = function(view, act, h)
    local g = group(view, h)
    if g then act.preempt(g, h.when) end
  end,
  open = function(view, act) for _, g in ipairs(view.groups) do act.open(g) end end,
  out = function(view, act, h) each(view.running, h.whom, function(i) act.swap_out(view.running.id[i]) end) end,
  into = function(view, act, h)
    local w = view.waiting
    each(w, h.whom, function(i)
      local g = any(view.idle)
      if w.in_host[i] and g then act.swap_in(w.id[i], g) end
    end)
  end,
  hold = function(view, act, h)
    each(view.waiting, h.whom, function(i)
      if view.now < 6 then act.hold(view.waiting.id[i], "habit", view.now + 0.3) end
    end)
  end,
  sleep = function(_, act, h)
    act.wake(h.ms)
    return true
  end,
  wake = function(_, act, h) act.wake(h.ms) end,
  pool = function(_, act, h)
    act.weights("all", h.fixed and "replicated" or "pooled")
    act.ffn("all", h.n > 2 and "cas" or "was")
  end,
  unpark = function(view, act, h)
    local w = view.waiting
    each(w, h.whom, function(i)
      local g = any(view.groups)
      if w.parked[i] and g then act.remap(w.id[i], g, h.kv) end
    end)
  end,
  shard = function(view, act, h)
    local g = group(view, h)
    local o = g and order(h)
    if o then
      o.when = h.base and "ready" or o.when
      act.reshard(g, layout(#g.ranks), o)
    end
  end,
  layout = function(_, _, h) layouts = not h.fixed end,
  draft = function(_, _, h) guesses = h end,
  probe = function(view, act, h) each(view.running, h.whom, function(i) act.probe(view.running.id[i]) end) end,
}

local serves = {
  function(_, b)
    b:decodes()
    b:prefill()
  end,
  function(view, b)
    b:prefill(view.waiting, 16, "any")
    b:decodes()
  end,
  function(_, b)
    if turn % 2 == 0 then b:decodes() else b:prefill() end
  end,
  function(view, b)
    local r, w = view.running, view.waiting
    for i = 1, r.n do
      if r.tenant[i] ~= "red" then b:add(r.id[i]) end
    end
    for i = 1, w.n do
      if w.tenant[i] ~= "red" then b:add(w.id[i]) end
    end
  end,
  function(view, b)
    local r, w = view.running, view.waiting
    for i = r.n, 1, -1 do b:add(r.id[i], 1) end
    for i = w.n, 1, -1 do b:add(w.id[i], 5) end
  end,
  function(view, b)
    local r, w = view.running, view.waiting
    each(r, "new", function(i) b:add(r.id[i]) end)
    each(w, "new", function(i) b:add(w.id[i]) end)
  end,
  function(_, b) b:decodes() end,
  function(_, b) b:prefill() end,
  function(view, b)
    local w = view.waiting
    for i = w.n, 1, -1 do b:add(w.id[i], 1) end
  end,
}

local function guess(view, act, g)
  local r = view.running
  for i = 1, r.n do
    if r.group[i] == g.id and r.output[i] > 0 then
      act.draft(r.id[i], draw(12), guesses.fixed and "suffix" or "lookup", guesses.base and "tree" or "chain")
    end
  end
end

return {
  api = 1,
  doc = "habitual",
  needs = { "tenant", "waiting.parked", "waiting.in_host", "waiting.held", "running.group", "running.output" },
  start = function(facts) node, draw = facts, rng(1) end,
  step = function(view, act)
    turn = turn + 1
    for _, h in ipairs(habits) do
      if turn % h.every == h.at % h.every and deeds[h.deed](view, act, h) then return end
    end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      if b then
        serves[serve](view, b)
        if guesses then guess(view, act, g) end
        if b.tokens > 0 and not (layouts and act.forward(g, b, layout(#g.ranks, g.base.pp))) then act.forward(g, b) end
      end
    end
  end,
}
