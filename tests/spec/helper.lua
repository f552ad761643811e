-- What the specs share.
local moonshift = require("moonshift")
local M = {}

-- Runs f with an engine, which is closed whatever f does.
function M.with(options, f)
  local e = moonshift.engine(options)
  local function trace(x) return type(x) == "string" and debug.traceback(x) or x end
  local ok, err = xpcall(function() return f(e) end, trace)
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

-- The sizes of the groups that there are, in the order of their ranks: "2 1 1".
function M.sizes(e)
  local t = {}
  for i, group in ipairs(e:groups()) do t[i] = #group.ranks end
  return table.concat(t, " ")
end

-- Switches that were carried out, without the one that the engine begins with.
function M.switches(e)
  local t = {}
  for _, s in ipairs(e:switches()) do
    if not s.superseded and s.reason ~= "start" then t[#t + 1] = s end
  end
  return t
end

-- The texts of a run that nobody switched, on one rank: the same requests, submitted by `load`, give them.
function M.texts(options, load)
  local texts = {}
  M.with(options, function(e)
    local ids = load(e)
    e:run()
    M.clean(e)
    for i, id in ipairs(ids) do
      assert(e:result(id).ending == "length", e:result(id).ending)
      texts[i] = table.concat(e:result(id).tokens, " ")
    end
  end)
  return texts
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

-- A prompt of n tokens: the first `shared` are those of every prompt of this family, the others its own.
function M.prompt(family, shared, n, own)
  local ids = {}
  for i = 1, n do ids[i] = i <= shared and (family * 37 + i) % 500 or 500 + (own * 53 + i) % 500 end
  return ids
end

-- Are there no more than 60 lines of this policy? Those that answer a question are meant to be read.
function M.is_short(file)
  local n = 0
  for _ in io.lines(file) do n = n + 1 end
  return n <= 60
end

return M
