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

  -- Few requests for some seconds, then a crowd whose KV is more than there is, then few again.
  local function ebb_and_flood(e)
    local ids = {}
    for k = 1, 300 do ids[#ids + 1] = e:submit { prompt = 100, max_tokens = 60, at = k * 0.05 } end
    for _ = 1, 300 do ids[#ids + 1] = e:submit { prompt = 3000, max_tokens = 200, at = 4 } end
    return ids
  end

  local function pooled(options)
    return auto {
      hardware = "h200x8", model = "llama-3.1-8b", pooled = true, link_gbps = 100, kv_blocks = 7000,
      max_num_seqs = 512, params = options,
    }
  end

  it("copies pooled layers while KV is idle, and gives the memory back when it runs short", function()
    h.with(pooled {}, function(e)
      ebb_and_flood(e)
      e:run_until(3.9)
      local calm = e:state()
      assert.is_true(calm.ffn.replicas >= 8, calm.ffn.replicas .. " layers on every rank")
      assert.is_true(calm.ranks[1].kv.lent > 0)
      e:run_until(13)
      local flood = e:state()
      assert.is_true(flood.ffn.replicas == 0 and flood.ranks[1].kv.lent == 0 and flood.ranks[1].kv.free < 1000)
      e:run()
      assert.is_true(e:state().ffn.replicas >= 8)
      h.clean(e)
    end)
  end)

  it("is sooner done with copies, where steps wait for fetches", function()
    local took = {}
    for _, idle in ipairs { 0.5, 1 } do -- 1: never idle enough
      h.with(pooled { idle = idle }, function(e)
        for k = 1, 200 do e:submit { prompt = 100, max_tokens = 300, at = k * 0.01 } end
        e:run()
        took[#took + 1] = e:now()
      end)
    end
    assert.is_true(took[1] < 0.9 * took[2], took[1] .. " s, and " .. took[2] .. " s all pooled")
  end)

  -- A burst of prompts that are long beside their answers, then answers that are long beside their prompts.
  local function drift(e)
    local ids = {}
    for k = 1, 200 do ids[k] = e:submit { name = "p" .. k, prompt = 2000 + k, max_tokens = 4 } end
    for k = 1, 40 do ids[200 + k] = e:submit { name = "t" .. k, prompt = 60 + k, max_tokens = 300, at = 30 } end
    return ids
  end

  -- Ranks hold shares of the weights, so that a layout is for good, unless the policy changes it.
  local function serve_drift(more)
    local o = {
      hardware = "a10x8", model = "llama-3.1-8b", ranks = 4, sharded = true, start_pp = 4, kv_blocks = 2000,
      host_kv_blocks = 30000, max_num_batched_tokens = 4096, max_num_seqs = 128,
    }
    for k, v in pairs(more) do o[k] = v end
    local seconds, reasons, texts = nil, {}, {}
    h.with(o, function(e)
      local ids = drift(e)
      e:run()
      h.clean(e)
      for i, id in ipairs(ids) do texts[i] = table.concat(e:result(id).tokens, " ") end
      for _, s in ipairs(h.switches(e)) do reasons[#reasons + 1] = s.reason end
      seconds = e:now()
      assert.equal(0, e:state().host_kv.held)
    end)
    return { seconds = seconds, reasons = reasons, texts = texts }
  end

  it("learns phases of prompts and of tokens, sooner than any layout that stays, and no text changes", function()
    local auto_, fastest = serve_drift { policy = "policies/auto.lua" }, math.huge
    local fixed_ones = {
      { start_pp = 4 }, { start_pp = 2, start_tp = 2 }, { start_pp = 1, start_tp = 4 }, { start_pp = 1, start_tp = 2 },
    }
    for _, o in ipairs(fixed_ones) do
      o.policy = "policies/fcfs.lua"
      local fixed = serve_drift(o)
      fastest = math.min(fastest, fixed.seconds)
      assert.same(fixed.texts, auto_.texts)
    end
    assert.is_true(auto_.seconds < fastest, auto_.seconds .. " s, fixed " .. fastest)
    assert.is_truthy(table.concat(auto_.reasons, "; "):match("would have saved"))
  end)

  it("keeps its stages when told so", function()
    assert.equal(0, #serve_drift { policy = "policies/auto.lua", params = { phases = false } }.reasons)
  end)
end)
