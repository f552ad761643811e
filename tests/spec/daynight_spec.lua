local h = require("helper")

-- A request each so many seconds, long and short in turn, and the order in which they start at the end.
local function last_of(gap, swap)
  local order
  h.with({ policy = "policies/daynight.lua", params = { busy = 5 }, max_num_seqs = 1, kv_blocks = 800 }, function(e)
    for i = 0, 99 do e:submit { prompt = 8, max_tokens = 2, at = i * gap } end
    e:run_until(99 * gap + 0.001)
    if swap then e:swap { policy = "policies/daynight.lua", params = { busy = 5 } } end
    local at = 99 * gap + 0.002
    e:submit { name = "running", prompt = 30, max_tokens = 40, at = at }
    e:submit { name = "long", prompt = 1500, max_tokens = 2, at = at + 0.001 }
    e:submit { name = "short", prompt = 10, max_tokens = 2, at = at + 0.002 }
    e:run()
    order = h.started(e)
    h.clean(e)
  end)
  return order[#order - 1] .. " " .. order[#order]
end

describe("Neither order is right all day: can one policy have both? (sglang#31953, vllm#24484)", function()
  it("is first come, first served while little comes", function()
    assert.equal("long short", last_of(1))
  end)

  it("takes the short one first while much comes", function()
    assert.equal("short long", last_of(0.1))
    assert.equal("short long", last_of(0.1, true))
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/daynight.lua")) end)
end)
