-- Drafts where they pay, else first come, first served. What a request may say next is guessed (act.draft) and verified
-- in the same step; each guess that is right is a token that costs no step of its own. The price of a row more and what
-- a token is worth come from view.estimate at this batch. The chance that a guess is right comes from how much of the
-- text before it stood there before, from how often it went on like this, and from the request's own record: so little
-- is drafted for prose that does not repeat itself, and nothing where the batch is large enough. With shape "tree"
-- guesses branch where the text has gone on in several ways.

local WEIGHT = 6 -- tokens of the record that count as much as the match does

-- How much a request's guesses are to be trusted: by its record, and by how long the match is.
local function trust(match, accepted, rejected)
  local matched = 1 - 1 / (match + 2)
  return (accepted + WEIGHT * matched) / (accepted + rejected + WEIGHT)
end

-- How many rows of draft tokens pay. score / n is the share of the guess that its source expects to be right. In a
-- chain the i-th counts when all i are right; in a tree rows come in the order of their shares, on several branches.
local function worth(n, score, trusted, price, p)
  local share = 1 - 2 * (1 - score / n) / (n + 1)
  local less = p.shape == "tree" and share or trusted * share
  local keep, all = 0, trusted * share
  while keep < p.most and all > price do
    keep, all = keep + 1, all * less
  end
  return keep
end

-- What a row more costs, in tokens of this batch; nil: there is no telling.
local function price_of(view, group, batch, p)
  local now = view.estimate(group, nil, batch.tokens)
  local more = view.estimate(group, nil, batch.tokens + p.most)
  if not now or not more or now <= 0 then return nil end
  return (1 + p.margin) * math.max(more - now, 0) / p.most * batch.n_decodes / now
end

-- Guesses, and takes back what does not pay. Whose record is such that no guess would pay is looked at now and then
-- only, as looking costs time, too: twice in a row, as heads guess for the next step.
local function draft_for(running, i, most, price, act, p)
  local hopeless = trust(math.huge, running.accepted[i], running.rejected[i]) <= price
  if hopeless and running.output[i] % p.probe > 1 then return end
  local n, match, score = act.draft(running.id[i], most, p.source ~= "best" and p.source or nil, p.shape)
  if not n or n == 0 then return end
  local keep = worth(n, score, trust(match, running.accepted[i], running.rejected[i]), price, p)
  if keep == 0 and running.output[i] % p.probe == 0 then keep = 1 end
  if keep < n then act.draft(running.id[i], keep) end
end

-- Nobody has more than its share of the rows that are left.
local function draft(view, act, group, batch, p)
  local running, left = view.running, batch.n_decodes
  local price = price_of(view, group, batch, p)
  if not price or price >= 1 then return end
  for i = 1, running.n do
    if running.group[i] == group.id and running.remaining[i] == 1 and running.output[i] > 0 then
      local share = math.floor((p.budget - batch.tokens) / math.max(left, 1))
      if share > 0 then draft_for(running, i, math.min(p.most, share), price, act, p) end
      left = left - 1
    end
  end
end

return {
  api = 1,
  doc = "Draft tokens where guesses are right often enough for what a row costs; else first come, first served.",

  needs = {
    "running.group", "running.remaining", "running.output", "running.accepted", "running.rejected",
  },

  params = {
    most = { default = 16, min = 1, max = 64, type = "integer", doc = "draft tokens of a request in a step" },
    source = {
      default = "best", choices = { "best", "suffix", "lookup", "heads" },
      doc = "where guesses come from: suffix trees of all that was said, the request's own text, or heads of the model",
    },
    shape = {
      default = "chain", choices = { "chain", "tree" },
      doc = "one guess, or several that branch (--device cpu; sources that have one guess only give that)",
    },
    margin = {
      default = 0.2, min = 0, max = 10,
      doc = "share by which a draft token has to be worth more than its row costs",
    },
    probe = {
      default = 32, min = 1, type = "integer",
      doc = "one draft token every so many, for a request whose guesses are mostly wrong",
    },
    budget = { default = 2048, min = 1, type = "integer", doc = "tokens per step" },
  },

  step = function(view, act, p)
    act.widen() -- where no group can hold the first request
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      if batch:decodes() > 0 then draft(view, act, group, batch, p) end
      batch:prefill(view.waiting, p.budget)
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,

  tests = {
    ["decodes go before prompts"] = function(t)
      local plan = t.step {
        max_num_batched_tokens = 10, running = { { name = "old" } }, waiting = { { name = "new", prompt = 50 } },
      }
      assert(plan[1].name == "old" and plan[2].name == "new" and plan[1].tokens == 1)
    end,

    ["more is drafted for whom guesses are right"] = function(t)
      local plan = t.step {
        measured = { { tokens = 2, ms = 10, n = 50 }, { tokens = 10, ms = 12, n = 50 } },
        running = {
          { name = "right", prompt = 40, max_tokens = 90, output = 9, accepted = 30, rejected = 1 },
          { name = "wrong", prompt = 40, max_tokens = 90, output = 9, rejected = 90 },
        },
      }
      assert(plan[1].drafts == 16 and plan[2].drafts <= 1)
    end,

    ["nothing is drafted where a row costs as much as a token is worth"] = function(t)
      local plan = t.step {
        measured = { { tokens = 2, ms = 10, n = 50 }, { tokens = 10, ms = 90, n = 50 } },
        running = {
          { prompt = 40, max_tokens = 90, output = 32, accepted = 30 }, { prompt = 40, max_tokens = 90, output = 32 },
        },
      }
      assert(plan[1].drafts == 0 and plan[2].drafts == 0)
    end,

    ["guesses that were wrong are tried again now and then"] = function(t)
      local plan = t.step {
        measured = { { tokens = 1, ms = 10, n = 50 }, { tokens = 9, ms = 20, n = 50 } },
        running = { { prompt = 40, max_tokens = 90, output = 32, rejected = 99 } },
      }
      assert(plan[1].drafts == 1)
    end,
  },
}
