-- Seesaw in virtual time: both phases are seen and everything ends, with the texts of one rank; and what the paper
-- leaves open, hole by hole.
local h = require("helper")

local function seesaw(more)
  local o = {
    policy = "policies/seesaw.lua", ranks = 4, kv_blocks = 400, host_kv_blocks = 800, max_num_seqs = 64,
    max_num_batched_tokens = 1024, starvation_s = 30,
  }
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

-- n prompts at once, or one every `gap` seconds.
local function crowd(n, gap, prompt, output)
  return function(e)
    local ids = {}
    for i = 1, n do
      ids[i] = e:submit {
        name = "r" .. i, prompt = (prompt or 200) + 13 * (i % 7), max_tokens = (output or 30) + i % 5,
        at = (gap or 0) * i,
      }
    end
    return ids
  end
end

-- Twenty make tokens for long, and there is room for one more prompt, which comes then.
local function serves_a_late_one(more)
  more.kv_blocks, more.host_kv_blocks = 2000, 4000
  h.with(seesaw(more), function(e)
    crowd(20, 0, 100, 3000)(e)
    local late = e:submit { name = "late", prompt = 100, max_tokens = 5, at = 1 }
    e:run()
    h.clean(e)
    assert.is_true(e:result(late).first_token_at < 3, e:result(late).first_token_at)
  end)
end

-- How often the group had how many stages.
local function stages_seen(e)
  local seen = {}
  for _, s in ipairs(e:schedule()) do seen[s.pp] = (seen[s.pp] or 0) + 1 end
  return seen
end

local function serves(options, load)
  local switches
  h.with(options, function(e)
    local ids = load(e)
    e:run()
    h.clean(e)
    for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
    local state = e:state()
    assert.equal(0, state.kv.held)
    if state.host_kv then assert.equal(0, state.host_kv.held) end
    switches = #h.switches(e)
  end)
  return switches
end

describe("seesaw", function()
  it("computes prompts in stages and tokens in tensor parallelism, and no text changes", function()
    local texts = h.texts({ policy = "policies/fcfs.lua", kv_blocks = 4000 }, crowd(60))
    h.with(seesaw { max_num_seqs = 256 }, function(e)
      local ids = crowd(60)(e)
      e:run()
      h.clean(e)
      for i, id in ipairs(ids) do assert.equal(texts[i], table.concat(e:result(id).tokens, " ")) end
      local seen = stages_seen(e)
      assert.is_truthy(seen[2] and seen[1]) -- the made-up model has two layers
      assert.is_true(h.metric(e, "moonshift:kv_swapped_out_bytes_total") > 0)
      assert.is_true(h.metric(e, "moonshift:kv_swapped_in_bytes_total") > 0)
    end)
  end)

  it("changes the phase rarely: the fewer, the more host memory there is", function()
    local little = serves(seesaw { kv_blocks = 120, host_kv_blocks = 100 }, crowd(80))
    local much = serves(seesaw { kv_blocks = 120, host_kv_blocks = 2000 }, crowd(80))
    assert.is_true(much < little, much .. " and " .. little)
  end)

  it("brings sequences back beside the steps of others, and none of them begins again", function()
    h.with(seesaw { kv_blocks = 100, host_kv_blocks = 4000, max_num_seqs = 256, park_s = 0.05 }, function(e)
      for i = 1, 80 do e:submit { name = "r" .. i, prompt = 200 + 13 * (i % 7), max_tokens = 10 + 17 * (i % 11) } end
      e:run()
      h.clean(e)
      assert.is_true(h.metric(e, "moonshift:kv_swapped_in_bytes_total") > 0)
      assert.equal(0, h.metric(e, "moonshift:kv_park_expired_total"))
      assert.equal(0, h.metric(e, "moonshift:recomputed_tokens_total"))
    end)
  end)

  it("makes tokens when arrivals stop with a pool that is partly full", function()
    serves(seesaw(), crowd(3))
  end)

  it("has room for decodes that grow", function()
    serves(seesaw { kv_blocks = 40 }, crowd(20, 0, 60, 300))
  end)

  it("serves a prompt that is larger than host memory", function()
    serves(seesaw { host_kv_blocks = 8 }, crowd(6, 0, 900))
  end)

  it("serves without host memory", function()
    serves(seesaw { host_kv_blocks = 0 }, crowd(40))
  end)

  it("brings home who found no room to move, as room comes", function()
    local last = {}
    for k, policy in ipairs { "policies/fcfs.lua", "policies/seesaw.lua" } do
      h.with(seesaw { policy = policy, host_kv_blocks = 0, kv_blocks = 100 }, function(e)
        local ids = crowd(60, 0, 200, 60)(e)
        e:run()
        h.clean(e)
        last[k] = 0
        for _, id in ipairs(ids) do last[k] = math.max(last[k], e:result(id).ended_at) end
      end)
    end
    assert.is_true(last[2] < 2 * last[1])
  end)

  it("computes a prompt's last token where it has one seat, and a token a step", function()
    serves(seesaw { ranks = 1, max_num_seqs = 1, host_kv_blocks = 0, params = { budget = 1 } }, crowd(3, 0, 20, 5))
  end)

  it("lets no first token wait longer than a turn, and a bit", function()
    serves_a_late_one { params = { turn_s = 0.5 } }
  end)

  it("keeps its turns shorter than what counts as passed over", function() serves_a_late_one { starvation_s = 3 } end)

  it("follows a mix that drifts from prompts to tokens and back", function()
    serves(seesaw { kv_blocks = 200 }, function(e)
      local ids = {}
      for i = 1, 90 do
        local long = i > 30 and i <= 60
        ids[i] = e:submit { prompt = long and 30 or 600, max_tokens = long and 200 or 4, at = 0.02 * i }
      end
      return ids
    end)
  end)

  it("goes on with the ranks that are left", function()
    h.with(seesaw { fail_rank = 2, fail_at_step = 9 }, function(e)
      local ids = crowd(20)(e)
      e:run()
      h.clean(e)
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
    end)
  end)
end)
