local h = require("helper")

local function fcfs(options)
  options.policy = "policies/fcfs.lua"
  return options
end

describe("fcfs", function()
  it("runs requests in the order they came", function()
    h.with(fcfs { max_num_seqs = 1 }, function(e)
      e:submit { name = "b", at = 0.002, max_tokens = 3 }
      e:submit { name = "a", at = 0.001, max_tokens = 3 }
      e:submit { name = "c", at = 0.003, max_tokens = 3 }
      e:run()
      assert.same({ "a", "b", "c" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("gives every running request its next token before it takes prompts", function()
    h.with(fcfs { max_num_batched_tokens = 32 }, function(e)
      local old = e:submit { name = "old", prompt = 8, max_tokens = 20 }
      e:submit { name = "new", prompt = 100, max_tokens = 2, at = 0.005 }
      e:run()
      local chunks, decoded_beside = 0, 0
      for _, step in ipairs(e:schedule()) do
        assert.is_true(step.tokens <= 32)
        for i, item in ipairs(step.items) do
          if item.name == "new" and item.tokens > 1 then
            chunks = chunks + 1
            if step.items[1].name == "old" and step.items[1].tokens == 1 and i == 2 then
              decoded_beside = decoded_beside + 1
            end
          end
        end
      end
      assert.equal(4, chunks) -- 31 + 31 + 31 + 7
      assert.equal(chunks, decoded_beside)
      assert.equal(20, #e:result(old).tokens)
      h.clean(e)
    end)
  end)

  it("keeps steps within its budget", function()
    h.with(fcfs { params = { budget = 10 } }, function(e)
      e:submit { prompt = 95, max_tokens = 1 }
      e:run()
      assert.equal(10, #e:schedule())
      for i, step in ipairs(e:schedule()) do assert.equal(i < 10 and 10 or 5, step.tokens) end
      h.clean(e)
    end)
  end)

  it("takes a new budget from the next step on", function()
    h.with(fcfs { params = { budget = 10 } }, function(e)
      e:submit { prompt = 100, max_tokens = 1 }
      e:run_until(0.0005)
      assert.is_true(e:set { budget = 45 })
      e:run()
      local tokens = {}
      for i, step in ipairs(e:schedule()) do tokens[i] = step.tokens end
      assert.same({ 10, 45, 45 }, tokens)
    end)
  end)

  it("refuses params that make no sense", function()
    h.with(fcfs {}, function(e)
      for params, why in pairs {
        [{ budget = 0 }] = "param 'budget' must be at least 1",
        [{ budget = 1.5 }] = "param 'budget' must be a whole number",
        [{ budget = "many" }] = "param 'budget' must be an integer, not a string",
        [{ bugdet = 5 }] = "the policy has no param 'bugdet'; did you mean 'budget'?",
      } do
        local ok, err = e:set(params)
        assert.is_nil(ok)
        assert.equal(why, err)
      end
    end)
  end)

  it("decides as the native policy does", function()
    local schedules = {}
    for i, policy in ipairs { "policies/fcfs.lua", false } do
      h.with({ policy = policy or nil, max_num_seqs = 6, max_num_batched_tokens = 64, kv_blocks = 40 }, function(e)
        for k = 1, 60 do e:submit { prompt = 1 + k * 37 % 150, max_tokens = 1 + k * 13 % 30, at = k * 0.003 } end
        e:run()
        h.clean(e)
        schedules[i] = e:schedule()
      end)
    end
    assert.is_true(#schedules[1] > 100)
    assert.same(schedules[2], schedules[1])
  end)
end)
