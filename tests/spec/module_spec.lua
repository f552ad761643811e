local moonshift, hostile = require("moonshift"), require("hostile")

describe("the module", function()
  it("takes back what was submitted and never ran", function()
    local e = moonshift.engine { policy = "policies/fcfs.lua" }
    e:submit { prompt = 10 }
    e:submit { prompt = 10, at = 5 }
    e:close()
    e:close()
    assert.has_error(function() e:run() end, "the engine is closed")
    moonshift.engine({}):submit { prompt = 10 } -- and when nobody closes it
    collectgarbage()
    collectgarbage()
  end)

  it("says what is wrong with an argument", function()
    local e = moonshift.engine {}
    for _, case in ipairs {
      { function() e:submit { prompt = {} } end, "prompt must have 1 to" },
      {
        function() e:submit { prompt = { 1, 2000 } } end,
        "prompt: entry 2 is no token id: a whole number from 0 to 1023",
      },
      { function() e:submit { prompt = 0 } end, "prompt must be a number from 1 to 1048576, not 0" },
      { function() e:submit { prompt = 0 / 0 } end, "prompt must be a number" },
      { function() e:submit { promt = 1 } end, "unknown field 'promt'; did you mean 'prompt'?" },
      { function() e:submit { at = -1 } end, "at must be a number from 0" },
      { function() e:submit { at = math.huge } end, "at must be a number" },
      { function() e:submit { leader = 4 } end, "leader must be a number" },
      { function() e:submit { name = {} } end, "name must be a text, not a table" },
      { function() e:cancel(1) end, "a request's number must be a number from 1 to 0" },
      { function() e:result("x") end, "a request's number must be a number" },
      { function() e:run_until(math.huge) end, "the time must be a number" },
      { function() moonshift.engine { ranks = 1000 } end, "ranks must be a number from 1 to 64, not 1000" },
      { function() moonshift.engine { kv_blocks = -1 } end, "kv_blocks must be a number from 1" },
      { function() moonshift.engine { step_us = -5 } end, "step_us must be a number from 0" },
      { function() moonshift.engine { params = {} } end, "params are a policy's" },
      { function() moonshift.engine { policy = "policies/fcfs.lua", params = 1 } end, "params must be a table" },
      { function() moonshift.engine { policy = "nowhere.lua" } end, "nowhere.lua" },
      {
        function() e:load { trace = "poisson:rate=1000000,requests=100000,input=10,output=1" } end,
        "too many requests for one engine",
      },
    } do
      local ok, err = pcall(case[1])
      assert.is_false(ok, "not refused: " .. case[2])
      assert.is_truthy(err:find(case[2], 1, true), err)
    end
    e:close()
  end)

  it("does not cancel in silence what has not arrived", function()
    local e = moonshift.engine {}
    local soon, late = e:submit {}, e:submit { at = 5, name = "late" }
    local ok, err = pcall(e.cancel, e, late)
    assert.is_false(ok)
    assert.is_truthy(err:find("request late has not arrived yet: run_until(5", 1, true), err)
    e:cancel(soon)
    e:run()
    assert.equal("abort", e:result(soon).ending)
    assert.equal("length", e:result(late).ending)
    e:close()
  end)

  it("keeps its metatable to itself", function()
    assert.is_false(getmetatable(moonshift.engine {}))
  end)

  it("stops at a number of open engines, and takes back those that nobody has", function()
    local kept = {}
    local ok, err = pcall(function() for i = 1, 100 do kept[i] = moonshift.engine {} end end)
    assert.is_false(ok)
    assert.is_truthy(err:find("engines are open: close those that are done", 1, true), err)
    kept = nil
    for _ = 1, 100 do moonshift.engine {} end
  end)

  it("finds a policy beside the spec that asks for it", function()
    local e = moonshift.engine { policy = "../policies/fcfs.lua" } -- the folder above this one
    assert.equal("fcfs", e:state().policy.active.name)
    e:close()
  end)

  it("survives any calls in any order", function()
    local done, refused = 0, 0
    for seed = 1, 150 do
      local d, r = hostile.round(moonshift, seed, 30)
      done, refused = done + d, refused + r
    end
    assert.is_true(done > 800 and refused > 800, done .. " calls done, " .. refused .. " refused")
  end)
end)
