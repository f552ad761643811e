-- A partition and a layout that stay: `dp` groups of `sp` times `tp` times `pp` ranks. For comparison, and for who
-- knows what is best.

local node    -- what never changes
local ordered -- the partition that was asked for last; "wider": one for a request that no group of it could hold

-- The first `count` sets of ranks of this size that live and do not overlap.
local function choose(size, count, dead, all)
  local sets, taken = {}, {}
  for _, rank in ipairs(dead) do taken[rank] = true end
  for _, set in ipairs(all) do
    local free = #set == size and #sets < count
    for _, rank in ipairs(set) do free = free and not taken[rank] end
    if free then
      table.insert(sets, set)
      for _, rank in ipairs(set) do taken[rank] = true end
    end
  end
  return sets
end

-- How wide tensor parallelism is: as asked for, or all that the others leave.
local function tp_of(n_ranks, p)
  return p.tp > 0 and p.tp or math.max(1, math.floor(n_ranks / (p.dp * p.sp * p.pp)))
end

-- "1, 2 or 4"
local function listed(numbers)
  local text = ""
  for i, n in ipairs(numbers) do
    text = text .. (i == 1 and "" or i == #numbers and " or " or ", ") .. string.format("%d", n)
  end
  return text
end

-- The sizes of groups that a whole partition can be made of.
local function sizes_of(facts)
  local sizes = {}
  for size = 1, facts.n_ranks do
    if facts.n_ranks % size == 0 and #choose(size, facts.n_ranks / size, {}, facts.sets) == facts.n_ranks / size then
      table.insert(sizes, size)
    end
  end
  return sizes
end

-- Asks for the partition when it is another one than before: at the start, after a change of params, when a rank
-- failed. A request that no group of it can hold gets a wider one, until the node is empty.
local function arrange(view, act, p)
  if act.widen() then ordered = "wider" end
  if ordered == "wider" and view.n_waiting + view.n_running > 0 then return end
  local tp = tp_of(node.n_ranks, p)
  local dead = #view.dead_ranks
  local stages = p.pp > 1 and string.format(", pp=%d", p.pp) or ""
  local wanted = string.format("%d x {sp=%d, tp=%d%s}, %d ranks failed", p.dp, p.sp, tp, stages, dead)
  if ordered == wanted then return end
  local sets = choose(p.sp * tp * p.pp, p.dp, view.dead_ranks, node.sets)
  if #sets < p.dp then act.log(string.format("%s: there can be %d such groups", wanted, #sets)) end
  for _, set in ipairs(sets) do
    act.bind(set, { when = p.when, base = { sp = p.sp * tp, pp = p.pp }, reason = "static: " .. wanted })
  end
  ordered = wanted
end

return {
  api = 1,
  doc = "A fixed partition: dp groups of sp * tp * pp ranks, each in the layout {sp, tp, pp}.",
  lib = { "victims" },

  params = {
    dp = { default = 1, min = 1, max = 64, type = "integer", unit = "groups", doc = "groups" },
    sp = {
      default = 1, min = 1, max = 64, type = "integer", unit = "ranks",
      doc = "sequence parallel ranks of a group",
    },
    tp = {
      default = 0, min = 0, max = 64, type = "integer", unit = "ranks",
      doc = "tensor parallel ranks of a group; 0: all that dp, sp and pp leave",
    },
    pp = { default = 1, min = 1, max = 64, type = "integer", unit = "stages", doc = "pipeline stages of a group" },
    micro = {
      default = 0, min = 0, max = 1024, type = "integer", unit = "batches",
      doc = "with pp: micro-batches of a step; 0: as many as it is estimated to take least with",
    },
    when = {
      default = "hard", choices = { "hard", "drain" },
      doc = "how running requests are interrupted by a new partition",
    },
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
    preempt = {
      default = false,
      doc = "lower priority numbers go first, and running requests of lower rank give way to them",
    },
    ageing = {
      default = 30, min = 0.001, max = 1e6, unit = "s",
      doc = "with preempt: seconds of waiting that make up for one level of priority",
    },
  },

  fits = function(facts, p)
    local tp, n = tp_of(facts.n_ranks, p), facts.n_ranks
    local stages = p.pp > 1 and string.format(", pp=%d", p.pp) or ""
    local asked = string.format("dp=%d, sp=%d, tp=%d%s", p.dp, p.sp, tp, stages)
    local size = p.sp * tp * p.pp
    local groups = "groups can have " .. listed(sizes_of(facts)) .. " of them"
    if p.dp * size ~= n then
      return false, string.format("%s is not the %d ranks: dp * sp * tp * pp has to be %d, and %s", asked, n, n, groups)
    end
    if #choose(size, p.dp, {}, facts.sets) < p.dp then
      return false, string.format("%s: %d ranks, but %s (--comm-sets adds sets)", asked, n, groups)
    end
    local staged = p.pp == 1
    for _, pp in ipairs(facts.stages[size]) do staged = staged or pp == p.pp end
    if not staged then
      return false, string.format("%s: groups of %d ranks can have %s stages", asked, size, listed(facts.stages[size]))
    end
    if p.pp > 1 then return true end
    local runs = ""
    for _, layout in ipairs(facts.layouts[size]) do
      if layout.sp == p.sp and layout.tp == tp then return true end
      runs = runs .. string.format("%ssp=%d,tp=%d", runs == "" and ": " or "; ", layout.sp, layout.tp)
    end
    return false, string.format("%s: the model does not run so; groups of %d ranks run%s", asked, size,
      runs == "" and " nothing: take smaller ones" or runs)
  end,

  start = function(facts, act, p, view)
    node, ordered = facts, nil
    arrange(view, act, p)
  end,

  admit = function(request, view, act, p)
    return p.preempt and request.arrival + request.priority * p.ageing + (request.offline and 1e9 or 0) or nil
  end,

  step = function(view, act, p)
    local settled = not p.preempt
    arrange(view, act, p)
    for _, group in ipairs(view.idle) do
      settled = settled or lib.victims.give_way(view, act, group)
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        local width = group.size / group.base.pp
        local layout = width % p.sp == 0 and { sp = p.sp, tp = width / p.sp, pp = group.base.pp } or nil
        local how = p.micro > 0 and { micro = p.micro } or nil
        if not act.forward(group, batch, layout, how) then act.forward(group, batch, nil, how) end
      end
    end
  end,

  tests = {
    ["by default one group runs in full tensor parallelism"] = function(t)
      assert(#t.start { ranks = 4, groups = { { 0, 1 }, { 2, 3 } } }.orders[1].bind == 4)
      assert(t.step { ranks = 4, waiting = { {} } }.forwards[1].tp == 4)
    end,

    ["a partition that is there already is not asked for"] = function(t)
      assert(#t.start { ranks = 4 }.orders == 0)
    end,

    ["what is left when a rank fails still runs"] = function(t)
      local plan = t.step {
        ranks = 4, dead = { 3 }, waiting = { { prompt = 400 }, { prompt = 400 }, { prompt = 400 } },
      }
      assert(#plan.forwards == 2)
    end,
  },
}
