local h = require("helper")

local function engine(params, f)
  local options = { policy = "policies/prefix.lua", params = params, max_num_seqs = 1, kv_blocks = 400 }
  options.prefix_caching = true
  h.with(options, f)
end

-- One conversation that is cached, a request that nobody has seen, and next turns that keep coming.
local function load(e)
  e:submit { name = "first", prompt = h.prompt(1, 320, 330, 0), max_tokens = 4 }
  e:submit { name = "busy", prompt = 200, max_tokens = 40, at = 0.1 }
  local cold = e:submit { name = "cold", prompt = 300, max_tokens = 4, at = 0.101 }
  local last
  for i = 1, 60 do
    last = e:submit { name = "turn" .. i, prompt = h.prompt(1, 320, 330, i), max_tokens = 20, at = 0.102 + i * 0.01 }
  end
  return cold, last
end

local question = "Can a cached prefix go first without starving who has none? (sglang#31954, vllm#42185)"

describe(question, function()
  it("runs who has the longest cached prefix before who came first", function()
    engine({ ageing = 0 }, function(e)
      e:submit { name = "first", prompt = h.prompt(1, 320, 330, 0), max_tokens = 4 }
      e:submit { name = "busy", prompt = 200, max_tokens = 40, at = 0.1 }
      e:submit { name = "cold", prompt = 300, max_tokens = 4, at = 0.101 }
      e:submit { name = "short", prompt = h.prompt(1, 64, 300, 5), max_tokens = 4, at = 0.102 }
      e:submit { name = "long", prompt = h.prompt(1, 320, 330, 6), max_tokens = 4, at = 0.103 }
      e:run()
      assert.same({ "first", "busy", "long", "short", "cold" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("lets who has nothing cached wait only as long as the ageing says", function()
    for _, case in ipairs { { ageing = 0, amid = false }, { ageing = 5000, amid = true } } do
      engine({ ageing = case.ageing }, function(e)
        local cold, last = load(e)
        e:run()
        assert.equal(case.amid, e:result(cold).first_token_at < e:result(last).first_token_at)
        h.clean(e)
      end)
    end
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/prefix.lua")) end)
end)
