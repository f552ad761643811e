local h = require("helper")

local function fair(options)
  options.policy = "policies/fair.lua"
  return options
end

-- Tokens that each tenant's requests were given up to a time; names begin with the tenant.
local function served(e, from, to)
  local t = {}
  for _, step in ipairs(e:schedule()) do
    if step.at >= from and step.at < to then
      for _, item in ipairs(step.items) do
        local tenant = item.name:match("^%a+")
        t[tenant] = (t[tenant] or 0) + item.tokens
      end
    end
  end
  return t
end

local function crowd(e, tenant, n, prompt, max_tokens, at)
  for i = 1, n do
    e:submit { name = tenant .. i, tenant = tenant, prompt = prompt, max_tokens = max_tokens, at = at }
  end
end

describe("fair", function()
  it("serves a tenant that asks little beside one that asks much", function()
    h.with(fair { max_num_seqs = 4 }, function(e)
      crowd(e, "greedy", 100, 50, 20, 0)
      local small = e:submit { name = "modest1", tenant = "modest", prompt = 50, max_tokens = 20, at = 0.05 }
      e:run()
      assert.is_true(e:result(small).first_token_at < 0.15) -- in line it would wait for 100 requests, about 0.6 s
      h.clean(e)
    end)
  end)

  it("shares tokens equally between tenants that both have work", function()
    h.with(fair { max_num_seqs = 4 }, function(e)
      crowd(e, "long", 40, 200, 40, 0)
      crowd(e, "short", 200, 30, 10, 0)
      e:run()
      local t = served(e, 0.02, 0.3)
      assert.is_true(math.abs(t.long / t.short - 1) < 0.25, t.long .. " against " .. t.short)
      h.clean(e)
    end)
  end)

  it("shares in proportion to weights", function()
    h.with(fair { max_num_seqs = 4, params = { weights = { gold = 3 } } }, function(e)
      crowd(e, "gold", 150, 50, 20, 0)
      crowd(e, "tin", 150, 50, 20, 0)
      e:run_until(0.5)
      local t = served(e, 0.02, 0.5)
      assert.is_true(math.abs(t.gold / t.tin - 3) < 0.6, t.gold .. " against " .. t.tin)
    end)
  end)

  it("gives no credit for time spent away", function()
    h.with(fair { max_num_seqs = 2 }, function(e)
      crowd(e, "steady", 200, 50, 20, 0)
      crowd(e, "back", 60, 50, 20, 0.5)
      e:run()
      local t = served(e, 0.52, 0.9)
      assert.is_true(math.abs(t.back / t.steady - 1) < 0.3, t.back .. " against " .. t.steady)
      h.clean(e)
    end)
  end)

  it("keeps its books over a swap and over new params", function()
    h.with(fair { max_num_seqs = 2 }, function(e)
      crowd(e, "greedy", 80, 50, 20, 0)
      crowd(e, "modest", 10, 50, 20, 0.2)
      e:run_until(0.25)
      assert.is_true(e:swap { policy = "policies/fair.lua" })
      e:run_until(0.3)
      assert.is_true(e:set { weights = { modest = 1 } })
      e:run_until(0.9)
      local t = served(e, 0.25, 0.45)
      assert.is_true(t.modest > 0.6 * t.greedy, t.modest .. " against " .. t.greedy)
      e:run()
      h.clean(e)
    end)
  end)
end)
