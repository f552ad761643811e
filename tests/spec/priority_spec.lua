local h = require("helper")

local function priority(options)
  options.policy = "policies/priority.lua"
  return options
end

describe("priority", function()
  it("runs the lower number first", function()
    h.with(priority { max_num_seqs = 1 }, function(e)
      e:submit { name = "busy", max_tokens = 5, priority = -5 }
      e:submit { name = "later", priority = 5, at = 0.001 }
      e:submit { name = "middle", priority = 0, at = 0.002 }
      e:submit { name = "sooner", priority = -3, at = 0.003 }
      e:run()
      assert.same({ "busy", "sooner", "middle", "later" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("keeps the order of arrival within a level", function()
    h.with(priority { max_num_seqs = 1 }, function(e)
      for i = 1, 5 do e:submit { name = "r" .. i, priority = 2, at = i * 0.001 } end
      e:run()
      assert.same({ "r1", "r2", "r3", "r4", "r5" }, h.started(e))
    end)
  end)

  it("lets waiting make up for priority, so nothing starves", function()
    -- A stream of urgent requests that alone fills the machine, and one that is not urgent: with ageing it ends amid
    -- them.
    for _, case in ipairs { { ageing = 0.05, amid = true }, { ageing = 1000, amid = false } } do
      h.with(priority { max_num_seqs = 1, params = { ageing = case.ageing, preempt = false } }, function(e)
        local patient = e:submit { name = "patient", priority = 1, at = 0.001 }
        local last
        for i = 0, 99 do
          last = e:submit { name = "urgent", priority = 0, max_tokens = 10, prompt = 8, at = i * 0.010 }
        end
        e:run()
        local waited = e:result(patient).first_token_at
        assert.equal(case.amid, waited < e:result(last).first_token_at)
        if case.amid then assert.is_true(waited < 0.12) end
        h.clean(e)
      end)
    end
  end)

  it("makes running work of lower rank give way when there is no room", function()
    h.with(priority { max_num_seqs = 2 }, function(e)
      local a = e:submit { name = "a", priority = 3, max_tokens = 50 }
      local b = e:submit { name = "b", priority = 4, max_tokens = 50, at = 0.001 }
      local urgent = e:submit { name = "urgent", priority = -4, max_tokens = 5, at = 0.02 }
      e:run()
      assert.is_true(e:result(urgent).first_token_at < 0.025)
      assert.is_true(e:result(a).ended_at < e:result(b).ended_at) -- the last in order gave way
      assert.equal(1, h.metric(e, 'vllm:num_preemptions_total'))
      assert.equal(50, #e:result(a).tokens)
      assert.equal(50, #e:result(b).tokens)
      h.clean(e)
    end)
  end)

  it("makes nobody give way when told so, or when the rank is the same", function()
    for _, case in ipairs { { preempt = false, rank = -4 }, { preempt = true, rank = 3 } } do
      h.with(priority { max_num_seqs = 1, params = { preempt = case.preempt } }, function(e)
        e:submit { name = "first", priority = 3, max_tokens = 50 }
        e:submit { name = "second", priority = case.rank, max_tokens = 5, at = 0.01 }
        e:run()
        assert.equal(0, h.metric(e, 'vllm:num_preemptions_total'))
        assert.same({ "first", "second" }, h.started(e))
      end)
    end
  end)

  it("frees KV for an urgent prompt, and no more than it needs", function()
    h.with(priority { kv_blocks = 40 }, function(e)
      for i = 1, 4 do e:submit { name = "low" .. i, priority = 9, prompt = 120, max_tokens = 30, at = i * 0.001 } end
      local urgent = e:submit { name = "urgent", priority = 0, prompt = 200, max_tokens = 3, at = 0.015 }
      e:run()
      assert.is_true(e:result(urgent).first_token_at < 0.025)
      local n = h.metric(e, 'vllm:num_preemptions_total')
      assert.is_true(n >= 1 and n <= 3, n .. " preemptions")
      h.clean(e)
    end)
  end)
end)
