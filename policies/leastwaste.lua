-- First come, first served; when KV runs out amid answers, who has computed least gives way, since that is what has to
-- be computed again. (Without this the last in the queue's order does, however much it has computed.) `spare` blocks
-- more than needed are freed at once, so that the next steps need not.

return {
  api = 1,
  doc = "First come, first served; when KV runs out, who has computed least gives way.",
  lib = { "serve", "victims" },

  params = {
    spare = {
      default = 0, min = 0, max = 10000, type = "integer", unit = "blocks",
      doc = "blocks to free beyond those lacking",
    },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = { "running.computed", "running.group", "running.blocks", "running.first" },

  step = function(view, act, p)
    act.widen()
    for _, group in ipairs(view.idle) do
      local lacking = lib.victims.lacking(view, group)
      if lacking > 0 then lib.victims.least_waste(view, act, group, lacking + p.spare) end
      lib.serve.group(view, act, group, p.budget)
    end
  end,

  tests = {
    ["while there is room nobody does"] = function(t)
      assert(#t.step { kv_blocks = 100, running = { { prompt = 48 }, { prompt = 240 } } }.preempted == 0)
    end,
  },
}
