-- arctic.lua: drafts are worth their rows, or there are none. In virtual time a draft token is right with a given
-- chance, and what a row costs is said apart, so what pays is known.
local h = require("helper")

-- A few streams, and as many requests as it takes to fill them several times.
local function traffic(e, streams)
  local ids = {}
  for i = 1, 3 * streams do
    ids[i] = e:submit { name = "r" .. i, prompt = 20 + i % 7, max_tokens = 150, at = 0.0001 * i }
  end
  return ids
end

-- Seconds, steps, and the most draft tokens of a step and of a request in a step.
local function play(options, streams)
  options.max_num_seqs = streams
  local out = { steps = 0, widest = 0, most = 0, drafts = 0, tokens = {} }
  h.with(options, function(e)
    local ids = traffic(e, streams)
    e:run()
    h.clean(e)
    out.seconds = e:now()
    for _, step in ipairs(e:schedule()) do
      local all = 0
      for _, item in ipairs(step.items) do
        all = all + item.drafts
        out.most = math.max(out.most, item.drafts)
      end
      out.steps, out.widest, out.drafts = out.steps + 1, math.max(out.widest, step.tokens), out.drafts + all
    end
    for i, id in ipairs(ids) do
      assert(e:result(id).ending == "length", e:result(id).ending)
      out.tokens[i] = table.concat(e:result(id).tokens, " ")
    end
  end)
  return out
end

local function arctic(chance, row_us, streams, params)
  return play({ policy = "policies/arctic.lua", draft_acceptance = chance, step_us = 1000, row_us = row_us,
    params = params }, streams)
end

local function fcfs(row_us, streams)
  return play({ policy = "policies/fcfs.lua", step_us = 1000, row_us = row_us }, streams)
end

describe("arctic", function()
  it("says the same in fewer steps", function()
    local with, without = arctic(0.8, 10, 4), fcfs(10, 4)
    assert.same(without.tokens, with.tokens)
    assert.is_true(with.steps < 0.4 * without.steps, with.steps .. " of " .. without.steps)
    assert.is_true(with.seconds < 0.5 * without.seconds, with.seconds .. " of " .. without.seconds)
  end)

  it("is never slower than without drafts, whatever they are worth and a row costs", function()
    for _, chance in ipairs { 0.05, 0.3, 0.6, 0.9 } do
      for _, row_us in ipairs { 1, 50, 300, 2000 } do
        for _, streams in ipairs { 1, 8, 64 } do
          local with, without = arctic(chance, row_us, streams), fcfs(row_us, streams)
          local what = chance .. " right, " .. row_us .. " us a row, " .. streams .. " streams: "
          -- what a row costs has to be learnt first, once
          assert.is_true(with.seconds <= 1.02 * without.seconds + 0.05, what .. with.seconds .. " " .. without.seconds)
          assert.same(without.tokens, with.tokens)
        end
      end
    end
  end)

  it("drafts next to nothing where each row costs what a step does", function()
    local out = arctic(0.9, 1000, 64)
    assert.is_true(out.drafts < 0.03 * 3 * 64 * 150, out.drafts)
  end)

  it("shares the rows of a step", function()
    local out = arctic(0.9, 1, 16, { budget = 64 })
    assert.is_true(out.widest <= 64 and out.drafts > 0, out.widest)
    assert.is_true(out.most <= 16, out.most)
    h.with({ policy = "policies/arctic.lua", draft_acceptance = 0.95, step_us = 1000, row_us = 1, max_num_seqs = 8,
      params = { budget = 40 } }, function(e)
      traffic(e, 8)
      e:run()
      for _, step in ipairs(e:schedule()) do
        local decodes = {}
        for _, item in ipairs(step.items) do
          if item.drafts > 0 then decodes[#decodes + 1] = item.drafts end
        end
        table.sort(decodes)
        -- eight that decode leave 32 rows, so nobody has more than what the others leave of them
        assert.is_true(#decodes < 8 or decodes[#decodes] <= 16, decodes[#decodes])
      end
    end)
  end)

  it("tells guesses by depth, and the depths add up", function()
    local source = [[
      return {
        api = 1, doc = "test", needs = { "running.id", "running.accepted", "running.rejected" },
        step = function(view, act)
          for i = 1, view.running.n do
            local id, right, judged, last = view.running.id[i], 0, 0
            for depth = 1, 16 do
              local j, r = view.drafted(id, "modelled", depth)
              if not j then break end -- in a dry run, which has a source of another name
              assert(r <= j and (not last or j <= last), "what is judged was right up to there")
              right, judged, last = right + r, judged + j, r
            end
            assert(not last or right == view.running.accepted[i])
            assert(not last or judged - right == view.running.rejected[i])
          end
          for _, group in ipairs(view.idle) do
            local batch = act.batch(group)
            batch:decodes()
            for i = 1, view.running.n do act.draft(view.running.id[i], 16) end
            batch:prefill(view.waiting)
            if batch.tokens > 0 then act.forward(group, batch) end
          end
        end,
      }
    ]]
    h.with({ source = source, draft_acceptance = 0.7, max_num_seqs = 8 }, function(e)
      traffic(e, 8)
      e:run()
      h.clean(e)
      assert.is_true(h.metric(e, "vllm:spec_decode_num_accepted_tokens_total") > 1000)
    end)
  end)
end)
