-- Lines of batches, for which nobody waits: every policy that is shipped puts them behind all other requests, however
-- many there are, unless it is a policy's own choice to look at them as at others.
local h = require("helper")

local policies = { "arctic", "auto", "earlystop", "fair", "fcfs", "flying", "priority", "shift", "sidp", "static" }

-- How many requests were started before the one that somebody waits for.
local function started_before(options, n_offline)
  local before
  h.with(options, function(e)
    for i = 1, n_offline do e:submit { name = "line" .. i, prompt = 64, max_tokens = 4, offline = true } end
    e:submit { name = "online", prompt = 64, max_tokens = 4, at = 0.01 }
    e:run()
    h.clean(e)
    for i, name in ipairs(h.started(e)) do
      if name == "online" then before = i - 1 end
    end
  end)
  return before
end

describe("lines of batches", function()
  for _, name in ipairs(policies) do
    it("come last under " .. name, function()
      local options = { policy = "policies/" .. name .. ".lua", max_num_batched_tokens = 64, params = { budget = 64 } }
      local few, many = started_before(options, 40), started_before(options, 400)
      assert.equal(few, many)
      assert.is_true(few < 15, few .. " began before it")
    end)
  end

  it("come last under the native policy", function()
    assert.is_true(started_before({ max_num_batched_tokens = 64 }, 200) < 15)
  end)

  it("take no place in the queue from others", function()
    h.with({ max_num_seqs = 1, max_num_queued_reqs = 4 }, function(e)
      local ids = {}
      for i = 1, 6 do ids[i] = e:submit { prompt = 64, max_tokens = 40, offline = true, at = 0.001 * i } end
      local online = e:submit { prompt = 64, max_tokens = 4, at = 0.02 }
      e:run()
      h.clean(e)
      assert.equal("length", e:result(online).ending)
      assert.equal("length", e:result(ids[5]).ending)
      assert.equal("refused", e:result(ids[6]).ending)
    end)
  end)

  it("are known as such to policies, which may have another order", function()
    local source = [[
      return {
        api = 1, doc = "test", needs = { "waiting.offline" },
        admit = function(request) return request.offline and 0 or 1 end,
        step = function(view, act, p)
          local n = 0
          for row = 1, view.waiting.n do n = n + (view.waiting.offline[row] and 1 or 0) end
          for _, group in ipairs(view.idle) do
            local batch = act.batch(group)
            batch:decodes()
            batch:prefill(view.waiting, 64)
            if batch.tokens > 0 then act.forward(group, batch) end
          end
        end,
      }]]
    assert.equal(40, started_before({ source = source, max_num_batched_tokens = 64 }, 40))
  end)
end)
