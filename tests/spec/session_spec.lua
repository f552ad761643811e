local h = require("helper")

local function engine(params, f)
  local options = { policy = "policies/session.lua", params = params, max_num_seqs = 1, kv_blocks = 400 }
  options.prefix_caching = true
  h.with(options, f)
end

local function load(e)
  e:submit { name = "first", prompt = h.prompt(1, 320, 330, 0), max_tokens = 4 }
  e:submit { name = "busy", prompt = 200, max_tokens = 40, at = 0.1 }
  e:submit { name = "cold", prompt = 300, max_tokens = 4, at = 0.101 }
  e:submit { name = "cool", prompt = h.prompt(1, 64, 300, 5), max_tokens = 4, at = 0.102 }
  e:submit { name = "turn", prompt = h.prompt(1, 320, 330, 6), max_tokens = 4, at = 0.103 }
end

describe("Can the next turn of a session whose KV is cached overtake, within bounds? (vllm#51384)", function()
  it("runs a cached turn before who came first, and keeps the order of all others", function()
    engine({}, function(e)
      load(e)
      e:run()
      assert.same({ "first", "busy", "turn", "cold", "cool" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("overtakes nobody who has waited for long enough, and nobody beyond the window", function()
    for _, params in ipairs { { patience_ms = 1 }, { window = 1 } } do
      engine(params, function(e)
        load(e)
        e:run()
        assert.same({ "first", "busy", "cold", "cool", "turn" }, h.started(e))
        h.clean(e)
      end)
    end
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/session.lua")) end)
end)
