local h = require("helper")

local function engine(params, f)
  h.with({ policy = "policies/bucket.lua", params = params, kv_blocks = 1000 }, f)
end

local question = "Can each tenant have a budget of tokens, and a 429 that says when? (litellm#18128, llama-swap#811)"

describe(question, function()
  it("refuses beyond the bucket, says when, and takes the same request then", function()
    engine({ rate = 100, burst = 300 }, function(e)
      local first = e:submit { tenant = "a", prompt = 200, max_tokens = 50 }
      local second = e:submit { tenant = "a", prompt = 200, max_tokens = 50, at = 0.5 }
      local other = e:submit { tenant = "b", prompt = 200, max_tokens = 50, at = 0.5 }
      e:run()
      assert.equal("length", e:result(first).ending)
      assert.equal("length", e:result(other).ending)
      local no = e:result(second)
      assert.same({ "refused", 429, 2 }, { no.ending, no.status, no.retry_after })
      local again = e:submit { tenant = "a", prompt = 200, max_tokens = 50, at = 2.5 }
      e:run()
      assert.equal("length", e:result(again).ending)
      h.clean(e)
    end)
  end)

  it("gives back what an answer has not used, and nothing is charged for a refusal", function()
    engine({ rate = 0.001, burst = 1020, guess = 900 }, function(e)
      e:submit { tenant = "a", prompt = 50, max_tokens = 10, open_ended = true }
      e:run_until(5)
      local second = e:submit { tenant = "a", prompt = 50, max_tokens = 10, open_ended = true, at = 6 }
      e:run()
      assert.equal("length", e:result(second).ending)
      for i = 1, 5 do e:submit { tenant = "a", prompt = 50, max_tokens = 2000, at = 10 + i } end
      local small = e:submit { tenant = "a", prompt = 50, max_tokens = 10, at = 20 }
      e:run()
      assert.equal("length", e:result(small).ending)
      h.clean(e)
    end)
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/bucket.lua")) end)
end)
