local h = require("helper")

-- Four H200, whose link decides from which batch on a step hides its fetches.
local function sidp(options)
  local o = {
    policy = "policies/sidp.lua", hardware = "h200x8", model = "llama-3.1-8b", ranks = 4, pooled = true,
    kv_blocks = 4000, max_num_seqs = 4096, link_gbps = 200,
  }
  for k, v in pairs(options or {}) do o[k] = v end
  return o
end

-- A job: all of it is there at once, and it gets smaller and smaller.
local function job(e, n)
  local ids = {}
  for i = 1, n do ids[i] = e:submit { prompt = 100 + i * 37 % 200, max_tokens = 20 + i * 53 % 180 } end
  return ids
end

-- Steps by way; and of each group, by its first rank, the batch with which it changed its way for the last time, and
-- how often it did.
local function ways(e)
  local n, at, last, changes = { was = 0, cas = 0, mixed = 0, ["local"] = 0 }, {}, {}, {}
  for _, step in ipairs(e:schedule()) do
    local rank = step.ranks[1]
    n[step.ffn] = n[step.ffn] + 1
    if last[rank] and last[rank] ~= step.ffn then at[rank], changes[rank] = step.tokens, (changes[rank] or 0) + 1 end
    last[rank] = step.ffn
  end
  return n, at, changes
end

local function run(options, n)
  local result = {}
  h.with(sidp(options), function(e)
    job(e, n)
    e:run()
    h.clean(e)
    result.ends = e:now()
    result.n, result.at, result.changes = ways(e)
  end)
  return result
end

describe("sidp", function()
  it("fetches while the batch is large, and sends rows in the tail", function()
    local job = run({}, 400)
    assert.is_true(job.n.was > 40 and job.n.cas > 400, job.n.was .. " and " .. job.n.cas)
    for rank = 0, 3 do assert.is_true(job.changes[rank] <= 3, job.changes[rank] .. " changes of rank " .. rank) end
    local fetching = run({ policy = "policies/fcfs.lua", group_size = 1 }, 400)
    assert.equal(0, fetching.n.cas)
    assert.is_true(job.ends < 0.4 * fetching.ends, job.ends .. " s, and " .. fetching.ends .. " s by fetching only")
  end)

  it("measures where the line runs: a faster link hides its fetches behind smaller batches", function()
    local before = math.huge
    for _, gbps in ipairs { 450, 900, 1500 } do
      local job = run({ link_gbps = gbps }, 400)
      assert.is_true(job.at[0] < before, gbps .. ": " .. job.at[0] .. ", before: " .. before)
      before = job.at[0]
    end
  end)

  it("fetches always where no step waits", function()
    local job = run({ link_gbps = 100000 }, 100)
    assert.equal(0, job.n.cas)
    assert.is_true(job.n.was > 0)
  end)

  it("sends rows from the beginning where there is little to do", function()
    local few = run({}, 4)
    assert.is_true(few.n.cas > 20 * few.n.was, few.n.cas .. " and " .. few.n.was)
  end)

  it("does not change with every batch that lies on the other side", function()
    local changes = {}
    for i, params in ipairs { { patience_ms = 0, margin = 0 }, { patience_ms = 100 } } do
      params.quiet_ms = 3600000
      h.with(sidp { link_gbps = 450, params = params }, function(e)
        for _ = 1, 70 * 4 do e:submit { prompt = 16, max_tokens = 1500 } end
        for wave = 1, 12 do -- as many again come and go
          for _ = 1, 800 do e:submit { prompt = 16, max_tokens = 6, at = 0.5 + wave * 0.3 } end
        end
        e:run()
        h.clean(e)
        changes[i] = select(3, ways(e))[0] or 0
      end)
    end
    assert.is_true(changes[1] >= 10, changes[1] .. " changes without hysteresis")
    assert.is_true(changes[2] <= 4, changes[2] .. " changes with it")
  end)

  it("does not wait for long in a tail", function()
    local patient = run({ params = { patience_ms = 60000, quiet_ms = 3600000, least = 0 } }, 400)
    assert.equal(0, patient.n.cas)
    local tail = run({ params = { patience_ms = 60000, quiet_ms = 100, least = 0 } }, 400)
    assert.is_true(tail.n.cas > 200, tail.n.cas .. " steps send rows")
  end)

  it("sends the rows of some layers only when told so", function()
    local job = run({ params = { first = 16, last = 31 } }, 40)
    assert.is_true(job.n.mixed > 0)
    assert.equal(0, job.n.cas)
    local ok, why = pcall(require("moonshift").engine, sidp { params = { first = 5, last = 4 } })
    assert.is_false(ok)
    assert.is_truthy(tostring(why):find("last=4 is before first=5", 1, true), why)
  end)

  it("makes a group of each rank, or takes the groups as they are", function()
    for _, case in ipairs { { true, true, "1 1 1 1" }, { true, false, "4" }, { false, true, "4" } } do
      h.with(sidp { pooled = case[1], link_gbps = case[1] and 200 or nil, params = { bind = case[2] } }, function(e)
        job(e, 20)
        e:run()
        assert.equal(case[3], h.sizes(e))
        h.clean(e)
      end)
    end
  end)

  it("sends rows of a group of several ranks as sequence parallel ranks, and fetches in its usual layout", function()
    local n, ends = { was = 0, cas = 0 }, nil
    local function load(e) return job(e, 60) end
    local wide = { link_gbps = 50, params = { bind = false } }
    h.with(sidp(wide), function(e)
      load(e)
      e:run()
      h.clean(e)
      ends = e:now()
      for _, step in ipairs(e:schedule()) do
        n[step.ffn] = n[step.ffn] + 1
        assert.equal(4, #step.ranks)
        assert.equal(step.ffn == "cas" and 1 or 4, step.tp)
      end
    end)
    assert.is_true(n.was > 0 and n.cas > 0, n.was .. " and " .. n.cas)
    h.with(sidp { policy = "policies/fcfs.lua", link_gbps = 50 }, function(e)
      load(e)
      e:run()
      assert.equal("4", h.sizes(e))
      assert.is_true(ends < 0.5 * e:now(), ends .. " s, and " .. e:now() .. " s by fetching only")
    end)
    local plain = h.texts({ policy = "policies/fcfs.lua", hardware = "h200x8", model = "llama-3.1-8b" }, load)
    assert.same(plain, h.texts(sidp(wide), load))
  end)

  it("decides like fcfs where every rank has all weights", function()
    local schedules = {}
    for i, name in ipairs { "fcfs", "sidp" } do
      h.with({ policy = "policies/" .. name .. ".lua", ranks = 4, group_size = 1 }, function(e)
        job(e, 60)
        e:run()
        schedules[i] = e:schedule()
        assert.equal("local", schedules[i][1].ffn)
      end)
    end
    assert.same(schedules[1], schedules[2])
  end)

  it("changes no text", function()
    local function load(e) return job(e, 40) end
    local plain = h.texts({ policy = "policies/fcfs.lua", hardware = "h200x8", model = "llama-3.1-8b" }, load)
    assert.same(plain, h.texts(sidp {}, load))
  end)

  it("leaves no group that sends rows when another policy takes its place", function()
    h.with(sidp {}, function(e)
      job(e, 40)
      e:run_until(0.6)
      local sends = 0
      for _, group in ipairs(e:groups()) do sends = sends + (group.ffn == "cas" and 1 or 0) end
      assert.equal(4, sends)
      assert.is_true(e:swap { policy = "policies/fcfs.lua" })
      for _, group in ipairs(e:groups()) do assert.equal("was", group.ffn) end
      e:run()
      h.clean(e)
    end)
  end)

  it("goes on with the ranks that are left when one fails", function()
    h.with(sidp { fail_rank = 2, fail_at_step = 30 }, function(e)
      local ids = job(e, 40)
      e:run()
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      assert.equal("1 1 1", h.sizes(e))
      h.clean(e)
    end)
  end)
end)
