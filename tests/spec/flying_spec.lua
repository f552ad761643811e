local h = require("helper")

local function flying(options)
  options.policy = "policies/flying.lua"
  options.ranks = options.ranks or 4
  return options
end

local function crowd(e, n, at, every)
  local ids = {}
  for k = 1, n do
    ids[k] = e:submit { prompt = 1 + k * 37 % 150, max_tokens = 20 + k * 13 % 30, at = at + k * (every or 0) }
  end
  return ids
end

-- The widest and the narrowest group that took a step in this time.
local function widths(e, from, to)
  local least, most = 1e9, 0
  for _, step in ipairs(e:schedule()) do
    if step.at >= from and step.at < to then least, most = math.min(least, #step.ranks), math.max(most, #step.ranks) end
  end
  return least, most
end

describe("flying", function()
  it("is wide for few requests, narrow for many, and wide again when it is idle", function()
    h.with(flying { params = { min_gap_ms = 20 } }, function(e)
      crowd(e, 2, 0.05)
      crowd(e, 80, 0.2)
      crowd(e, 1, 2)
      e:run_until(0.15)
      assert.equal("4", h.sizes(e))
      e:run_until(0.23)
      assert.equal("1 1 1 1", h.sizes(e))
      e:run_until(1.9) -- nobody is here: it has switched all the same
      assert.equal("4", h.sizes(e))
      e:run()
      assert.same({ 1, 1 }, { widths(e, 0.21, 0.25) })
      assert.same({ 4, 4 }, { widths(e, 2, 3) })
      h.clean(e)
    end)
  end)

  it("is narrow for a crowd of which nobody waits, when it shall count those who run", function()
    for crowded, sizes in pairs { [0] = "4", [12] = "1 1 1 1" } do
      h.with(flying { max_num_seqs = 64, params = { crowd = crowded, many = 64, min_gap_ms = 20 } }, function(e)
        for k = 1, 16 do e:submit { prompt = 20, max_tokens = 200, at = 0.05 + k * 0.01 } end
        e:run_until(0.4)
        assert.equal(sizes, h.sizes(e))
        e:run()
        h.clean(e)
      end)
    end
  end)

  it("does not switch more often than it may", function()
    h.with(flying { params = { min_gap_ms = 100 } }, function(e)
      for burst = 0, 19 do crowd(e, burst % 2 == 0 and 40 or 1, burst * 0.03) end
      e:run()
      local last
      for _, s in ipairs(h.switches(e)) do
        if last and s.at ~= last then assert.is_true(s.at - last >= 0.0999, s.at .. " after " .. last) end
        last = s.at
      end
      assert.is_true(#h.switches(e) >= 2)
      h.clean(e)
    end)
  end)

  it("gives a premium request a wide group, softly, hard, or when the others have ended", function()
    local first = {}
    for _, how in ipairs { "soft", "hard", "drain" } do
      h.with(flying {
        group_size = 1, params = { how = how, few = 0, many = 1000, min_gap_ms = 0, patience_ms = 5000 },
      }, function(e)
        for i = 1, 4 do e:submit { name = "old" .. i, prompt = 40, max_tokens = 150 } end
        local vip = e:submit { name = "vip", prompt = 400, max_tokens = 40, priority = -1, at = 0.05 }
        e:run()
        first[how] = e:result(vip).first_token_at
        local wide = false
        for _, step in ipairs(e:schedule()) do
          for _, item in ipairs(step.items) do wide = wide or (item.name == "vip" and #step.ranks == 4) end
        end
        assert.equal(how ~= "soft" or wide, wide) -- softly, it may have ended before the others did
        local asked -- softly, it may also have ended before the wide group was there: then its order has ended with it
        for _, s in ipairs(e:switches()) do asked = asked or s.reason ~= "start" and s or nil end
        assert.equal("a premium request", asked.reason:sub(9))
        assert.equal(how == "soft" and not wide, asked.superseded)
        h.clean(e)
      end)
    end
    assert.is_true(first.hard < 0.06 and first.soft < 0.06, first.hard .. " and " .. first.soft)
    assert.is_true(first.drain > 0.15, first.drain)
  end)

  it("migrates a premium request that began on a free rank into its wide group", function()
    h.with(flying { group_size = 1, params = { few = 0, many = 1000, min_gap_ms = 0, patience_ms = 5000 } }, function(e)
      for i = 1, 3 do e:submit { name = "old" .. i, prompt = 40, max_tokens = 30 } end
      local vip = e:submit { name = "vip", prompt = 40, max_tokens = 200, priority = -1, at = 0.01 }
      e:run()
      local sizes = {}
      for _, step in ipairs(e:schedule()) do
        for _, item in ipairs(step.items) do
          if item.name == "vip" then sizes[#step.ranks] = (sizes[#step.ranks] or 0) + 1 end
        end
      end
      assert.is_true((sizes[1] or 0) > 5 and (sizes[4] or 0) > 100)
      assert.equal(200, #e:result(vip).tokens)
      assert.equal(1, h.switches(e)[1].moved)
      h.clean(e)
    end)
  end)

  it("gives a request that no group can hold the narrowest group that can", function()
    -- 640 tokens a rank
    h.with(flying { kv_blocks = 40, group_size = 1, params = { few = 0, min_gap_ms = 0 } }, function(e)
      local ids = crowd(e, 12, 0, 0.002)
      ids[#ids + 1] = e:submit { name = "long", prompt = 1000, max_tokens = 20, at = 0.01 }
      e:run()
      for _, step in ipairs(e:schedule()) do
        for _, item in ipairs(step.items) do if item.name == "long" then assert.equal(2, #step.ranks) end end
      end
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      h.clean(e)
    end)
  end)

  it("starves nobody, with premium requests that never end", function()
    h.with(flying { params = { min_gap_ms = 10, ageing = 0.05 }, max_num_seqs = 4 }, function(e)
      local plain = crowd(e, 10, 0.05)
      for k = 0, 99 do e:submit { priority = -1, prompt = 30, max_tokens = 20, at = k * 0.01 } end
      e:run_until(1)
      for _, id in ipairs(plain) do assert.equal("length", e:result(id).ending) end
      e:run()
      h.clean(e)
    end)
  end)

  it("changes no text, whatever it does with the KV", function()
    local function load(e)
      local ids = crowd(e, 60, 0.01, 0.004)
      for k = 1, 6 do ids[#ids + 1] = e:submit { priority = -1, prompt = 100 * k, max_tokens = 30, at = k * 0.05 } end
      return ids
    end
    local plain = h.texts({ policy = "policies/fcfs.lua", model = "tests/data/sim_ranks.json" }, load)
    for _, kv in ipairs { "migrate", "park", "recompute" } do
      for _, how in ipairs { "soft", "hard", "drain" } do
        local options = flying {
          params = { kv = kv, how = how, min_gap_ms = 5, patience_ms = 30, many = 4 }, park_s = 0.05, kv_blocks = 120,
        }
        assert.same(plain, h.texts(options, load), kv .. " " .. how)
      end
    end
  end)

  it("goes on when a rank fails", function()
    h.with(flying { fail_rank = 2, fail_at_step = 20, params = { min_gap_ms = 5, many = 4 } }, function(e)
      local ids = crowd(e, 40, 0, 0.002)
      e:run()
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      for _, group in ipairs(e:groups()) do
        for _, rank in ipairs(group.ranks) do assert.not_equal(2, rank) end
      end
      h.clean(e)
    end)
  end)

  it("refuses widths that no group can have", function()
    for _, params in ipairs { { narrow = 3 }, { narrow = 8 }, { premium_width = 3 } } do
      local ok, why = pcall(require("moonshift").engine, { policy = "policies/flying.lua", ranks = 4, params = params })
      assert.is_false(ok)
      assert.is_truthy(tostring(why):find("on 4 ranks a group can have 1, 2, 4 of them", 1, true), why)
    end
  end)
end)
