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

  -- Eight described ranks.
  local function node(options)
    options = auto(options or {})
    options.hardware, options.model, options.ranks = "h200x8", "llama-3.3-70b-fp8", 8
    options.max_num_seqs, options.kv_blocks = 256, options.kv_blocks or 5600
    return options
  end

  -- A few requests, and every `every` seconds so many at once.
  local function waves(e, n, every, crowded)
    local ids = {}
    for wave = 1, n do
      for k = 1, crowded do
        ids[#ids + 1] = e:submit { prompt = 2000 + k * 97 % 3000, max_tokens = 20 + k * 13 % 60, at = wave * every }
      end
      ids[#ids + 1] = e:submit { prompt = 500, max_tokens = 300, at = (wave + 0.6) * every }
    end
    return ids
  end

  -- When the partition changed: orders that were carried out together count once.
  local function changes(e)
    local n, last = 0, nil
    for _, s in ipairs(h.switches(e)) do
      if s.at ~= last then n, last = n + 1, s.at end
    end
    return n
  end

  it("splits the ranks under a burst, says why, and puts them together again in quiet", function()
    h.with(node(), function(e)
      waves(e, 1, 1, 80)
      e:run_until(0.9)
      assert.equal("8", h.sizes(e))
      e:run_until(2.5)
      assert.is_true(#e:groups() > 1, h.sizes(e))
      assert.is_truthy(h.switches(e)[1].reason:match("^auto: %d|%d: [%d.]+ s of [%d.]+ less, the way there and back"))
      e:submit { prompt = 500, max_tokens = 300, at = 30 }
      e:run()
      assert.equal("8", h.sizes(e))
      h.clean(e)
    end)
  end)

  it("puts ranks together when the prompts of a batch are done, and not before", function()
    h.with(node(), function(e)
      local ids, last = {}, 0
      for k = 1, 60 do ids[k] = e:submit { prompt = 3000, max_tokens = 100, at = 1 } end
      e:run()
      for _, id in ipairs(ids) do last = math.max(last, e:result(id).first_token_at) end
      local apart, together
      for _, s in ipairs(h.switches(e)) do
        if #s.ranks == 1 then apart = s.at elseif apart then together = together or s.at end
      end
      assert.is_true(together >= last, string.format("%.2f s, the last prompt %.2f", together, last))
      h.clean(e)
    end)
  end)

  local function takes_turns(model, ranks, host)
    local last, turns, texts = {}, 0, {}
    for _, policy in ipairs { "auto", "fcfs", "seesaw" } do
      local options = {
        policy = "policies/" .. policy .. ".lua", hardware = "a10x8", model = model, ranks = ranks, sharded = true,
        start_pp = ranks, kv_blocks = 720, host_kv_blocks = host, max_num_seqs = 512, max_num_batched_tokens = 8192,
        starvation_s = 0,
      }
      h.with(options, function(e)
        local ids, text = {}, {}
        for i = 1, 150 do ids[i] = e:submit { name = "r" .. i, prompt = 2000 + 9 * i, max_tokens = 60 + i } end
        e:run()
        h.clean(e)
        last[policy] = 0
        for i, id in ipairs(ids) do
          local r = e:result(id)
          assert.equal("length", r.ending)
          last[policy], text[i] = math.max(last[policy], r.ended_at), table.concat(r.tokens, " ")
        end
        texts[policy] = table.concat(text, "\n")
        for _, s in ipairs(policy == "auto" and h.switches(e) or {}) do
          turns = turns + (s.reason:find("auto: prefill") and 1 or 0)
        end
      end)
    end
    assert.is_true(turns >= 1)
    local ends = string.format("auto %.1f s, fcfs %.1f, seesaw %.1f", last.auto, last.fcfs, last.seesaw)
    assert.is_true(last.auto < 0.85 * last.fcfs and last.auto < 1.1 * last.seesaw, ends)
    assert.equal(texts.fcfs, texts.auto)
  end

  it("lets prompts and tokens take turns in a long queue, where that is sooner done, and no text changes", function()
    takes_turns("llama-3-15b", 4, 60000)
  end)

  it("does so without host memory, where little KV finds room to move", function()
    takes_turns("codellama-34b", 8, 0)
  end)

  it("ends any queue where groups have stages, as seesaw does, whatever rank fails", function()
    local function pick(t) return t[math.random(#t)] end
    for seed = 1, 12 do
      math.randomseed(seed)
      local policy, ranks, gap = pick { "auto", "auto", "seesaw" }, pick { 2, 4, 8 }, pick { 0, 0.01, 0.2 }
      local longest, answers = pick { 60, 400, 1500 }, pick { 4, 60, 200 }
      local options = {
        policy = "policies/" .. policy .. ".lua", hardware = pick { "a10x8", "l4x8" }, model = "llama-3.1-8b",
        ranks = ranks, sharded = true, start_pp = pick { 1, 2 }, kv_blocks = pick { 300, 720, 2000 },
        host_kv_blocks = pick { 0, 1000, 30000 }, max_num_seqs = pick { 32, 512 }, starvation_s = pick { 0, 30 },
        max_num_batched_tokens = pick { 512, 8192 },
      }
      if seed % 3 == 0 then options.fail_rank, options.fail_at_step = math.random(ranks) - 1, math.random(300) end
      h.with(options, function(e)
        local ids = {}
        for i = 1, 60 do
          ids[i] = e:submit {
            name = "r" .. i, prompt = math.random(longest), max_tokens = math.random(answers), at = gap * i,
            priority = math.random(30) == 1 and -1 or 0, offline = math.random(10) == 1,
          }
        end
        e:run()
        local state, what = e:state(), policy .. ", seed " .. seed
        if not options.fail_rank then h.clean(e) end
        for _, id in ipairs(ids) do
          local ending = e:result(id).ending
          assert.is_true(ending == "length" or options.fail_rank and ending == "error", what .. ": " .. ending)
        end
        assert.equal(0, state.kv.held, what)
        if state.host_kv then assert.equal(0, state.host_kv.held, what) end
      end)
    end
  end)

  it("is sooner done with bursts than one group, and than eight", function()
    local mean = {}
    for _, o in ipairs {
      { policy = "policies/auto.lua" }, { policy = "policies/shift.lua" },
      { policy = "policies/static.lua", params = { dp = 8 } },
    } do
      local options = node()
      options.policy, options.params = o.policy, o.params
      h.with(options, function(e)
        local sum, ids = 0, waves(e, 4, 12, 80)
        e:run()
        for _, id in ipairs(ids) do sum = sum + e:result(id).ended_at end
        mean[#mean + 1] = sum / #ids
      end)
    end
    assert.is_true(mean[1] < math.min(mean[2], mean[3]), table.concat(mean, " "))
  end)

  it("splits no ranks off that hold no request, where KV is short", function()
    local last = {}
    for i, policy in ipairs { "auto", "shift" } do
      local options = node { kv_blocks = 53 }
      options.hardware, options.policy = "h100x8-fitted", "policies/" .. policy .. ".lua"
      h.with(options, function(e)
        local ids = {}
        for k = 1, 60 do ids[k] = e:submit { prompt = 3000, max_tokens = 100, at = 1 } end
        e:run()
        last[i] = 0
        for _, id in ipairs(ids) do last[i] = math.max(last[i], e:result(id).ended_at) end
        h.clean(e)
      end)
    end
    assert.is_true(last[1] < 1.5 * last[2], string.format("%.1f s, shift %.1f", last[1], last[2]))
  end)

  it("does not flap: a wave costs a few changes, whatever the time between waves", function()
    for _, every in ipairs { 1, 4, 12 } do
      h.with(node(), function(e)
        waves(e, 10, every, 60)
        e:run()
        assert.is_true(changes(e) <= 60, changes(e) .. " changes in 10 waves, one in " .. every .. " s")
        h.clean(e)
      end)
    end
  end)

  it("changes no text by what it switches, and decides the same in every run", function()
    local texts, schedules = {}, {}
    for i, policy in ipairs { "auto", "auto", "fcfs" } do
      local options = node()
      options.policy = "policies/" .. policy .. ".lua"
      h.with(options, function(e)
        local ids = waves(e, 3, 4, 40)
        e:run()
        h.clean(e)
        assert.is_true(policy == "fcfs" or changes(e) > 0)
        local all = {}
        for k, id in ipairs(ids) do all[k] = table.concat(e:result(id).tokens, " ") end
        texts[i], schedules[i] = all, e:schedule()
      end)
    end
    assert.same(texts[1], texts[3])
    assert.same(schedules[1], schedules[2])
  end)

  it("serves a request that no narrow group holds, in the middle of a burst", function()
    h.with(node { kv_blocks = 400 }, function(e)
      waves(e, 2, 2, 60)
      local long = e:submit { prompt = 40000, max_tokens = 50, at = 2.5 }
      e:run()
      assert.equal("length", e:result(long).ending, e:result(long).why)
      h.clean(e)
    end)
  end)

  it("serves a premium request sooner than others, in at least half of the ranks", function()
    local ended = {}
    for i, priority in ipairs { 0, -1 } do
      h.with(node(), function(e)
        waves(e, 2, 3, 80)
        local one = e:submit { name = "vip", prompt = 1000, max_tokens = 200, priority = priority, at = 3.3 }
        e:run()
        h.clean(e)
        ended[i] = e:result(one).ended_at
        for _, step in ipairs(e:schedule()) do
          if priority < 0 and (" " .. h.names(step) .. " "):find(" vip ", 1, true) then
            assert.is_true(#step.ranks >= 4, #step.ranks .. " ranks")
          end
        end
      end)
    end
    assert.is_true(ended[2] < 0.8 * ended[1] + 0.2 * 3.3, ended[2] .. " s, others " .. ended[1])
  end)

  it("keeps one group where weights are in shares, and does not look further", function()
    h.with(node { sharded = true }, function(e)
      waves(e, 1, 1, 60)
      e:run()
      assert.equal("8", h.sizes(e))
      h.clean(e)
    end)
  end)
end)
