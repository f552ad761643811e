-- Weights that are re-sharded, as policies and operators meet it: what an order costs and what it is refused for, what
-- comes beside the steps and what a group waits for, what becomes of an order that is dropped or whose policy goes.
-- That no text changes on ranks that compute is the matter of tests/layout/reshard.c.
local h = require("helper")

-- A policy that runs this code in each step, then decodes and prefills like fcfs.
local function policy(code)
  return [[
    local n, node = 0
    return {
      api = 1, doc = "test",
      start = function(facts) node, n = facts, 0 end,
      step = function(view, act, p)
        n = n + 1
        local group = view.groups[1]
        if node.residency == "sharded" then -- dry runs are not
          ]] .. code .. [[
        end
        for _, idle in ipairs(view.idle) do
          local batch = act.batch(idle)
          if batch then
            batch:decodes()
            batch:prefill(view.waiting, 2048)
            if batch.tokens > 0 then act.forward(idle, batch) end
          end
        end
      end,
    }]]
end

-- llama-3.1-8b in stages on four described devices: 3.5 GB of the layers on each.
local function options(source, more)
  local o = {
    source = source, name = "test", hardware = "a10x8", model = "llama-3.1-8b", ranks = 4, sharded = true,
    start_pp = 4, kv_blocks = 4000,
  }
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

local function load(e)
  local ids = {}
  for i = 1, 6 do ids[i] = e:submit { name = "r" .. i, prompt = 100 + 10 * i, max_tokens = 40, at = 0.001 * i } end
  return ids
end

local function bytes(e) return h.metric(e, "moonshift:weights_resharded_bytes_total") end

-- What this code asserts in the first step holds.
local function holds(code, more)
  h.with(options(policy("if n == 1 then " .. code .. " end"), more), function(e)
    load(e)
    e:run()
    h.clean(e)
  end)
end

describe("a made-up step", function()
  it("is estimated as a batch of that size is", function()
    holds [[
      local batch, prompts = act.batch(group), {}
      batch:prefill(view.waiting, 110)
      local as, was = { prompt = batch.tokens, prompts = 1 }, view.estimate(group, nil, batch)
      assert(batch.tokens == 110 and math.abs(view.estimate(group, nil, as) / was - 1) < 1e-9)
      local more = view.estimate(group, nil, { prompt = 110, decodes = 20, context = 1000 })
      assert(more > was and view.estimate(group, nil, { prompt = 110, prompts = 9 }) > was)
      assert(view.estimate(group, nil, { decodes = 20, context = 9000 }) > view.estimate(group, nil, { decodes = 20 }))
      assert(view.estimate(group, nil, { prompt = 2^24, prompts = 4096 }) > was)
      act.wake(1)
    ]]
  end)
end)

describe("weights that ranks hold a share of", function()
  it("cost before they move: bytes, time, and the time that nothing hides", function()
    holds [[
      assert(node.residency == "sharded" and node.shard_bytes > 6e9 and node.shard_bytes < 8e9)
      assert(group.weights.pp == 4 and group.weights.tp == 1)
      assert(view.estimate_move(0) >= 0 and view.estimate_move(2000) > view.estimate_move(1000))
      assert(view.estimate_move(2000, "host") > view.estimate_move(1000, "host"))
      local cost = view.estimate_reshard(group, { tp = 4 })
      assert(cost.bytes > 13.9e9 and cost.bytes < 14.1e9, cost.bytes)
      assert(cost.ms > 0 and cost.stop_ms == 0)
      assert(view.estimate_reshard(group, { pp = 4 }).bytes == 0)
    ]]
    holds([[
      local cost = view.estimate_reshard(group, { tp = 4 })
      assert(cost.stop_ms > 0.8 * cost.ms, cost.stop_ms .. " of " .. cost.ms)
    ]], { shard_memory = 3800000000 })
  end)

  it("refuse a layout that is not there with the bytes that would have to move", function()
    holds [[
      local batch = act.batch(group)
      batch:prefill(view.waiting, 100)
      local ok, why = act.forward(group, batch, { pp = 2, tp = 2 })
      assert(not ok and why == "the group's ranks hold the weights of sp 1, tp 1, pp 4: 13312.0 MiB would have to " ..
        "move (act.reshard)", why)
      assert(act.weights(group, { pp = 4 }).ready)
      ok, why = act.bind({ 0, 1 })
      assert(not ok and #why > 40, why)
      ok, why = act.reshard(group, { tp = 1, sp = 4 })
      assert(not ok and why == "a rank would hold 13312.0 MiB of the layers, and has room for 6656.0: --shard-" ..
        "memory gives more", why)
      assert(act.forward(group, batch))
    ]]
  end)

  it("come beside the steps, so that nobody waits for them", function()
    local texts = h.texts({ policy = "policies/fcfs.lua", hardware = "a10x8", model = "llama-3.1-8b" }, load)
    h.with(options(policy [[if n == 3 then assert(act.reshard(group, { tp = 4 })) end]]), function(e)
      local ids = load(e)
      e:run()
      h.clean(e)
      for i, id in ipairs(ids) do assert.equal(texts[i], table.concat(e:result(id).tokens, " ")) end
      local switch = h.switches(e)[1]
      assert.equal("ready", switch.when)
      local during, after = 0, 0
      for _, step in ipairs(e:schedule()) do
        if step.at >= switch.at - switch.waited and step.at < switch.at then during = during + 1 end
        if step.at > switch.at then
          after = after + 1
          assert.equal(4, step.tp)
        end
      end
      assert.is_true(during > 3 and after > 10, during .. " and " .. after)
      assert.is_true(bytes(e) > 13.9e9)
    end)
  end)

  it("stop the group where there is no room beside the old ones, and then only", function()
    local waited = {}
    for _, room in ipairs { 0, 3800000000 } do
      h.with(options(policy [[if n == 3 then assert(act.reshard(group, { tp = 4 })) end]], { shard_memory = room }),
        function(e)
          load(e)
          e:run()
          h.clean(e)
          local longest, last = 0, nil
          for _, step in ipairs(e:schedule()) do
            longest = math.max(longest, last and step.at - last or 0)
            last = step.at
          end
          waited[#waited + 1] = longest
        end)
    end
    assert.is_true(waited[1] < 0.2 and waited[2] > 0.25, waited[1] .. " and " .. waited[2])
  end)

  it("are dropped with the order that wanted them", function()
    h.with(options(policy [[
      if n == 3 then assert(act.reshard(group, { tp = 4 })) end
      if n == 6 then
        assert(#view.pending == 1 and view.pending[1].weights.tp == 4)
        assert(act.reshard(group, group.weights)) -- what is: the order that waits goes
      end
    ]]), function(e)
      load(e)
      e:run()
      h.clean(e)
      assert.equal(0, #h.switches(e))
      local sharded = e:state().sharded
      assert.equal(0, #sharded.coming)
      for _, rank in ipairs(sharded.ranks) do
        assert.equal(0, rank.staged)
        assert.equal(4, rank.layout.pp)
      end
      assert.is_true(bytes(e) > 0 and bytes(e) < 13e9)
    end)
  end)

  it("go with the policy that asked for them, and other policies run in what is there", function()
    h.with(options(policy [[if n == 3 then assert(act.reshard(group, { tp = 4 }, { when = "hard" })) end]]), function(e)
      load(e)
      e:run_until(4)
      assert.is_true(e:swap { policy = "policies/fcfs.lua" })
      for i = 1, 6 do e:submit { name = "s" .. i, prompt = 100, max_tokens = 20, at = 4 + 0.001 * i } end
      e:run()
      h.clean(e)
      local steps = e:schedule()
      assert.equal(4, steps[#steps].pp) -- stages are as the node began
      assert.equal(4, e:state().sharded.ranks[1].layout.pp)
    end)
  end)

  it("are loaded again by those that live when a rank fails", function()
    local texts = h.texts({ policy = "policies/fcfs.lua", hardware = "a10x8", model = "llama-3.1-8b" }, load)
    h.with(options(policy "", { fail_rank = 2, fail_at_step = 8 }), function(e)
      local ids = load(e)
      e:run()
      h.clean(e)
      for i, id in ipairs(ids) do assert.equal(texts[i], table.concat(e:result(id).tokens, " ")) end
      assert.is_true(bytes(e) > 10e9)
    end)
  end)
end)
