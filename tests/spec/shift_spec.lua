local h = require("helper")

local function shift(options)
  options.policy = "policies/shift.lua"
  options.ranks = options.ranks or 4
  return options
end

describe("shift", function()
  it("runs steps above the threshold in the base layout, the others in full tensor parallelism", function()
    h.with(shift { params = { threshold = 100, hysteresis = 0 } }, function(e)
      e:submit { prompt = 100, max_tokens = 3 }
      e:submit { prompt = 101, max_tokens = 3, at = 0.1 }
      e:run()
      local base, full = 0, 0
      for _, step in ipairs(e:schedule()) do
        assert.equal(4, #step.ranks)
        assert.equal(step.tokens > 100 and 4 or 1, step.sp)
        assert.equal(4, step.sp * step.tp)
        if step.sp == 4 then base = base + 1 else full = full + 1 end
      end
      assert.same({ 1, 5 }, { base, full })
      h.clean(e)
    end)
  end)

  it("does not change the layout at every other step when steps lie near the threshold", function()
    local changes = {}
    for i, hysteresis in ipairs { 0, 0.3 } do
      h.with(shift { params = { threshold = 100, hysteresis = hysteresis } }, function(e)
        for k = 0, 39 do e:submit { prompt = k % 2 == 0 and 90 or 110, max_tokens = 1, at = k * 0.01 } end
        e:run()
        changes[i] = 0
        local before
        for _, step in ipairs(e:schedule()) do
          if before and before ~= step.sp then changes[i] = changes[i] + 1 end
          before = step.sp
        end
        h.clean(e)
      end)
    end
    assert.is_true(changes[1] > 30, changes[1] .. " changes without hysteresis")
    assert.is_true(changes[2] <= 1, changes[2] .. " changes with it")
  end)

  it("counts the tokens that are not cached", function()
    h.with(shift { prefix_caching = true, params = { threshold = 100, hysteresis = 0 } }, function(e)
      local prompt = {}
      for i = 1, 200 do prompt[i] = i end
      e:submit { prompt = prompt, max_tokens = 1 }
      e:submit { prompt = prompt, max_tokens = 1, at = 0.1 }
      e:run()
      local steps = e:schedule()
      assert.equal(4, steps[1].sp)
      assert.is_true(steps[2].tokens < 100)
      assert.equal(4, steps[2].tp)
    end)
  end)

  it("takes the base layout it is told", function()
    h.with(shift { params = { base_sp = 2, base_tp = 2, threshold = 50 } }, function(e)
      e:submit { prompt = 200, max_tokens = 2 }
      e:run()
      assert.same({ 2, 2 }, { e:schedule()[1].sp, e:schedule()[1].tp })
      assert.same({ 1, 4 }, { e:schedule()[2].sp, e:schedule()[2].tp })
      h.clean(e)
    end)
  end)

  it("makes one group of whatever partition it finds, and no switch after that", function()
    h.with(shift { group_size = 1 }, function(e)
      for i = 1, 20 do e:submit { prompt = i * 60, max_tokens = 20, at = i * 0.005 } end
      e:run()
      assert.equal("4", h.sizes(e))
      assert.equal(1, #h.switches(e))
      h.clean(e)
    end)
  end)

  it("changes no text", function()
    local function load(e)
      local ids = {}
      for k = 1, 40 do ids[k] = e:submit { prompt = 1 + k * 137 % 900, max_tokens = 10 + k % 20, at = k * 0.003 } end
      return ids
    end
    local plain = h.texts({ policy = "policies/fcfs.lua", model = "tests/data/sim_ranks.json" }, load)
    assert.same(plain, h.texts(shift { params = { threshold = 64 } }, load))
  end)

  it("goes on with the ranks that are left when one fails", function()
    h.with(shift { fail_rank = 3, fail_at_step = 5 }, function(e)
      local ids = {}
      for k = 1, 10 do ids[k] = e:submit { prompt = 50, max_tokens = 30 } end
      e:run()
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      assert.equal("2 1", h.sizes(e))
      h.clean(e)
    end)
  end)

  it("lets requests of lower rank give way when told so", function()
    for _, preempt in ipairs { false, true } do
      h.with(shift { max_num_seqs = 1, params = { preempt = preempt } }, function(e)
        e:submit { name = "first", priority = 3, max_tokens = 50 }
        local urgent = e:submit { name = "urgent", priority = -4, max_tokens = 5, at = 0.01 }
        e:run()
        assert.equal(preempt, e:result(urgent).first_token_at < 0.02)
        h.clean(e)
      end)
    end
  end)

  it("takes a base layout by one of its sizes, and refuses one that there is not", function()
    for _, case in ipairs {
      { { base_sp = 2 }, 2, 2 }, { { base_tp = 4 }, 1, 4 }, { { base_sp = 2, base_tp = 2 }, 2, 2 }, { {}, 4, 1 },
    } do
      case[1].threshold, case[1].hysteresis = 1, 0
      h.with({ policy = "policies/shift.lua", ranks = 4, params = case[1] }, function(e)
        e:submit { prompt = 300, max_tokens = 3 }
        e:run()
        assert.same({ case[2], case[3] }, { e:schedule()[1].sp, e:schedule()[1].tp })
      end)
    end
    for _, params in ipairs { { base_sp = 3 }, { base_sp = 4, base_tp = 4 }, { base_tp = 8 } } do
      local ok, why = pcall(require("moonshift").engine, { policy = "policies/shift.lua", ranks = 4, params = params })
      assert.is_false(ok)
      local says = "is no layout of all 4 ranks; these run: sp=4,tp=1; sp=2,tp=2; sp=1,tp=4"
      assert.is_truthy(tostring(why):find(says, 1, true), why)
    end
  end)
end)
