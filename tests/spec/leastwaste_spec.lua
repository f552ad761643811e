local h = require("helper")

-- Prompts and answers of many lengths in a cache that cannot hold them all: answers run out of room midway.
local function recomputed(policy, spare)
  local n
  local options = { policy = policy, params = spare and { spare = spare }, max_num_seqs = 32, kv_blocks = 120 }
  h.with(options, function(e)
    for i = 0, 79 do
      e:submit { prompt = 20 + (i * 37) % 400, max_tokens = 40 + (i * 53) % 200, at = i * 0.02 }
    end
    e:run()
    for i = 1, 80 do assert.equal("length", e:result(i).ending) end
    n = h.metric(e, "moonshift:recomputed_tokens_total")
    h.clean(e)
  end)
  return n
end

describe("Can the victim of a preemption be the one that wastes least? (vllm#54644)", function()
  it("takes who has computed least, not the last to come", function()
    for _, case in ipairs { { policy = "fcfs", gave = "large" }, { policy = "leastwaste", gave = "small" } } do
      h.with({ policy = "policies/" .. case.policy .. ".lua", max_num_seqs = 3, kv_blocks = 40 }, function(e)
        e:submit { name = "old", prompt = 160, max_tokens = 120 }
        e:submit { name = "small", prompt = 16, max_tokens = 120, at = 0.001 }
        e:submit { name = "large", prompt = 320, max_tokens = 120, at = 0.002 }
        e:run()
        local starts = {} -- who starts once more has given way
        for _, name in ipairs(h.started(e)) do starts[name] = (starts[name] or 0) + 1 end
        assert.is_true(starts[case.gave] > 1)
        for id = 1, 3 do assert.equal(120, #e:result(id).tokens) end
        h.clean(e)
      end)
    end
  end)

  it("computes less twice than first come, first served does", function()
    local fcfs, least = recomputed("policies/fcfs.lua"), recomputed("policies/leastwaste.lua")
    assert.is_true(fcfs > 0)
    assert.is_true(least < 0.85 * fcfs, least .. " of " .. fcfs)
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/leastwaste.lua")) end)
end)
