local h = require("helper")

local function engine(params, f)
  local options = { policy = "policies/shortest.lua", params = params, max_num_seqs = 1, kv_blocks = 400 }
  options.prefix_caching = true
  h.with(options, f)
end

local question = "Can the least work that is left go first, and long requests still end? (vllm#29406, #33392, #51375)"

describe(question, function()
  it("runs the least work first", function()
    engine({}, function(e)
      e:submit { name = "busy", prompt = 50, max_tokens = 60 }
      e:submit { name = "long", prompt = 900, max_tokens = 4, at = 0.001 }
      e:submit { name = "middle", prompt = 300, max_tokens = 4, at = 0.002 }
      e:submit { name = "short", prompt = 20, max_tokens = 4, at = 0.003 }
      e:run()
      assert.same({ "busy", "short", "middle", "long" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("counts what the cache has as done: a long prompt that is cached goes before a shorter one that is not", function()
    engine({}, function(e)
      e:submit { name = "first", prompt = h.prompt(1, 640, 650, 0), max_tokens = 4 }
      e:submit { name = "busy", prompt = 50, max_tokens = 60, at = 0.5 }
      e:submit { name = "cold", prompt = 300, max_tokens = 4, at = 0.501 }
      e:submit { name = "warm", prompt = h.prompt(1, 640, 650, 1), max_tokens = 4, at = 0.502 }
      e:run()
      assert.same({ "first", "busy", "warm", "cold" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("lets a long one wait only so long", function()
    for _, case in ipairs { { patience = 0.1, amid = true }, { patience = 1000, amid = false } } do
      engine({ patience = case.patience }, function(e)
        local long, last = e:submit { name = "long", prompt = 900, max_tokens = 4, at = 0.001 }, nil
        for i = 0, 149 do last = e:submit { prompt = 8, max_tokens = 10, at = i * 0.010 } end
        e:run()
        assert.equal(case.amid, e:result(long).first_token_at < e:result(last).first_token_at)
        h.clean(e)
      end)
    end
  end)

  it("learns how long a tenant's answers are, and takes that across a swap", function()
    engine({ patience = 50 }, function(e)
      for i = 0, 9 do e:submit { tenant = "talks", prompt = 20, max_tokens = 300, at = i * 5 } end
      for i = 0, 9 do e:submit { tenant = "nods", prompt = 20, max_tokens = 2, at = i * 5 + 4 } end
      e:run()
      e:swap { policy = "policies/shortest.lua", params = { patience = 50 } }
      e:submit { name = "busy", prompt = 50, max_tokens = 60, tenant = "nods", at = 100 }
      e:submit { name = "talks", prompt = 20, max_tokens = 400, tenant = "talks", at = 100.001 }
      e:submit { name = "nods", prompt = 30, max_tokens = 400, tenant = "nods", at = 100.002 }
      e:run()
      local order = h.started(e)
      assert.same({ "busy", "nods", "talks" }, { order[21], order[22], order[23] })
      h.clean(e)
    end)
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/shortest.lua")) end)
end)
