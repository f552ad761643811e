local h = require("helper")

-- Twice as much as the machine can take, for some seconds.
local function run(params, f)
  local options = { policy = "policies/ontime.lua", params = params, max_num_seqs = 8, kv_blocks = 4000 }
  options.max_num_batched_tokens = 256
  h.with(options, function(e)
    local ids = {}
    for i = 1, 200 do
      ids[i] = e:submit { prompt = 400, max_tokens = 10, at = i * 0.004, slo_ttft_ms = i == 150 and 60000 or 0 }
    end
    e:run()
    h.clean(e)
    f(e, ids)
  end)
end

describe("Can a request be refused at once when its first token would come too late? (vllm#2901, #41250)", function()
  it("refuses with a time to come again, and serves the others nearly in time", function()
    run({ limit_ms = 200 }, function(e, ids)
      local served, refused, late = 0, 0, 0
      for i, id in ipairs(ids) do
        local r = e:result(id)
        if r.ending == "refused" then
          refused = refused + 1
          assert.same({ 503, true }, { r.status, r.retry_after >= 1 })
        else
          served = served + 1
          if r.first_token_at - i * 0.004 > 0.4 then late = late + 1 end
        end
      end
      assert.is_true(served > 20 and refused > 20, served .. " served, " .. refused .. " refused")
      assert.equal(0, late)
      assert.equal("length", e:result(ids[150]).ending) -- it has said that it can wait
    end)
  end)

  it("refuses nobody while there is time", function()
    run({ limit_ms = 600000 }, function(e, ids)
      for _, id in ipairs(ids) do assert.equal("length", e:result(id).ending) end
    end)
  end)

  it("is short enough to be read", function() assert.is_true(h.is_short("policies/ontime.lua")) end)
end)
