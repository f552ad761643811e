-- In the order of arrival, but the next turn of a conversation whose KV is still cached goes first: one in a step, from
-- the first `window` of the queue, and only while who came first has not waited for `patience_ms`. A turn is known by
-- its cached tokens, not by a name; in several groups it goes where they are, as all requests do.

return {
  api = 1,
  doc = "In the order of arrival; a turn whose conversation is cached may go first.",
  lib = { "serve" },

  params = {
    least = {
      default = 256, min = 1, max = 1e6, type = "integer", unit = "tokens/request",
      doc = "cached tokens from which it is a next turn",
    },
    patience_ms = {
      default = 2000, min = 0, max = 3.6e6, unit = "ms",
      doc = "waiting of the first from which nobody overtakes it",
    },
    window = { default = 32, min = 1, max = 256, type = "integer", unit = "requests", doc = "to choose from" },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = { "waiting.arrival", "waiting.offline", "waiting.preempted" },

  step = function(view, act, p)
    local waiting, ids, turn = view.waiting, {}, nil
    local head = view.row(waiting, 1)
    local calm = head and waiting.preempted[head] == 0 and (view.now - waiting.arrival[head]) * 1000 < p.patience_ms
    for k = 1, math.min(waiting.n, p.window) do
      local row = view.row(waiting, k)
      local id, alike = waiting.id[row], waiting.offline[row] == waiting.offline[head]
      local warm = calm and not turn and k > 1 and alike and view.cached(id) >= p.least
      turn = turn or warm
      table.insert(ids, warm and 1 or k, id)
    end
    lib.serve.all(view, act, p.budget, ids)
  end,

  tests = {
    ["without a cache the first to come is first"] = function(t)
      local plan = t.step {
        max_num_seqs = 1, waiting = { { name = "late", arrival = 2 }, { name = "early", arrival = 1 } },
      }
      assert(plan[1].name == "early")
    end,
  },
}
