-- Seesaw. Prompts are computed in pipeline stages, which need no all-reduce; tokens are made in tensor parallelism,
-- which reads the weights fastest. The KV of prompts that are done goes to host memory in between. lib/phases.lua has
-- the turns.

local node -- what never changes
local kept -- by lib.phases

-- Stages of a group of this size: as asked for where that can be, else the most that can be.
local function stages_of(size, wanted)
  local most = 1
  for _, pp in ipairs(node.stages[size] or {}) do
    if pp == wanted then return pp end
    most = pp > most and pp or most
  end
  return wanted > 0 and 1 or most
end

-- The layout that a phase takes: so many stages, and tensor parallelism as wide as can be within one.
local function layout_of(size, pp)
  local all = node.layouts[size / pp]
  local tp = all and #all > 0 and all[#all].tp or 1
  return { sp = size / pp / tp, tp = tp, pp = pp }
end

return {
  api = 1,
  doc = "Prompts in pipeline stages, tokens in tensor parallelism, KV in host memory in between.",
  lib = { "phases" },

  params = {
    pp = {
      default = 0, min = 0, max = 64, type = "integer", unit = "stages",
      doc = "stages for prompts; 0: the most that can be",
    },
    tokens_pp = { default = 1, min = 1, max = 64, type = "integer", unit = "stages", doc = "stages for tokens" },
    micro = {
      default = 0, min = 0, max = 1024, type = "integer", unit = "batches",
      doc = "with stages: micro-batches of a step; 0: as many as it is estimated to take least with",
    },
    turn_s = {
      default = 0, min = 0, max = 3600, unit = "s",
      doc = "seconds after which a phase ends that keeps others waiting, at most a sixth of --starvation-seconds; "
        .. "0: so many that changes take a twentieth of them, at least ten",
    },
    ahead = {
      default = 4, min = 1, max = 1024, type = "integer", unit = "requests/step",
      doc = "sequences that come back from host memory at once while others make tokens",
    },
    least_s = { default = 0.2, min = 0, max = 3600, unit = "s", doc = "seconds that a decode phase lasts at least" },
    few = {
      default = 0, min = 0, type = "integer", unit = "requests/step",
      doc = "prompts go on when at most so many make tokens, and nobody waits in host memory",
    },
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = {
    "waiting.id", "waiting.in_host", "waiting.parked", "waiting.home", "waiting.computed", "running.id",
    "running.output", "running.blocks", "running.last", "running.group", "running.remaining", "running.computed",
  },

  start = function(facts, act, p, view) node, kept = facts, lib.phases.new(view and view.now or 0) end,

  finish = function(request) kept.came[request.id] = nil end,

  step = function(view, act, p)
    lib.phases.step(kept, view, act, {
      name = "seesaw", budget = p.budget, turn_s = p.turn_s, least_s = p.least_s, few = p.few, ahead = p.ahead,
      layout = function(group, prompts)
        return layout_of(group.size, stages_of(group.size, prompts and p.pp or p.tokens_pp))
      end,
      forward = function(group, batch)
        act.forward(group, batch, nil, p.micro > 0 and { micro = p.micro } or nil)
      end,
    })
  end,

  tests = {
    ["prompts are computed in stages"] = function(t)
      local plan = t.step { ranks = 4, waiting = { { prompt = 100 }, { prompt = 200 } } }
      assert(plan.orders[1].base.pp == 4 and #plan.orders[1].bind == 4)
    end,

    ["prompts that are done make room for others in host memory"] = function(t)
      local now = { kv_blocks = 64, host_kv_blocks = 512, waiting = { { name = "new", prompt = 500 } } }
      now.running = { { name = "done", prompt = 400, output = 1 } }
      local plan = t.step(now)
      assert(plan.remapped.done == "host" and plan[1] and plan[1].name == "new")
    end,

    ["sequences come back while others make tokens"] = function(t)
      local now = { kv_blocks = 64, host_kv_blocks = 512, running = { { name = "runs", prompt = 500, output = 5 } } }
      now.waiting = { { name = "back", prompt = 200, output = 2, in_host = true } }
      local plan = t.step(now)
      assert(#plan == 1 and plan[1].name == "runs" and plan.remapped.back == "migrate")
    end,

    ["where nobody makes tokens the first one is fetched at once"] = function(t)
      local back = { name = "back", prompt = 200, output = 2, in_host = true }
      local plan = t.step { host_kv_blocks = 512, waiting = { back } }
      assert(#plan == 1 and plan[1].name == "back" and plan[1].tokens == 1)
    end,

    ["tokens are made in tensor parallelism"] = function(t)
      local plan = t.step { ranks = 4, running = { { prompt = 100, output = 5 }, { prompt = 200, output = 3 } } }
      assert(#plan.orders == 0 and plan.forwards[1].tp == 4 and plan.forwards[1].n == 2)
    end,
  },
}
