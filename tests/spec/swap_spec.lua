local h = require("helper")
local moonshift = require("moonshift")

local POLICIES = { "policies/fcfs.lua", "policies/priority.lua", "policies/fair.lua" }

local function load_of_requests(e)
  local ids = {}
  for k = 1, 64 do
    ids[k] = e:submit {
      prompt = 1 + k * 37 % 150, max_tokens = 20 + k * 13 % 30, at = k * 0.002, priority = k % 5 - 2,
      tenant = "t" .. k % 3,
    }
  end
  return ids
end

describe("a swap", function()
  it("loses no token and changes no text, however often it happens", function()
    local texts = {}
    for run = 1, 2 do
      h.with({ policy = POLICIES[1], max_num_seqs = 8, max_num_batched_tokens = 64, kv_blocks = 60 }, function(e)
        local ids = load_of_requests(e)
        for i = 1, 200 do
          e:run_until(i * 0.002)
          if run == 2 then assert.is_true(e:swap { policy = POLICIES[i % 3 + 1] }) end
        end
        e:run()
        h.clean(e)
        texts[run] = {}
        for i, id in ipairs(ids) do
          assert.equal("length", e:result(id).ending)
          texts[run][i] = e:result(id).tokens
        end
      end)
    end
    assert.same(texts[1], texts[2])
  end)

  it("hands over what was exported, and no shipped policy takes what is not of use to it", function()
    local takers = { "daynight", "fair", "shortest" }
    local strangers = { "true", "7", "'x'", "{ clock = 'x', guess = 1, day = {} }", "{ t0 = 1, guess = { t0 = 5 } }" }
    local befores = {}
    for _, name in ipairs(takers) do befores[#befores + 1] = { policy = "policies/" .. name .. ".lua" } end
    for _, state in ipairs(strangers) do
      local source = io.open("policies/fcfs.lua"):read("*a"):gsub("  tests = {.*", "")
      source = source .. "  export = function() return " .. state .. " end }"
      befores[#befores + 1] = { name = "other", source = source }
    end
    for _, before in ipairs(befores) do
      for _, after in ipairs(takers) do
        h.with({ policy = "policies/fcfs.lua", max_num_seqs = 2 }, function(e)
          assert.is_true(e:swap(before))
          load_of_requests(e)
          e:run_until(0.05)
          assert.is_true(e:swap { policy = "policies/" .. after .. ".lua" })
          e:run()
          h.clean(e)
        end)
      end
    end
  end)

  it("lets late urgent requests overtake from the next step on", function()
    h.with({ policy = "policies/fcfs.lua", max_num_seqs = 1 }, function(e)
      for i = 1, 5 do e:submit { name = "old" .. i, priority = 5, max_tokens = 5 } end
      e:submit { name = "urgent", priority = -5, at = 0.001 }
      e:run_until(0.002)
      assert.is_true(e:swap { policy = "policies/priority.lua", params = { preempt = false } })
      e:run()
      assert.same({ "old1", "urgent" }, { unpack(h.started(e), 1, 2) })
    end)
  end)

  it("is refused with the file, the line and the reason, and the old policy goes on", function()
    h.with({ policy = "policies/fcfs.lua" }, function(e)
      local id = e:submit { max_tokens = 30 }
      e:run_until(0.01)
      for source, why in pairs {
        ["return {\n  api = 1, doc = 'x', step = function(view, act, p)\n    act.forwrad(1)\n  end }"] =
          "bad.lua:3: act has no 'forwrad'; did you mean 'forward'?",
        ["return {\n  api = 1,, }"] = "bad.lua:2: unexpected symbol near ','",
        ["local x = 1\nlocal t = os.time()\nreturn {}"] = "bad.lua:2: 'os' is not offered",
        ["return { api = 1, doc = 'x', stp = function() end }"] = "bad.lua: unknown field 'stp'; did you mean 'step'?",
        ["return { api = 1, doc = 'x', step = function() end }"] = "bad.lua: step runs nothing",
      } do
        local ok, err = e:swap { source = source, name = "bad" }
        assert.is_nil(ok)
        assert.equal(why, err:sub(1, #why))
      end
      assert.equal("fcfs", e:state().policy.active.name)
      e:run()
      assert.equal("length", e:result(id).ending)
    end)
  end)

  it("can be undone", function()
    h.with({ policy = "policies/fcfs.lua" }, function(e)
      assert.is_true(e:swap { policy = "policies/fair.lua" })
      assert.equal("fair", e:state().policy.active.name)
      assert.is_true(e:rollback())
      assert.equal("fcfs", e:state().policy.active.name)
    end)
  end)
end)

describe("what a policy has ordered", function()
  local CLOSER = [[return { api = 1, doc = "closes all", step = function(view, act)
    for _, g in ipairs(view.groups) do if view.step > 3 and not g.closed then act.preempt(g, "drain") end end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes() b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
    act.wake(50)
  end }]]

  it("does not outlive it: closed groups open when it goes", function()
    h.with({ policy = "policies/fcfs.lua", ranks = 4, group_size = 2 }, function(e)
      assert.is_true(e:swap { source = CLOSER, name = "closer" })
      local ids = {}
      for i = 1, 12 do ids[i] = e:submit { prompt = 20, max_tokens = 10, at = i * 0.005 } end
      e:run_until(0.5)
      assert.is_true(e:state().n_waiting > 0)
      assert.is_true(e:swap { policy = "policies/fcfs.lua" })
      e:run_until(1)
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      for _, g in ipairs(e:state().groups) do assert.is_false(g.closed) end
    end)
  end)

  it("comes back with it: a rollback to shift is one to a group of all ranks", function()
    h.with({ policy = "policies/shift.lua", ranks = 4 }, function(e)
      for i = 1, 8 do e:submit { prompt = 50, max_tokens = 200 } end
      e:run_until(0.02)
      assert.equal("4", h.sizes(e))
      assert.is_true(e:swap { policy = "policies/static.lua", params = { dp = 4 } })
      e:run_until(0.04)
      assert.equal("1 1 1 1", h.sizes(e))
      assert.is_true(e:rollback())
      e:run_until(0.06)
      assert.equal("shift", e:state().policy.active.name)
      assert.equal("4", h.sizes(e))
      e:run()
      h.clean(e)
    end)
  end)
end)

describe("a swap between policies for many ranks", function()
  it("changes partitions and no text", function()
    local all = {
      { "shift" }, { "static", { dp = 4, tp = 1 } }, { "fcfs" }, { "auto" }, { "static", { dp = 2, sp = 2, tp = 1 } },
      { "flying", { many = 1, few = 0, min_gap_ms = 0 } }, { "priority" }, { "static", { sp = 2, tp = 2 } }, { "fair" },
    }
    local plain = h.texts({ policy = POLICIES[1], model = "tests/data/sim_ranks.json" }, load_of_requests)
    local machine = { policy = POLICIES[1], ranks = 4, group_size = 1, prefix_caching = true, kv_blocks = 120 }
    local swapped = h.texts(machine, function(e)
      local ids = load_of_requests(e)
      for i = 1, 60 do
        e:run_until(i * 0.004)
        local name, params = unpack(all[i % #all + 1])
        assert.is_true(e:swap { policy = "policies/" .. name .. ".lua", params = params })
      end
      assert.is_true(e:state().n_switches > 10)
      return ids
    end)
    assert.same(plain, swapped)
  end)
end)

describe("the report of a check", function()
  it("names the cost of each hook", function()
    for _, name in ipairs { "fcfs", "priority", "fair", "shift", "flying", "static", "auto" } do
      local file = "policies/" .. name .. ".lua"
      local f = assert(io.open(file))
      local report = assert(moonshift.check(f:read("*a"), file:match("(%w+)%.lua"), "policies"))
      f:close()
      assert.is_truthy(report:find("two fresh machines decide the same", 1, true))
      assert.is_truthy(report:find("dry runs on 2, 4 and 8 ranks: the same", 1, true), report)
      local costs = {}
      for n, step in report:gmatch("\n%s+(%d+)%s+(%d+)%s+%d+%s+%d+") do costs[tonumber(n)] = tonumber(step) end
      assert.is_true(costs[8] > 0 and costs[64] > 0)
      -- what a shipped policy does in a step does not grow with the queue
      assert.is_true(costs[512] <= 500, file .. ": " .. tostring(costs[512]) .. " bytecodes at 512 requests")
    end
  end)
end)
