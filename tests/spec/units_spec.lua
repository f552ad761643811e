local moonshift, helper = require("moonshift"), require("helper")

-- Every policy that comes along.
local function shipped()
  local files = {}
  for file in io.popen("ls policies/*.lua"):lines() do files[#files + 1] = file end
  return files
end

local function params(options)
  local found
  helper.with(options, function(e) found = e:state().policy.active.params end)
  return found
end

local STEP = [[, step = function(view, act, p)
  for _, g in ipairs(view.idle) do
    local b = act.batch(g)
    b:decodes()
    b:prefill(view.waiting)
    if b.tokens > 0 then act.forward(g, b) end
  end
end }]]

describe("units of parameters", function()
  it("are declared of every number of the policies that come along", function()
    local n = 0
    for _, file in ipairs(shipped()) do
      for name, p in pairs(params { policy = file, ranks = 4 }) do
        local counts = p.type == "number" or p.type == "integer" or p.type == "map"
        assert.equal(counts, p.unit ~= nil, file .. ": " .. name)
        n = n + (counts and 1 or 0)
      end
    end
    assert.is_true(n > 70)
  end)

  it("are told with the values, of numbers and of tables of them", function()
    local p = params {
      source = 'return { api = 1, doc = "x", params = { wait = { default = 5, unit = "ms" }, more = { default = 1 }, '
        .. 'rates = { default = {}, unit = "tokens/s" } }' .. STEP,
    }
    assert.equal("ms", p.wait.unit)
    assert.equal("tokens/s", p.rates.unit)
    assert.is_nil(p.more.unit)
  end)

  it("hold a share within 0 and 1", function()
    local source = 'return { api = 1, doc = "x", params = { part = { default = 0.5, unit = "share" } }' .. STEP
    local p = params { source = source }
    assert.equal(0, p.part.min)
    assert.equal(1, p.part.max)
    local ok, err = pcall(moonshift.engine, { source = source, params = { part = 1.5 } })
    assert.is_false(ok)
    assert.matches("param 'part' must be at most 1", err, 1, true)
  end)
end)
