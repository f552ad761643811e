-- How to test a policy against traffic: load a trace or a generator, run to a time, look at the schedule, the layouts
-- and the latencies.
local h = require("helper")

-- The q-th of n latencies of the requests first .. first + n - 1, in seconds.
local function percentile(e, first, n, q, latency)
  local t = {}
  for id = first, first + n - 1 do t[#t + 1] = latency(e:result(id)) end
  table.sort(t)
  return t[math.ceil(q * #t)]
end

-- A steady trickle, and forty requests at once in its middle.
local function burst(path)
  local f = assert(io.open(path, "w"))
  f:write("arrival_s,input_tokens,output_tokens,priority\n")
  for i = 0, 9 do f:write(i * 0.1, ",30,20,0\n") end
  for _ = 1, 40 do f:write("1,200,10,1\n") end
  for i = 1, 10 do f:write(1 + i * 0.1, ",30,20,0\n") end
  f:close()
end

describe("a trace", function()
  local path = os.tmpname()
  burst(path)
  teardown(function() os.remove(path) end)

  it("shows which layout shift runs before, in and after a burst", function()
    h.with({ policy = "policies/shift.lua", ranks = 4, params = { threshold = 256 } }, function(e)
      local first, n = e:load { trace = path }
      assert.same({ 1, 60 }, { first, n })
      e:run_until(0.999)
      for _, step in ipairs(e:schedule()) do assert.equal(1, step.sp) end -- nothing large yet
      local before = #e:schedule()
      e:run()
      local large = 0
      for i = before + 1, #e:schedule() do
        local step = e:schedule()[i]
        if step.tokens > 300 then
          large = large + 1
          assert.equal(4, step.sp)
        end
      end
      assert.is_true(large > 0)
      assert.equal("length", e:result(60).ending)
      h.clean(e)
    end)
  end)

  it("shows whom a burst makes wait under each policy", function()
    local worst = {}
    for _, policy in ipairs { "fcfs", "priority" } do
      h.with({ policy = "policies/" .. policy .. ".lua", max_num_batched_tokens = 256, max_num_seqs = 8 }, function(e)
        e:load { trace = path }
        e:run()
        worst[policy] = 0
        for id = 51, 60 do -- those who come after the burst, and are more urgent
          worst[policy] = math.max(worst[policy], e:result(id).first_token_at - (1 + (id - 50) * 0.1))
        end
        h.clean(e)
      end)
    end
    assert.is_true(worst.priority < worst.fcfs, worst.priority .. " " .. worst.fcfs)
  end)

  it("can be a generator, cut off", function()
    h.with({ policy = "policies/fcfs.lua" }, function(e)
      local first, n = e:load { trace = "poisson:rate=50,requests=500,input=10-60,output=5", seed = 3, seconds = 4 }
      assert.is_true(n > 150 and n < 250, n)
      e:run()
      assert.is_true(percentile(e, first, n, 0.99, function(x) return x.ended_at end) <= e:now())
      h.clean(e)
    end)
  end)

  it("can be what a server recorded", function()
    h.with({ policy = "policies/shift.lua", ranks = 2 }, function(e)
      local first, n = e:load { trace = "tests/data/server.rec" }
      assert.equal(40, n)
      e:run()
      local tokens = 0
      for id = first, first + n - 1 do
        assert.equal("length", e:result(id).ending)
        tokens = tokens + #e:result(id).tokens
      end
      assert.is_true(tokens >= 40 and tokens <= 40 * 9, tokens)
      h.clean(e)
    end)
  end)

  it("says what is wrong with it", function()
    h.with({ policy = "policies/fcfs.lua" }, function(e)
      assert.has_error(function() e:load { trace = "poison:rate=1" } end,
        "'poison:rate=1' is no file and no generator; did you mean poisson? "
          .. "(generators: poisson, gamma, batch, shift-bursty, flying-bursty, flying-table1)")
      assert.has_error(function() e:load { tracer = "x" } end)
    end)
  end)
end)
