local h = require("helper")

-- Orders anything at any time, lawful or not, from numbers that follow from the seed; and serves whoever it can beside
-- that.
local CHAOS = [[
local node, draw
local function any(list) return #list > 0 and list[draw(#list)] or nil end
local function upset(view, act, p)
  local what, group, running = draw(10), any(view.groups), view.running
  local id = running.n > 0 and running.id[draw(running.n)] or nil
  local fate, when = any { "migrate", "park", "recompute", "keep" }, any { "hard", "drain", "soft" }
  local named = view.waiting.n > 0 and { view.waiting.id[draw(view.waiting.n)] } or {}
  if what <= 4 then
    for _, ranks in ipairs(view.cover(draw(#node.ranks), draw(4))) do
      act.bind(ranks, { when = when, kv = fate, max_wait_ms = draw(20), requests = named, reason = "chaos",
        base = #ranks % 2 == 0 and draw(3) == 1 and { sp = 2, tp = #ranks / 2 } or nil })
    end
  elseif what == 5 then act.bind(any(node.sets), { when = when, kv = fate, max_wait_ms = draw(20) })
  elseif what == 6 and group then act.release(group, { when = when, kv = fate, max_wait_ms = draw(20) })
  elseif what == 7 and group and id then act.remap(id, group, fate)
  elseif what == 8 and id then act.preempt(id, any { "hard", "recompute" })
  elseif what == 9 and group then act.preempt(group, when)
  elseif what == 10 then act.comm(any(node.sets), any { "auto", "oneshot", "twoshot" }) end
end
return {
  api = 1, doc = "chaos", needs = { "id", "home", "parked" },
  params = { seed = { default = 1 }, every = { default = 20, min = 1 } },
  start = function(facts, act, p) node, draw = facts, rng(p.seed) end,
  step = function(view, act, p)
    act.wake(1)
    for _, g in ipairs(view.groups) do if g.closed then act.open(g) end end
    if draw(p.every) == 1 then upset(view, act, p) end
    if #view.groups == 0 and #view.pending == 0 then act.bind(node.ranks) act.bind({ view.free_ranks[1] }) end
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      if batch then
        batch:decodes()
        batch:prefill(view.waiting, 64, draw(2) == 1 and "any" or nil)
        if batch.tokens > 0 then act.forward(group, batch, any(node.layouts[group.size])) end
      end
    end
  end,
}
]]

local function requests(e, n, cancel)
  local ids, common = {}, {}
  for i = 1, 100 do common[i] = i * 3 % 1000 end
  for k = 1, n do
    local prompt = 1 + k * 137 % 400
    if k % 3 == 0 then -- shares the beginning of its prompt
      prompt = { unpack(common) }
      for i = 1, k % 60 do prompt[#prompt + 1] = (k * 31 + i) % 1000 end
    end
    ids[k] = e:submit { prompt = prompt, max_tokens = 5 + k * 13 % 40, at = k * 0.004, priority = k % 4 - 1 }
  end
  return ids
end

local OPTIONS = {
  ranks = 8, prefix_caching = true, kv_blocks = 150, max_num_seqs = 24, max_num_batched_tokens = 128, park_s = 0.05,
  source = CHAOS, name = "chaos",
}

local function with(changes)
  local t = {}
  for k, v in pairs(OPTIONS) do t[k] = v end
  for k, v in pairs(changes) do t[k] = v end
  return t
end

-- Runs to the end although the policy asks to be woken for ever.
local function finish(e, ids)
  local at = e:now()
  repeat
    at = at + 0.2
    e:run_until(at)
    assert(at < 100, "requests live on and on")
  until e:state().requests.live == 0
  local policy = e:state().policy
  assert(policy.active.name == "chaos" and policy.last_error == "", policy.last_error) -- it was chaos that decided
end

describe("whatever a policy does with the partition", function()
  local plain = {}
  setup(function()
    local options = with {
      policy = "policies/fcfs.lua", source = nil, ranks = 1, model = "tests/data/sim_ranks.json", kv_blocks = 1000,
    }
    plain = h.texts(options, function(e) return requests(e, 150) end)
  end)

  it("changes no text and loses no request", function()
    for seed = 1, 6 do
      h.with(with { params = { seed = seed, every = seed == 6 and 2 or 20 } }, function(e)
        local ids = requests(e, 150)
        finish(e, ids)
        for i, id in ipairs(ids) do
          assert.equal("length", e:result(id).ending)
          assert.equal(plain[i], table.concat(e:result(id).tokens, " "), "seed " .. seed .. ", request " .. i)
        end
        assert.is_true(e:state().n_switches > 20, e:state().n_switches .. " switches")
        assert.is_true(e:state().conserved)
      end)
    end
  end)

  it("stays so with cancels and a rank that fails", function()
    for seed = 1, 6 do
      h.with(with { params = { seed = seed }, fail_rank = seed, fail_at_step = 30 }, function(e)
        local ids, cancelled = requests(e, 150), {}
        for i = 7, 150, 9 do
          e:run_until(i * 0.0045)
          if e:result(ids[i]).ending == "none" then e:cancel(ids[i]) cancelled[i] = true end
        end
        finish(e, ids)
        for i, id in ipairs(ids) do
          local text = table.concat(e:result(id).tokens, " ")
          assert.equal(cancelled[i] and "abort" or "length", e:result(id).ending, "seed " .. seed .. ", request " .. i)
          assert.equal(cancelled[i] and plain[i]:sub(1, #text) or plain[i], text, "seed " .. seed .. ", request " .. i)
        end
        assert.is_true(e:state().conserved)
      end)
    end
  end)
end)
