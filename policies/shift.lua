-- Shift Parallelism. One group holds every rank. Steps of many tokens run in the base layout, where ranks share the
-- sequence and talk little; small ones in full tensor parallelism, where each rank reads a share of the weights only.
-- Both keep a sequence's KV where it lies, so a change costs nothing; hysteresis keeps it from happening at every other
-- step. Where ranks hold shares of the weights, a group runs one layout, so there is nothing to shift.

local node -- what never changes

-- Is it a layout that the params ask for?
local function is_asked(layout, p)
  return (p.base_sp == 0 or layout.sp == p.base_sp) and (p.base_tp == 0 or layout.tp == p.base_tp)
end

-- The layout that the params name; else the least tensor parallel one.
local function base_of(size, p)
  for _, layout in ipairs(node.layouts[size] or {}) do
    if p.base_sp + p.base_tp > 0 and is_asked(layout, p) then return layout end
  end
  return node.layouts[size] and node.layouts[size][1]
end

return {
  api = 1,
  doc = "Sequence parallelism for large steps, tensor parallelism for small ones, over one group of all ranks.",
  lib = { "victims" },

  params = {
    threshold = {
      default = 512, min = 1, max = 1e6, unit = "tokens/step",
      doc = "tokens of a step (those not cached) above which the base layout runs",
    },
    hysteresis = {
      default = 0.1, min = 0, max = 0.9, unit = "share",
      doc = "share of the threshold by which a step must be past it to change the layout",
    },
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
    base_sp = {
      default = 0, min = 0, type = "integer", unit = "ranks",
      doc = "base layout; 0: what base_tp leaves, or the least tensor parallel one",
    },
    base_tp = { default = 0, min = 0, type = "integer", unit = "ranks", doc = "the same; 0: what base_sp leaves" },
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
    if facts.residency == "sharded" then
      return false, "ranks hold shares of the weights, so a group runs one layout: static, or seesaw, which re-shards"
    end
    local runs = ""
    for _, layout in ipairs(facts.layouts[facts.n_ranks]) do
      if is_asked(layout, p) then return true end
      runs = runs .. string.format("%ssp=%d,tp=%d", runs == "" and "" or "; ", layout.sp, layout.tp)
    end
    return false, string.format(
      "base_sp=%d, base_tp=%d is no layout of all %d ranks; these run: %s", p.base_sp, p.base_tp, facts.n_ranks, runs)
  end,

  start = function(facts, act, p)
    node = facts
    act.bind(node.ranks, { base = base_of(node.n_ranks, p), reason = "shift: one group" })
  end,

  admit = function(request, view, act, p)
    return p.preempt and request.arrival + request.priority * p.ageing + (request.offline and 1e9 or 0) or nil
  end,

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    local settled = not p.preempt
    for _, group in ipairs(view.idle) do
      settled = settled or lib.victims.give_way(view, act, group)
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      local base = base_of(group.size, p)
      local large = group.layout.sp == base.sp and group.layout.tp == base.tp -- as its last step
      if batch.tokens > 0 then
        large = batch.tokens > p.threshold * (1 + (large and -1 or 1) * p.hysteresis)
        act.forward(group, batch, large and base or nil)
      end
    end
  end,

  tests = {
    ["large steps run in the base layout, small ones in full tensor parallelism"] = function(t)
      local plan = t.step { ranks = 4, waiting = { { prompt = 1000 } } }
      assert(plan.forwards[1].sp == 4 and plan.forwards[1].tp == 1)
      plan = t.step { ranks = 4, running = { {}, {} } }
      assert(plan.forwards[1].sp == 1 and plan.forwards[1].tp == 4)
    end,

    ["near the threshold the layout stays as it is"] = function(t)
      local plan = t.step { ranks = 4, waiting = { { prompt = 500 } } } -- a group begins in its base layout
      assert(plan.forwards[1].sp == 4)
      plan = t.step { ranks = 4, waiting = { { prompt = 440 } } }
      assert(plan.forwards[1].tp == 4)
    end,

    ["it binds all ranks in the order of the base layout"] = function(t)
      local order = t.start { ranks = 4, groups = { { 0, 1 }, { 2 }, { 3 } } }.orders[1]
      assert(#order.bind == 4 and order.base.sp == 4 and order.base.tp == 1)
      assert(#t.start { ranks = 4 }.orders == 0)
    end,
  },
}
