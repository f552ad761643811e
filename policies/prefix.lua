-- The longest cached prefix first, as SGLang's lpm, with ageing: a second of waiting counts as `ageing` cached tokens,
-- so who has nothing in the cache is overtaken only so long. Only the first `window` of the queue, which is in the
-- order of arrival, are looked at.

return {
  api = 1,
  doc = "The longest cached prefix first; waiting makes up for what is not cached.",
  lib = { "order", "serve" },

  params = {
    ageing = { default = 500, min = 0, max = 1e6, unit = "tokens/s", doc = "cached ones, for which waiting makes up" },
    window = { default = 32, min = 1, max = 256, type = "integer", unit = "requests", doc = "to choose from" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = { "waiting.key" },

  step = function(view, act, p)
    local waiting = view.waiting
    lib.serve.all(view, act, p.budget, lib.order.by(view, p.window, function(row)
      return p.ageing * waiting.key[row] - view.cached(waiting.id[row])
    end))
  end,

  tests = {
    ["without a cache the first to come is first"] = function(t)
      local plan = t.step {
        max_num_seqs = 1, waiting = { { name = "late", arrival = 2 }, { name = "early", arrival = 1 } },
      }
      assert(plan[1].name == "early")
    end,
    ["a line of a batch is behind who came later"] = function(t)
      local plan = t.step {
        max_num_seqs = 1, waiting = { { name = "line", arrival = 1, offline = true }, { name = "late", arrival = 2 } },
      }
      assert(plan[1].name == "late")
    end,
  },
}
