-- Tiers of service with deadlines for the first token: priority 0 and below is interactive, 1 is batch, 2 and above is
-- background. The earliest deadline goes first, so a tier that waits long enough is due as well. A request that names
-- its own wish (slo_ttft_ms) has that as its deadline. Running requests of a later tier and deadline give way.

local function wish(request, p)
  if request.slo_ttft_ms > 0 then return request.slo_ttft_ms end
  return request.priority <= 0 and p.interactive_ms or request.priority == 1 and p.batch_ms or p.background_ms
end

return {
  api = 1,
  doc = "Interactive, batch and background tiers: the earliest deadline for a first token goes first.",
  lib = { "serve", "victims" },

  params = {
    interactive_ms = { default = 500, min = 1, max = 3.6e6, unit = "ms", doc = "first token of priority 0 and below" },
    batch_ms = { default = 30000, min = 1, max = 3.6e6, unit = "ms", doc = "first token of priority 1" },
    background_ms = {
      default = 600000, min = 1, max = 3.6e6, unit = "ms",
      doc = "first token of priority 2 and above",
    },
    preempt = { default = true, doc = "running requests of a later tier and deadline give way" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  admit = function(request, view, act, p)
    return request.arrival + wish(request, p) / 1000 + (request.offline and 1e9 or 0)
  end,

  step = function(view, act, p)
    local settled = not p.preempt
    act.widen()
    for _, group in ipairs(view.idle) do
      settled = settled or lib.victims.give_way(view, act, group)
      lib.serve.group(view, act, group, p.budget)
    end
  end,

  tests = {
    ["interactive goes before background that came first"] = function(t)
      local plan = t.step { max_num_seqs = 1, waiting = {
        { name = "background", priority = 2, arrival = 10 }, { name = "interactive", arrival = 60 } } }
      assert(plan[1].name == "interactive")
    end,
    ["batch that is due goes before interactive that is not"] = function(t)
      local plan = t.step { max_num_seqs = 1, waiting = {
        { name = "batch", priority = 1, arrival = 10 }, { name = "interactive", arrival = 41 } } }
      assert(plan[1].name == "batch")
    end,
    ["running background gives way"] = function(t)
      local plan = t.step {
        max_num_seqs = 1, running = { { name = "low", priority = 2 } }, waiting = { { name = "high" } },
      }
      assert(plan.preempted[1] == "low" and plan[1].name == "high")
    end,
  },
}
