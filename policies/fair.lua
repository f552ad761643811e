-- Tenants share the machine by tokens served. Each has a counter of the tokens it was given, divided by its weight; a
-- request queues at its tenant's counter, which then moves on by what the request will probably cost. `clock` follows
-- the counter of who is being served: a tenant that comes back starts there, so nobody saves up time by staying away.

local counter, guess = {}, {} -- by tenant: tokens charged / weight; output tokens to expect of a request
local clock = 0
local offline = 1e15 -- added to the keys of lines of batches, so that they come behind all others

local function weight(tenant, p)
  return p.weights[tenant] or 1
end

local function cost(request, p)
  local output = math.min(request.max_tokens, guess[request.tenant] or p.guess)
  return (request.prompt + output) / weight(request.tenant, p)
end

return {
  api = 1,
  doc = "Tenants share by tokens served, in proportion to their weights.",

  params = {
    weights = {
      default = {}, min = 0.001, max = 1000, unit = "ratio",
      doc = "share of a tenant by name; 1 when not named",
    },
    guess = { default = 128, min = 1, unit = "tokens/request", doc = "an answer of a tenant not seen before" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = { "waiting.key", "waiting.first" },

  admit = function(request, view, act, p)
    if request.again then return request.key end -- it was charged when it came
    local key = math.max(counter[request.tenant] or 0, clock)
    counter[request.tenant] = key + cost(request, p)
    return request.offline and key + offline or key
  end,

  step = function(view, act, p)
    local head = view.waiting.first[1]
    if head then
      local key = view.waiting.key[head]
      clock = math.max(clock, key >= offline and key - offline or key)
    end
    act.widen() -- where no group can hold the first request
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then
        act.forward(group, batch)
      end
    end
  end,

  finish = function(request, view, p)
    local tenant = request.tenant
    if request.ending == "stop" or request.ending == "length" then
      local before = guess[tenant] or request.output
      guess[tenant] = before + 0.2 * (request.output - before)
    end
    if (counter[tenant] or 0) <= clock then counter[tenant], guess[tenant] = nil, nil end
  end,

  -- Whoever is in the queue at a swap is asked for again, and charged then: only the clock crosses. It may be another
  -- policy's state.
  export = function() return { clock = clock, guess = guess } end,
  import = function(state)
    local theirs = type(state) == "table" and state or {}
    clock = type(theirs.clock) == "number" and theirs.clock or 0
    guess = type(theirs.guess) == "table" and theirs.guess or {}
  end,

  tests = {
    ["tenants take turns"] = function(t)
      local plan = t.step { waiting = {
        { name = "a1", tenant = "a" }, { name = "a2", tenant = "a" }, { name = "a3", tenant = "a" },
        { name = "b1", tenant = "b" } } }
      assert(plan[1].name == "a1" and plan[2].name == "b1" and plan[3].name == "a2")
    end,

    ["a long request counts for more"] = function(t)
      local plan = t.step { waiting = {
        { name = "a1", tenant = "a", prompt = 500 }, { name = "a2", tenant = "a" },
        { name = "b1", tenant = "b", prompt = 50 }, { name = "b2", tenant = "b", prompt = 50 } } }
      assert(plan[2].name == "b1" and plan[3].name == "b2" and plan[4].name == "a2")
    end,
  },
}
