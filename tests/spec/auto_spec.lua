local h = require("helper")

local function auto(options)
  options.policy = "policies/auto.lua"
  options.ranks = options.ranks or 4
  return options
end

local function crowd(e)
  local ids = {}
  for k = 1, 60 do ids[k] = e:submit { prompt = 1 + k * 37 % 300, max_tokens = 10 + k * 13 % 30, at = k * 0.004 } end
  return ids
end

local function counts(e, first, last)
  local steps, n = e:schedule(), {}
  for i = first, math.min(last, #steps) do
    local name = steps[i].sp .. "x" .. steps[i].tp
    n[name] = (n[name] or 0) + 1
  end
  return n, #steps
end

describe("auto", function()
  it("tries every layout, then keeps to one, and looks at the others again now and then", function()
    h.with(auto { params = { least = 10, try_every = 4, again_every = 50 } }, function(e)
      crowd(e)
      e:run()
      local all, n = counts(e, 1, 1e9)
      assert.is_true(n > 220, n .. " steps")
      for _, name in ipairs { "4x1", "2x2", "1x4" } do
        assert.is_true((all[name] or 0) >= 10, name .. " ran " .. tostring(all[name]) .. " times")
      end
      local late, most = counts(e, 121, 220), 0
      for _, times in pairs(late) do most = math.max(most, times) end
      assert.is_true(most >= 90, most .. " of 100 late steps in one layout")
      h.clean(e)
    end)
  end)

  it("decides the same in every run", function()
    local schedules = {}
    for i = 1, 2 do
      h.with(auto {}, function(e)
        crowd(e)
        e:run()
        schedules[i] = e:schedule()
      end)
    end
    assert.same(schedules[1], schedules[2])
  end)

  it("changes no text", function()
    local plain = h.texts({ policy = "policies/fcfs.lua", model = "tests/data/sim_ranks.json" }, crowd)
    assert.same(plain, h.texts(auto {}, crowd))
  end)

  it("leaves the partition as it is when told so", function()
    h.with(auto { group_size = 2, params = { bind = false } }, function(e)
      crowd(e)
      e:run()
      assert.equal("2 2", h.sizes(e))
      assert.equal(0, #h.switches(e))
      h.clean(e)
    end)
  end)
end)
