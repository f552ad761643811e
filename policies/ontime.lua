-- Who would get a first token too late is told so at once, with the time after which another try makes sense, instead
-- of waiting for an answer that nobody reads any more. Too late is what the request wishes (slo_ttft_ms), else
-- `limit_ms`. The time is that until the last of the waiting has its first token, as view.forecast plays it, and that
-- of the prompt itself. Who is in the queue already stays there, and so do lines of batches.

return {
  api = 1,
  doc = "Refuses whom the forecast has getting a first token too late.",
  lib = { "serve" },

  params = {
    limit_ms = { default = 5000, min = 1, max = 3.6e6, unit = "ms", doc = "latest first token of who wishes for none" },
    code = { default = 503, min = 429, max = 503, type = "integer", unit = "status", doc = "status of the refusal" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  admit = function(request, view, act, p)
    if request.again or request.offline then return request.key end
    local limit = request.slo_ttft_ms > 0 and request.slo_ttft_ms or p.limit_ms
    local total, queue = view.forecast()
    local own = view.groups[1] and view.estimate(view.groups[1], nil, math.min(request.prompt, p.budget)) or 0
    local ms = (total and queue or 0) + own * math.max(1, request.prompt / p.budget)
    if ms > limit and view.n_waiting > 0 then
      local after = clamp(math.ceil((ms - limit) / 1000), 1, 86400)
      act.refuse(request, p.code, after, "the first token would come too late")
    end
  end,

  step = function(view, act, p) lib.serve.all(view, act, p.budget) end,

  tests = {
    ["a long queue refuses, and says when to come again"] = function(t)
      local waiting = {}
      for i = 1, 20 do waiting[i] = { name = string.format("r%d", i), prompt = 2000 } end
      local plan = t.step {
        kv_blocks = 5000, waiting = waiting, params = { limit_ms = 1000 }, max_num_batched_tokens = 2048,
        measured = { { sp = 1, tp = 1, tokens = 2048, ms = 200, n = 20 } },
      }
      assert(not plan.refused.r1 and plan.refused.r20 == 503)
    end,
  },
}
