-- A bucket of tokens for each tenant: `rate` tokens flow in a second, up to `burst`. A request takes its prompt and its
-- max_tokens (`guess` where the client gave none) out of it; what it did not use comes back. When the bucket does not
-- have so many, the answer is 429, and Retry-After says when it will. From a full bucket anything may be taken.

local owed, seen = {}, {} -- by tenant: tokens short of a full bucket, and when that was

local function debt(tenant, now, p)
  local rate = p.rate * (p.weights[tenant] or 1)
  return math.max(0, (owed[tenant] or 0) - (now - (seen[tenant] or now)) * rate), rate
end

return {
  api = 1,
  doc = "A bucket of tokens for each tenant: beyond it 429, with the time of the next try.",
  lib = { "serve" },

  params = {
    rate = { default = 2000, min = 0.001, max = 1e9, unit = "tokens/s", doc = "tokens a second of a tenant" },
    burst = { default = 20000, min = 1, max = 1e9, unit = "tokens", doc = "tokens that a full bucket holds" },
    guess = { default = 512, min = 1, max = 1e6, unit = "tokens/request", doc = "an answer without max_tokens" },
    weights = {
      default = {}, min = 0.001, max = 1000, unit = "ratio",
      doc = "so many times the rate, by tenant; 1 when not named",
    },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  admit = function(request, view, act, p)
    if request.again then return request.key end -- it was charged when it came
    local tenant, cost = request.tenant, request.prompt + (request.open_ended and p.guess or request.max_tokens)
    local had, rate = debt(tenant, view.now, p)
    if had > 0 and had + cost > p.burst then
      local seconds = clamp(math.ceil(math.min(had, had + cost - p.burst) / rate), 1, 86400)
      return act.refuse(request, 429, seconds, "the tenant's tokens are used up") and nil
    end
    owed[tenant], seen[tenant] = had + cost, view.now
  end,

  step = function(view, act, p) lib.serve.all(view, act, p.budget) end,

  finish = function(request, view, p)
    local tenant, charged = request.tenant, request.open_ended and p.guess or request.max_tokens
    local left = debt(tenant, view.now, p) - (request.ending == "refused" and 0 or charged - request.output)
    owed[tenant], seen[tenant] = left > 0 and left or nil, left > 0 and view.now or nil
  end,

  tests = {
    ["a tenant beyond its bucket gets 429 and a time; another does not"] = function(t)
      local big = { prompt = 15000, max_tokens = 1000, tenant = "a" }
      assert(t.admit(big))
      local _, code, after = t.admit(big)
      assert(code == 429 and after == 6)
      assert(t.admit { prompt = 15000, max_tokens = 1000, tenant = "b" })
    end,
  },
}
