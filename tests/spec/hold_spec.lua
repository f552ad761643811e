local h = require("helper")

-- The quota of docs/recipes.md, over the simplest of policies.
local QUOTA = [[
local owed, seen = {}, {}
return {
  api = 1, doc = "A rate of tokens for each tenant.",
  params = { rate = { default = 100, min = 1 }, burst = { default = 300, min = 1 } },
  needs = { "held" },
  admit = function(request, view, act, p)
    if request.again then return request.key end
    local t = request.tenant
    owed[t] = math.max(0, (owed[t] or 0) - (view.now - (seen[t] or view.now)) * p.rate)
      + request.prompt + request.max_tokens
    seen[t] = view.now
    if owed[t] > p.burst and not act.hold(request, "over the quota", view.now + (owed[t] - p.burst) / p.rate) then
      act.refuse(request, 429, 3600, "far over the quota")
    end
  end,
  step = function(view, act)
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill()
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,
  tests = {
    ["beyond the burst a tenant waits"] = function(t)
      local plan = t.step {
        waiting = {
          { name = "a", tenant = "x", prompt = 250, max_tokens = 50 },
          { name = "b", tenant = "x", prompt = 50, max_tokens = 50 },
        },
      }
      assert(#plan == 1 and plan[1].name == "a" and plan.held.b.reason == "over the quota" and not plan.held.a)
    end,
  },
}
]]

describe("act.hold", function()
  it("keeps a tenant to its rate, and nobody is blamed", function()
    h.with({ source = QUOTA, name = "quota", starvation_s = 0.5 }, function(e)
      local red, blue = {}, {}
      for i = 1, 5 do
        red[i] = e:submit { prompt = 150, max_tokens = 50, tenant = "red", name = "red" .. i }
        blue[i] = e:submit { prompt = 150, max_tokens = 50, tenant = "blue" .. i }
      end
      e:run_until(1)
      local held = {}
      for _, r in ipairs(e:state().waiting) do held[#held + 1] = r.state .. " " .. r.held.reason end
      assert.are.equal("held over the quota", held[1])
      e:run()
      for i = 1, 5 do
        assert.are.equal("length", e:result(blue[i]).ending)
        assert.is_true(e:result(blue[i]).ended_at < 2)
        -- 200 tokens each, 300 at once, then 100 a second
        assert.is_true(e:result(red[i]).first_token_at >= math.max(0, i * 2 - 3), i)
        assert.is_true(e:result(red[i]).first_token_at < math.max(0, i * 2 - 3) + 1, i)
      end
      h.clean(e)
    end)
  end)

  it("ends with its policy", function()
    h.with({ source = QUOTA, name = "quota", params = { rate = 1, burst = 1 } }, function(e)
      local id = e:submit { prompt = 100, max_tokens = 20 }
      e:run_until(2)
      assert.are.equal("none", e:result(id).ending)
      e:swap { policy = "policies/fcfs.lua" }
      e:run_until(4)
      assert.are.equal("length", e:result(id).ending)
    end)
  end)
end)
