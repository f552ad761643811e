-- earlystop.lua where nobody thinks: virtual time has no text, so it decides what fcfs does, and nothing is probed. Its
-- rule is tested in its own file, the rest in tests/layout/probes.c and tests/e2e/earlystop.py.
local h = require("helper")

local function steps(policy)
  local out = {}
  h.with({ policy = policy, max_num_batched_tokens = 64, max_num_seqs = 8, params = { budget = 64 } }, function(e)
    for i = 1, 30 do e:submit { name = "r" .. i, prompt = 7 * i, max_tokens = 1 + i % 9, at = 0.001 * i } end
    e:run()
    h.clean(e)
    for _, step in ipairs(e:schedule()) do
      for _, item in ipairs(step.items) do out[#out + 1] = item.name .. " " .. item.tokens end
      out[#out + 1] = step.tokens
    end
  end)
  return out
end

describe("earlystop", function()
  it("decides as fcfs does where nobody asked for an early stop", function()
    assert.same(steps("policies/fcfs.lua"), steps("policies/earlystop.lua"))
  end)

  it("is what a policy cannot do in virtual time", function()
    local source = [[
      return {
        api = 1, doc = "test", needs = { "running.id" },
        step = function(view, act)
          for row = 1, view.running.n do
            act.probe(view.running.id[row])
            act.conclude(view.running.id[row])
          end
          for _, group in ipairs(view.idle) do
            local batch = act.batch(group)
            batch:decodes()
            batch:prefill(view.waiting)
            if batch.tokens > 0 then act.forward(group, batch) end
          end
        end,
      }
    ]]
    h.with({ source = source }, function(e)
      local id = e:submit { prompt = 16, max_tokens = 4 }
      e:run()
      h.clean(e)
      assert.equal("length", e:result(id).ending)
      assert.equal(0, h.metric(e, "moonshift:probes_total"))
      assert.equal(0, h.metric(e, "moonshift:early_stops_total"))
    end)
  end)
end)
