-- Random calls on the module, most of them wrong: whatever is called in whatever order, the answer is a value or an
-- error with a text. Used by module_spec.lua under busted and by tests/policy/module.c, which runs it under the
-- sanitizers.
local M = {}

local cycle = {}
cycle.again = cycle
local values = {
  function() return nil end, function() return true end,
  function() return 0 end, function() return 1 end, function() return 2 end,
  function() return 7 end, function() return -1 end, function() return 0.5 end,
  function() return 1e300 end, function() return -1e300 end,
  function() return 0 / 0 end, function() return math.huge end,
  function() return 2 ^ 53 end, function() return 2 ^ 31 end,
  function() return "" end, function() return "x" end,
  function() return ("long "):rep(400) end, function() return "\0\n\255" end,
  function() return {} end, function() return { 1, 2, 3 } end,
  function() return { { 1 }, "x", -1 } end, function() return cycle end,
  function() return print end, function() return coroutine.create(print) end, function() return io.stdout end,
}

local fields = {
  engine = {
    "policy", "source", "name", "params", "max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs",
    "max_num_queued_tokens", "kv_blocks", "step_us", "row_us", "starvation_s", "prefix_caching", "model", "ranks",
    "group_size", "fail_rank", "fail_at_step", "park_s", "nonsense",
  },
  submit = {
    "prompt", "max_tokens", "tenant", "priority", "at", "name", "slo_ttft_ms", "slo_tpot_ms", "leader", "nonsense",
  },
  load = { "trace", "hashes", "seed", "requests", "seconds", "nonsense" },
  swap = { "policy", "source", "name", "params", "nonsense" },
  set = { "budget", "nonsense", 1 },
}

local sane = {
  engine = {
    policy = "policies/fcfs.lua", max_num_seqs = 4, kv_blocks = 40, ranks = 2, prefix_caching = true, group_size = 1,
    starvation_s = 1, park_s = 0.01, fail_rank = 1, fail_at_step = 3, source = "return { api = 1, step = 1 }",
  },
  submit = { prompt = 30, max_tokens = 5, at = 0.01, tenant = "a", leader = 1 },
  load = { trace = "poisson:rate=1000,requests=20,input=10-50,output=5" },
  swap = { policy = "policies/priority.lua", name = "other", source = "return {" },
  set = { budget = 100 },
}

local methods = {
  "submit", "submit", "submit", "load", "cancel", "run_until", "run", "now", "schedule", "result", "groups", "switches",
  "metrics", "state", "swap", "rollback", "set", "close",
}

-- A table of arguments for a call: a few of its fields, right or wrong.
local function options(draw, of, wrong)
  local t = {}
  for _, k in ipairs(fields[of]) do -- in this order, so that a seed always means the same calls
    local v = sane[of][k]
    if v ~= nil and (draw(4) > 1 or k == "policy") then t[k] = v end
  end
  if of == "engine" or of == "swap" then t.source = draw(8) == 1 and t.source or nil end
  for _ = 1, draw(3) do
    if draw(100) <= wrong then
      local v = values[draw(#values)]()
      t[fields[of][draw(#fields[of])]] = v
    end
  end
  return t
end

local function argument(draw, method, wrong)
  if draw(100) <= wrong then return values[draw(#values)]() end
  if sane[method] then return options(draw, method, wrong) end
  if method == "run_until" then return draw(20) / 100 end
  return draw(6)
end

-- Calls f; its error, if any, has to be a text that says something.
local function try(f, ...)
  local ok, err = pcall(f, ...)
  if not ok and (type(err) ~= "string" or #err < 8) then error("an error without a text: " .. tostring(err)) end
  return ok, err
end

-- One engine and so many calls on it; left open, closed, or closed twice. Returns how many calls went through, and how
-- many were refused.
function M.round(moonshift, seed, n_calls)
  local state = seed * 7919 + 1
  local function draw(n)
    state = (state * 16807) % 2147483647
    return state % n + 1
  end
  local wrong, done, refused = ({ 0, 10, 40, 90 })[draw(4)], 0, 0
  local ok, e = try(moonshift.engine, draw(10) == 1 and values[draw(#values)]() or options(draw, "engine", wrong))
  if not ok then return 0, 1 end
  for _ = 1, n_calls do
    local method = methods[draw(#methods - (draw(3) > 1 and 1 or 0))]
    local self = draw(200) == 1 and values[draw(#values)]() or e
    if draw(5) == 1 then ok = try(e[method], self) else ok = try(e[method], self, argument(draw, method, wrong)) end
    done, refused = done + (ok and 1 or 0), refused + (ok and 0 or 1)
  end
  if draw(3) == 1 then e:close() end
  if draw(3) == 1 then e:close() end
  return done, refused
end

return M
