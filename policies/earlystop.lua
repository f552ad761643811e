-- First come, first served; and who thinks aloud stops once it is sure (Dynasor). A request that asked for it is asked
-- now and then what it would answer by now. When its last answers are there, are all the same, and say none of the
-- words by which a model takes back what it said, its thinking is closed and it goes on with its answer.

local hedges = {
  "wait", "hmm", "hold on", "but", "no", "not sure", "unsure", "maybe", "perhaps", "actually", "however",
  "alternatively",
}
local seen = {} -- by request: how many of its answers were looked at

local function hedged(view, id, k)
  for _, words in ipairs(hedges) do
    if view.says(id, k, words) then return true end
  end
  return false
end

local function is_sure(view, id)
  local _, window = view.early_stop(id)
  local last = view.probe(id, 1)
  for k = 1, window do
    local answer = view.probe(id, k)
    if not answer or answer == "" or answer ~= last or hedged(view, id, k) then return false end
  end
  return true
end

-- Asks whom it is time to ask. Returns how many tokens it is until the next is to be asked; nil: nobody is.
local function think(view, act)
  local r, soonest = view.running, nil
  for row = 1, r.n do
    local every, id = r.probe_every[row], r.id[row]
    if every > 0 and r.answers[row] ~= (seen[id] or 0) then
      if not is_sure(view, id) or act.conclude(id) then seen[id] = r.answers[row] end
    end
    local left = every - (r.output[row] - r.probed_at[row])
    if every > 0 and left <= 0 then act.probe(id) end -- refused while one is under way, or once it is concluded
    if every > 0 and (not soonest or left < soonest) then soonest = math.max(left, 1) end
  end
  return soonest
end

return {
  api = 1,
  doc = "First come, first served; requests that asked for it stop thinking when their answers agree (Dynasor).",

  needs = {
    "running.probe_every", "running.probed_at", "running.answers", "running.output",
  },

  params = {
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    local left = think(view, act)
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then act.forward(group, batch, nil, left and { ahead = math.min(left - 1, 1024) } or nil) end
    end
  end,

  finish = function(request) seen[request.id] = nil end,

  tests = {
    ["decodes go before prompts"] = function(t)
      local plan = t.step {
        max_num_batched_tokens = 10, running = { { name = "old" } }, waiting = { { name = "new", prompt = 50 } },
      }
      assert(plan[1].name == "old" and plan[2].name == "new" and #plan.probed == 0 and #plan.concluded == 0)
    end,

    ["who asked for it is probed when it is time"] = function(t)
      local plan = t.step {
        running = {
          { name = "due", output = 90, max_tokens = 500, probe_every = 64, probe_window = 3, probed_at = 26 },
          { name = "not yet", output = 90, max_tokens = 500, probe_every = 64, probe_window = 3, probed_at = 27 },
          { name = "never", output = 90, max_tokens = 500 },
        },
      }
      assert(#plan.probed == 1 and plan.probed[1] == "due" and #plan == 3 and #plan.concluded == 0)
      assert(plan.forwards[1].ahead == 0)
    end,

    ["answers that agree close the thinking"] = function(t)
      local plan = t.step {
        running = {
          {
            name = "sure", output = 90, max_tokens = 500, probe_every = 64, probe_window = 3, probed_at = 80,
            answers = { "3}", "1/2}", " 1 / 2 }. I know", "1/2}" },
          },
        },
      }
      assert(#plan.concluded == 1 and #plan.probed == 0 and #plan == 0)
    end,

    ["one hedge, one other answer, or one that is not there keeps it open"] = function(t)
      local function concluded(...)
        local plan = t.step {
          running = {
            {
              output = 90, max_tokens = 500, probe_every = 64, probe_window = 3, probed_at = 80, answers = { ... },
            },
          },
        }
        return #plan.concluded == 1
      end
      assert(concluded("7}", "7}", "7}"))
      assert(not concluded("7}", "7}"))
      assert(not concluded("7}", "8}", "7}"))
      assert(not concluded("7}", "7}. Wait", "7}"))
      assert(not concluded("7}", "7}", "7}, not  sure"))
      assert(not concluded("7}", "7", "7}"))
      assert(not concluded("}", "}", "}"))
    end,

    ["who has no room left for an answer is not stopped"] = function(t)
      local plan = t.step {
        running = {
          {
            output = 90, max_tokens = 92, probe_every = 64, probe_window = 2, probed_at = 80,
            answers = { "7}", "7}" },
          },
        },
      }
      assert(#plan.concluded == 0 and #plan == 1)
    end,
  },
}
