-- KV in host memory as policies and operators meet it: the verbs and what they refuse, the facts, what becomes of
-- those who wait there when their policy goes, and what metrics and state say. That no text changes on ranks that
-- compute is the matter of tests/layout/host_kv.c.
local h = require("helper")

-- A policy that runs this code in each step, then decodes and prefills like fcfs.
local function policy(code)
  return [[
    local seen = {}
    return {
      api = 1, doc = "test", needs = { "id", "computed", "output", "parked", "in_host" },
      step = function(view, act, p)
        local running, waiting = view.running, view.waiting
        ]] .. code .. [[
        for _, group in ipairs(view.idle) do
          local batch = act.batch(group)
          batch:decodes()
          batch:prefill(view.waiting, 2048)
          if batch.tokens > 0 then act.forward(group, batch) end
        end
      end,
    }]]
end

-- Swaps each request out once, when it has five tokens.
local swap = [[
  for row = 1, running.n do
    local id = running.id[row]
    if running.output[row] >= 5 and not seen[id] and act.swap_out(id) then seen[id] = true end
  end
]]
local once = policy(swap)

local function load(e)
  local ids = {}
  for i = 1, 6 do ids[i] = e:submit { name = "r" .. i, prompt = 100 + 10 * i, max_tokens = 20, at = 0.001 * i } end
  return ids
end

local function options(source, more)
  local o = { source = source, name = "test", kv_blocks = 200, host_kv_blocks = 100, prefix_caching = true }
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

-- Runs until somebody's KV lies there.
local function until_held(e, at)
  while e:state().host_kv.held == 0 do
    at = at + 0.0002
    assert.is_true(at < 1)
    e:run_until(at)
  end
end

-- Copies take no time here: who has been swapped out is held for a while, to be seen there.
local hold = [[
  for row = 1, waiting.n do
    local id = waiting.id[row]
    if waiting.in_host[row] and not seen[-id] then seen[-id] = act.hold(id, "test", view.now + 0.05) end
  end
]]

describe("host memory for KV", function()
  it("takes as long as its link says, however many copies wait for each other", function()
    for _, most in ipairs { 1, 12 } do
      local swaps = policy([[
        for row = 1, running.n do
          local id = running.id[row]
          local goes = running.output[row] >= 5 and not seen[id] and view.copies < ]] .. most .. [[

          if goes and act.swap_out(id) then seen[id], seen.n = true, (seen.n or 0) + 1 end
        end
        local ms = view.estimate_move(1000, "host") -- 131 MB at 13.7 GB/s
        if seen.n == 40 then assert(ms > 9 and ms < 15, ms) end
      ]])
      local more = { hardware = "a10x8", model = "llama-3.1-8b", kv_blocks = 4000, host_kv_blocks = 8000 }
      more.max_num_seqs = 64
      h.with(options(swaps, more), function(e)
        for i = 1, 40 do e:submit { name = "r" .. i, prompt = 1000 + i, max_tokens = 40 } end
        e:run()
        h.clean(e)
        assert.is_true(h.metric(e, "moonshift:kv_swapped_out_bytes_total") > 40 * 130e6)
      end)
    end
  end)

  it("takes sequences in and gives them back, with the texts they would have had", function()
    local texts = h.texts({ policy = "policies/fcfs.lua", kv_blocks = 200 }, load)
    h.with(options(once), function(e)
      local ids = load(e)
      e:run()
      h.clean(e)
      for i, id in ipairs(ids) do assert.equal(texts[i], table.concat(e:result(id).tokens, " ")) end
      assert.is_true(h.metric(e, "moonshift:kv_swapped_out_bytes_total") > 0)
      assert.is_true(h.metric(e, "moonshift:kv_swapped_in_bytes_total") > 0)
      assert.equal(0, h.metric(e, "moonshift:recomputed_tokens_total"))
    end)
  end)

  it("says in view, state and metrics what lies there", function()
    h.with(options(policy([[
      for row = 1, running.n do
        assert(not running.in_host[row])
        if running.output[row] == 5 and view.host_total == 100 then -- dry runs have other worlds
          assert(view.host_free == 100)
          assert(act.swap_out(running.id[row]))
        end
      end
      for row = 1, waiting.n do
        assert(waiting.in_host[row] == (waiting.computed[row] > 0) and waiting.parked[row] == waiting.in_host[row])
      end
    ]] .. hold)), function(e)
      e:submit { name = "one", prompt = 160, max_tokens = 30 }
      until_held(e, 0)
      local held = e:state().host_kv.held
      assert.equal(11, held) -- 165 tokens in blocks of 16
      assert.equal(100, h.metric(e, "moonshift:host_kv_blocks{"))
      assert.equal(100 - held, h.metric(e, "moonshift:host_kv_blocks_free"))
      assert.equal(0, h.metric(e, "moonshift:host_kv_blocks_cached"))
      assert.equal(200, e:state().kv.free + e:state().kv.cached)
    end)
  end)

  it("refuses what cannot be, and says why", function()
    local function case(code, more)
      h.with(options(policy([[
        local function refused(part, ok, why)
          for i = 1, ok == nil and #why or 0 do if why:sub(i, i + #part - 1) == part then return end end
          error(why or "was not refused")
        end
        if running.n == 1 and running.output[1] == 3 then local id = running.id[1] ]] .. code .. [[ end
      ]]), more), function(e)
        local id = e:submit { name = "one", prompt = 160, max_tokens = 6 }
        e:run()
        h.clean(e)
        assert.equal("length", e:result(id).ending)
      end)
    end
    case([[ refused("--host-kv-memory", act.swap_out(id)) refused("--host-kv-memory", act.remap(id, nil, "host"))
      refused("--host-kv-memory", act.bind(view.groups[1].ranks, { kv = "host" })) ]], { host_kv_blocks = 0 })
    case([[ refused("is full", act.swap_out(id)) ]], { host_kv_blocks = 5 })
    case([[ refused("does not lie in host memory", act.swap_in(id, view.idle[1]))
      assert(act.swap_out(id)) refused("already used", act.swap_out(id)) ]])
  end)

  it("gives back who waits there when the policy that put them there goes", function()
    for _, how in ipairs { "swap", "rollback" } do
      h.with({ policy = "policies/fcfs.lua", kv_blocks = 200, host_kv_blocks = 100 }, function(e)
        local ids = load(e)
        e:run_until(0.02)
        assert(e:swap { source = policy(swap .. hold), name = "test" })
        until_held(e, 0.02)
        if how == "swap" then assert(e:swap { policy = "policies/priority.lua" }) else assert(e:rollback()) end
        e:run()
        h.clean(e)
        for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      end)
    end
  end)

  it("loses nothing when clients leave while copies are under way", function()
    h.with(options(once), function(e)
      local ids = load(e)
      for i = 1, 40 do
        e:run_until(0.005 * i)
        if i % 4 == 0 and ids[i / 4] then e:cancel(ids[i / 4]) end
      end
      e:run()
      h.clean(e)
      assert.equal(0, e:state().host_kv.held)
      assert.equal(0, e:state().kv.held)
    end)
  end)

  it("keeps prefixes that ranks evict, whatever the policy", function()
    -- One prompt of 700 tokens, others that push it out of the ranks, and the first again.
    local function prompts(e)
      local ids = {}
      local function add(which, at)
        local tokens = {}
        for i = 1, 700 do tokens[i] = (which * 7 + i * i) % 1000 end
        ids[#ids + 1] = e:submit { prompt = tokens, max_tokens = 4, at = at }
      end
      add(1, 0)
      for i = 2, 9 do add(i, 0.5 * i) end
      add(1, 5)
      return ids
    end
    local hits, texts = {}, {}
    for _, host in ipairs { 0, 1000 } do
      local options = { policy = "policies/fcfs.lua", kv_blocks = 120, host_kv_blocks = host, prefix_caching = true }
      h.with(options, function(e)
        local ids = prompts(e)
        e:run()
        h.clean(e)
        texts[host] = {}
        for i, id in ipairs(ids) do texts[host][i] = table.concat(e:result(id).tokens, " ") end
        local cached = e:result(ids[#ids]).cached -- what one prompt of a third of the ranks evicts at once may be lost
        if host > 0 then assert.is_true(cached >= 350) else assert.equal(0, cached) end
        hits[host] = h.metric(e, "moonshift:prefix_cache_host_hits_total")
        assert.equal(host > 0, h.metric(e, "moonshift:kv_saved_tokens_total") > 0)
      end)
    end
    assert.equal(0, hits[0])
    assert.is_true(hits[1000] > 0)
    assert.same(texts[0], texts[1000])
  end)

  it("takes who runs where ranks are bound anew with kv = host", function()
    h.with(options(policy([[
      if not seen.bound and running.n > 0 and running.output[1] >= 5 then
        seen.bound = act.bind({ 0, 1, 2, 3 }, { kv = "host", base = { pp = 2, sp = 2 }, reason = "test" })
      end
    ]]), { ranks = 4, group_size = 1 }), function(e)
      local ids = load(e)
      e:run()
      h.clean(e)
      assert.equal("4", h.sizes(e))
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
      assert.is_true(h.metric(e, "moonshift:kv_swapped_in_bytes_total") > 0)
    end)
  end)
end)
