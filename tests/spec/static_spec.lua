local h = require("helper")

local function static(options)
  options.policy = "policies/static.lua"
  options.ranks = options.ranks or 4
  return options
end

local function crowd(e, n)
  local ids = {}
  for k = 1, n do ids[k] = e:submit { prompt = 1 + k * 37 % 150, max_tokens = 10 + k * 13 % 30, at = k * 0.002 } end
  return ids
end

describe("static", function()
  it("runs the partition and the layout that its params say, and no other", function()
    for _, case in ipairs {
      { { dp = 4, tp = 1 }, "1 1 1 1", 1, 1 },
      { { dp = 2, sp = 2, tp = 1 }, "2 2", 2, 1 },
      { { dp = 2, sp = 1 }, "2 2", 1, 2 },
      { { dp = 1, sp = 2, tp = 2 }, "4", 2, 2 },
      { {}, "4", 1, 4 },
    } do
      h.with(static { params = case[1] }, function(e)
        crowd(e, 30)
        e:run()
        assert.equal(case[2], h.sizes(e))
        for _, step in ipairs(e:schedule()) do assert.same({ case[3], case[4] }, { step.sp, step.tp }) end
        h.clean(e)
      end)
    end
  end)

  it("gives every group work", function()
    h.with(static { params = { dp = 4, tp = 1 } }, function(e)
      crowd(e, 40)
      e:run()
      local steps = {}
      for _, step in ipairs(e:schedule()) do steps[step.ranks[1]] = (steps[step.ranks[1]] or 0) + 1 end
      for rank = 0, 3 do assert.is_true((steps[rank] or 0) > 10, "rank " .. rank .. " has hardly a step") end
    end)
  end)

  it("changes the partition with its params, and no text with it", function()
    local function switched(e)
      local ids = crowd(e, 40)
      for i, params in ipairs {
        { dp = 4, tp = 1 }, { dp = 2, tp = 2 }, { dp = 1, tp = 4 },
        { dp = 2, sp = 2, tp = 1 }, { dp = 4, tp = 1, sp = 1 },
      } do
        e:run_until(i * 0.01)
        assert(e:set(params))
      end
      return ids
    end
    local function forty(e) return crowd(e, 40) end
    local plain = h.texts({ policy = "policies/fcfs.lua", model = "tests/data/sim_ranks.json" }, forty)
    assert.same(plain, h.texts(static { params = { dp = 1 } }, switched))
    assert.same(plain, h.texts(static { params = { dp = 4, tp = 1, when = "drain" } }, forty))
  end)

  it("widens a group for a request that none can hold, until the node is empty", function()
    h.with(static { kv_blocks = 40, params = { dp = 4, tp = 1 } }, function(e) -- 640 tokens a rank
      local ids = crowd(e, 10)
      ids[#ids + 1] = e:submit { name = "long", prompt = 1000, max_tokens = 20, at = 0.01 }
      e:run()
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      assert.equal("1 1 1 1", h.sizes(e))
      h.clean(e)
    end)
  end)

  it("binds pipelined groups, answers in them, and the next policy has plain ones again", function()
    h.with(static { ranks = 4, params = { dp = 2, pp = 2, micro = 3 } }, function(e)
      local ids = crowd(e, 10)
      e:run(0.05)
      assert.equal("2 2", h.sizes(e))
      for _, group in ipairs(e:state().groups) do assert.equal(2, group.base.pp) end
      assert(e:swap { policy = "policies/fcfs.lua" })
      e:run()
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      for _, group in ipairs(e:state().groups) do assert.equal(1, group.base.pp) end
      h.clean(e)
    end)
  end)

  it("refuses what cannot be, at the start, at a swap and at a change of params, and says what can", function()
    for _, case in ipairs {
      {
        8, { sp = 3 },
        "sp=3, tp=2 is not the 8 ranks: dp * sp * tp * pp has to be 8, and groups can have 1, 2, 4 or 8 of them",
      },
      { 8, { sp = 16 }, "sp=16, tp=1 is not the 8 ranks" },
      { 8, { dp = 3 }, "dp=3, sp=1, tp=2 is not the 8 ranks" },
      { 8, { dp = 8, tp = 2 }, "dp=8, sp=1, tp=2 is not the 8 ranks" },
      { 6, { dp = 2 }, "6 ranks, but groups can have 1, 2 or 6 of them (--comm-sets adds sets)" },
      { 8, { tp = 8 }, "dp=1, sp=1, tp=8: the model does not run so", "tests/data/sim_model.json" },
      { 8, { pp = 8 }, "tp=1, pp=8: groups of 8 ranks can have 1 or 2 stages" },
    } do
      local ok, why = pcall(require("moonshift").engine, static { ranks = case[1], params = case[2], model = case[4] })
      assert.is_false(ok)
      assert.is_truthy(tostring(why):find(case[3], 1, true), why)
      if not case[4] then
        h.with(static { ranks = case[1] }, function(e)
          local ids, before = crowd(e, 10), e:state()
          local done, reason = e:set(case[2])
          assert.is_nil(done)
          assert.is_truthy(reason:find(case[3], 1, true), reason)
          assert.same(before, e:state()) -- the values of before are the policy's still
          e:run()
          for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
          assert.equal(tostring(case[1]), h.sizes(e))
        end)
      end
    end
    h.with({ policy = "policies/fcfs.lua", ranks = 4 }, function(e)
      local ids = crowd(e, 10)
      local done, reason = e:swap { policy = "policies/static.lua", params = { dp = 3 } }
      assert.is_nil(done)
      assert.is_truthy(reason:find("is not the 4 ranks", 1, true), reason)
      e:run()
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      assert.is_truthy(e:state().policy.last_error:find("is not the 4 ranks", 1, true))
    end)
  end)
end)
