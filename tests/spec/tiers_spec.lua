local h = require("helper")

local function tiers(options)
  options.policy = "policies/tiers.lua"
  return options
end

describe("Can interactive, batch and background requests share one server by deadline? (vllm#30256)", function()
  it("serves the earliest deadline first, in every tier", function()
    h.with(tiers { max_num_seqs = 1, params = { preempt = false } }, function(e)
      e:submit { name = "busy", max_tokens = 30 }
      e:submit { name = "background", priority = 2, at = 0.001 }
      e:submit { name = "batch", priority = 1, at = 0.002 }
      e:submit { name = "interactive", priority = 0, at = 0.003 }
      e:submit { name = "hasty", priority = 1, slo_ttft_ms = 20, at = 0.004 }
      e:run()
      assert.same({ "busy", "hasty", "interactive", "batch", "background" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("lets batch work end amid interactive traffic that fills the machine", function()
    h.with(tiers { max_num_seqs = 1, params = { batch_ms = 700, preempt = false } }, function(e)
      local batch, last = e:submit { name = "batch", priority = 1, at = 0.001 }, nil
      for i = 0, 149 do last = e:submit { max_tokens = 10, prompt = 8, at = i * 0.010 } end
      e:run()
      assert.is_true(e:result(batch).first_token_at < e:result(last).first_token_at)
      h.clean(e)
    end)
  end)

  it("has background work give way to interactive work, which loses nothing", function()
    h.with(tiers { max_num_seqs = 1 }, function(e)
      local low = e:submit { name = "low", priority = 2, max_tokens = 50 }
      local high = e:submit { name = "high", max_tokens = 5, at = 0.02 }
      e:run()
      assert.is_true(e:result(high).ended_at < e:result(low).ended_at)
      assert.equal(50, #e:result(low).tokens)
      h.clean(e)
    end)
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/tiers.lua")) end)
end)
