-- The least work first, with ageing. Work is what is left: the tokens yet to compute, less those that the prefix cache
-- has, and the answer, guessed from the tenant's answers so far. A thousand tokens of work count as `patience` seconds
-- of arrival, so a long request is overtaken only so long. A request that gave way keeps what it has said.

local guess = {} -- by tenant: tokens of an answer

return {
  api = 1,
  doc = "The least work that is left goes first; waiting makes up for work.",
  lib = { "order", "serve" },

  params = {
    patience = { default = 5, min = 0, max = 1000, unit = "s/1000 tokens", doc = "sets a request back by its work" },
    output = {
      default = 4, min = 0, max = 100, unit = "ratio",
      doc = "work of a token of the answer, in prompt tokens",
    },
    guess = { default = 128, min = 1, max = 1e6, unit = "tokens/request", doc = "an answer of a new tenant" },
    window = { default = 32, min = 1, max = 256, type = "integer", unit = "requests", doc = "to choose from" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = { "waiting.key", "waiting.prompt", "waiting.remaining", "waiting.output" },

  admit = function(request, view, act, p)
    local answer = math.min(request.max_tokens, guess[request.tenant] or p.guess)
    local work = request.prompt + p.output * answer
    return request.arrival + p.patience * work / 1000 + (request.offline and 1e9 or 0)
  end,

  step = function(view, act, p)
    local waiting = view.waiting
    local list = lib.order.by(view, p.window, function(row)
      local done = waiting.prompt[row] - waiting.remaining[row] + view.cached(waiting.id[row])
      return waiting.key[row] - p.patience * (done + (1 + p.output) * waiting.output[row]) / 1000
    end)
    lib.serve.all(view, act, p.budget, list)
  end,

  finish = function(request)
    if request.ending ~= "stop" and request.ending ~= "length" then return end
    local before = guess[request.tenant] or request.output
    guess[request.tenant] = before + 0.2 * (request.output - before)
  end,

  export = function() return { guess = guess } end, -- who imports it may be another policy
  import = function(s) guess = type(s) == "table" and type(s.guess) == "table" and s.guess or {} end,

  tests = {
    ["a short one goes first, a long one that has waited before it"] = function(t)
      local long, short = { name = "long", prompt = 2000, arrival = 1 }, { name = "short", prompt = 20, arrival = 2 }
      assert(t.step { max_num_seqs = 1, waiting = { long, short } }[1].name == "short")
      short.arrival = 12
      assert(t.step { now = 12, max_num_seqs = 1, waiting = { long, short } }[1].name == "long")
    end,
  },
}
