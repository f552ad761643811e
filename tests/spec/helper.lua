-- What the specs share.
local moonshift = require("moonshift")
local M = {}

-- Runs f with an engine, which is closed whatever f does.
function M.with(options, f)
  local e = moonshift.engine(options)
  local ok, err = xpcall(function() return f(e) end, function(x) return type(x) == "string" and debug.traceback(x) or x end)
  e:close()
  if not ok then error(err, 0) end
end

-- The names of a step's items, in order, as one text.
function M.names(step)
  local t = {}
  for i, item in ipairs(step.items) do t[i] = item.name end
  return table.concat(t, " ")
end

-- The order in which requests were first scheduled.
function M.started(e)
  local t = {}
  for _, step in ipairs(e:schedule()) do
    for _, item in ipairs(step.items) do
      if item.starts then t[#t + 1] = item.name end
    end
  end
  return t
end

-- One metric's value: the line that begins with this text.
function M.metric(e, line)
  local text = "\n" .. e:metrics()
  local at = text:find("\n" .. line, 1, true)
  return at and tonumber(text:match("^%S+ (%S+)", at + 1))
end

-- No fallback decided anything, and every request has one ending.
function M.clean(e)
  local state = e:state()
  assert(state.conserved, "the engine's books do not add up")
  assert(state.requests.live == 0, "requests are left")
  for cause, n in pairs(state.policy.fallback_steps) do
    assert(n == 0, n .. " steps were decided by the fallback: " .. cause .. ": " .. state.policy.last_error)
  end
  assert(state.policy.last_error == "", state.policy.last_error)
end

return M
