-- Two ways in one policy, by the load, not by the hour: a policy has no clock but the engine's. It is day while `busy`
-- requests or more come a second: the least prompt goes first and steps are small, so that answers do not stall. Else
-- it is night: first come first served in large steps. A tenth of `busy` lies between day's beginning and its end.

local day = false

return {
  api = 1,
  doc = "Under load the least prompt first in small steps, else first come first served in large ones.",
  lib = { "order", "serve" },

  params = {
    busy = { default = 4, min = 0, max = 1e6, unit = "requests/s", doc = "from so many on it is day" },
    patience = { default = 5, min = 0, max = 1000, unit = "s/1000 tokens", doc = "by day, sets a long prompt back" },
    day_budget = { default = 1024, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step by day" },
    night_budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "by night" },
    window = { default = 32, min = 1, max = 256, type = "integer", unit = "requests", doc = "to choose from" },
  },

  needs = { "waiting.key", "waiting.remaining" },

  step = function(view, act, p)
    day = view.arrival_rate >= p.busy * (day and 0.9 or 1)
    if not day then return lib.serve.all(view, act, p.night_budget) end
    local waiting = view.waiting
    lib.serve.all(view, act, p.day_budget, lib.order.by(view, p.window, function(row)
      return waiting.key[row] + p.patience * (waiting.remaining[row] - view.cached(waiting.id[row])) / 1000
    end))
  end,

  export = function() return { day = day } end,
  import = function(state) day = type(state) == "table" and state.day == true end,

  tests = {
    ["by night the first to come, by day the shorter one"] = function(t)
      local waiting = { { name = "long", prompt = 900, arrival = 1 }, { name = "short", prompt = 9, arrival = 1.1 } }
      assert(t.step { max_num_seqs = 1, waiting = waiting }[1].name == "long")
      assert(t.step { max_num_seqs = 1, waiting = waiting, params = { busy = 0 } }[1].name == "short")
    end,
    ["by day, too, a line of a batch is behind who came later"] = function(t)
      local waiting = { { name = "line", arrival = 1, offline = true }, { name = "late", arrival = 2 } }
      assert(t.step { max_num_seqs = 1, waiting = waiting, params = { busy = 0 } }[1].name == "late")
    end,
  },
}
