-- Drafts where they pay, else first come, first served. What a request may say next is guessed (act.draft) and verified
-- in the same step; each guess that is right is a token that costs no step of its own. The price of a row more and what
-- a token is worth come from view.estimate at this batch. The chance that a guess is right comes from how much of the
-- text before it stood there before, from how often it went on like this, and from the request's own record: so little
-- is drafted for prose that does not repeat itself, and nothing where the batch is large enough. What a draft model
-- takes (view.estimate_draft) is a price, too. With shape "tree" guesses branch where the text has gone on in several
-- ways.

local WEIGHT = 6 -- tokens of the record that count as much as the match does
local LEARN = 16 -- steps, and forwards of a draft model, after which there is telling what they take
local MAKES = { best = true, model = true } -- sources that ask a draft model, where there is one

-- How much a request's guesses are to be trusted: by its record, and by how long the match is.
local function trust(match, accepted, rejected)
  local matched = 1 - 1 / (match + 2)
  return (accepted + WEIGHT * matched) / (accepted + rejected + WEIGHT)
end

-- The chance of a token when those before it are right, if it is the same for all: share + share^2 + ... + share^n is
-- what their source expects. A fixed point; the first value is right where all but certain.
local function share_of(n, score)
  local share = 1 - 2 * (1 - score / n) / (n + 1)
  for _ = 1, 3 do share = score / (1 - share ^ n + score) end
  return share
end

-- How many rows of draft tokens pay. In a chain the i-th counts when all i are right; in a tree rows come in the order
-- of their shares, on several branches.
local function worth(n, score, trusted, price, p)
  local share = share_of(n, score)
  local less = p.shape == "tree" and share or trusted * share
  local keep, all = 0, trusted * share
  while keep < p.most and all > price do
    keep, all = keep + 1, all * less
  end
  return keep
end

local MORE = { drafts = 1 }

-- What a row more costs if all draft, in tokens of this batch, how many tokens it has in a ms, and the steps that this
-- rests on; nil: there is no telling, or nothing is drafted here.
local function price_of(view, group, batch, p)
  MORE.drafts = math.max(math.min(p.most * batch.n_decodes, p.budget - batch.tokens), 1)
  local more = view.estimate(group, nil, batch, MORE)
  if not more then return nil end
  local now, seen = view.estimate(group, nil, batch)
  if not now or now <= 0 then return nil end
  local rate = batch.n_decodes / now
  return { price = (1 + p.margin) * math.max(more - now, 0) / MORE.drafts * rate, rate = rate, seen = seen }
end

-- What a token of a draft model costs when so many ask for one, with its row, and how many may be asked for: two as
-- long as there is no telling. nil: there is no such model.
local function price_of_making(view, batch, asks, m, p)
  local ms, seen = view.estimate_draft(batch, "model", 1, asks)
  if not ms then return nil end
  local making = (1 + p.margin) * ms / asks * m.rate
  return { price = m.price + making, rate = m.rate, most = m.seen < LEARN and 0 or seen < LEARN and 2 or p.most }
end

-- How many tokens of a draft model are worth their making and their rows, by the request's record with it. One whose
-- text it has yet to read is worth that, too, or left alone.
local function worth_making(view, group, batch, i, m, p)
  local running = view.running
  local drafted, accepted, rejected = view.drafted(running.id[i], "model")
  local trusted = (accepted + WEIGHT * p.faith) / (accepted + rejected + WEIGHT)
  local n, right, all = 0, 0, trusted
  while n < m.most and all > m.price do n, right, all = n + 1, right + all, all * trusted end
  if n == 0 or drafted > 0 then return n end
  local unread = math.min(group.size * (running.prompt[i] + running.output[i]), 65536)
  local steps = (running.max_tokens[i] - running.output[i]) / (1 + right)
  return view.estimate_draft(batch, "model", 1, unread) * m.rate < (right - n * m.price) * steps and n or 0
end

-- Guesses, and takes back what does not pay. Whose record is such that no guess would pay is looked at now and then
-- only, as looking costs time, too: twice in a row, as heads guess for the next step. Returns how many are kept, and
-- how many of a guess by other means than a draft model are expected to be right.
local function draft_for(running, i, most, price, making, act, p)
  local hopeless = not making and trust(math.huge, running.accepted[i], running.rejected[i]) <= price
  local since = running.output[i] % math.max(p.probe, math.ceil(100 * price)) -- tries cost a hundredth at most
  if hopeless and since > 1 then return 0, 0 end
  local source = p.source ~= "best" and p.source or nil
  local n, match, score, by = act.draft(running.id[i], most, source, p.shape, making and 0 or nil)
  if not n or n == 0 then return 0, 0 end
  local keep = worth(n, score, trust(match, running.accepted[i], running.rejected[i]), price, p)
  if keep == 0 and since == 0 then keep = 1 end
  if keep < n then act.draft(running.id[i], keep) end
  return keep, by ~= "model" and score or 0
end

-- Looking takes microseconds, and in a large batch it is many who are looked at: there, whose guesses were not right
-- mostly take turns.
local function has_turn(running, i, n_decodes, p)
  if running.accepted[i] > running.rejected[i] then return true end
  return (i + running.output[i]) % math.ceil(n_decodes / p.looks) == 0
end

-- Nobody has more than its share of the rows that are left. A draft model guesses for the next step, for whom text said
-- before does not do as well (Arctic Inference takes its suffix guess when that is as long), and is asked only if what
-- it takes pays: more the fewer they are who ask.
local function draft(view, act, group, batch, p)
  local running, left, asking = view.running, batch.n_decodes, {}
  local row = price_of(view, group, batch, p)
  if not row or row.price >= 1 then return end
  local making = MAKES[p.source] and price_of_making(view, batch, left, row, p)
  for i = 1, running.n do
    if running.group[i] == group.id and running.remaining[i] == 1 and running.output[i] > 0 then
      local share, keep, score = math.floor((p.budget - batch.tokens) / math.max(left, 1)), 0, 0
      if share > 0 and has_turn(running, i, batch.n_decodes, p) then
        keep, score = draft_for(running, i, math.min(p.most, share), row.price, making, act, p)
      end
      if making and score < worth_making(view, group, batch, i, making, p) then
        asking[#asking + 1] = { row = i, keep = keep }
      end
      left = left - 1
    end
  end
  if #asking > 0 then making = price_of_making(view, batch, #asking, row, p) end
  for _, ask in ipairs(asking) do
    local n = worth_making(view, group, batch, ask.row, making, p)
    if n > 0 then act.draft(running.id[ask.row], ask.keep, "model", p.shape, n) end
  end
end

return {
  api = 1,
  doc = "Draft tokens where guesses are right often enough for what a row costs; else first come, first served.",

  needs = {
    "running.group", "running.remaining", "running.output", "running.accepted", "running.rejected", "running.prompt",
    "running.max_tokens",
  },

  params = {
    most = {
      default = 16, min = 1, max = 64, type = "integer", unit = "tokens/step",
      doc = "draft tokens of a request in a step",
    },
    source = {
      default = "best", choices = { "best", "suffix", "lookup", "form", "heads", "model" },
      doc = "where guesses come from: suffix trees of all that was said, the request's own text, the form of a guided "
        .. "answer, heads, a draft model",
    },
    shape = {
      default = "chain", choices = { "chain", "tree" },
      doc = "one guess, or several that branch (--device cpu; sources that have one guess only give that)",
    },
    margin = {
      default = 0.2, min = 0, max = 10, unit = "ratio",
      doc = "share by which a draft token has to be worth more than its row costs",
    },
    faith = {
      default = 0.8, min = 0, max = 1, unit = "share",
      doc = "of a draft model's guesses those that are right, at first",
    },
    probe = {
      default = 32, min = 1, type = "integer", unit = "tokens",
      doc = "one draft token every so many, or fewer, for a request whose guesses are mostly wrong",
    },
    looks = {
      default = 16, min = 1, type = "integer", unit = "requests/step",
      doc = "requests that a guess is looked for in a step, beside those whose guesses are mostly right",
    },
    budget = { default = 2048, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
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
      assert(plan[1].drafts > 8 and plan[2].drafts <= 1)
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

    ["in a large batch whose guesses are not right take turns"] = function(t)
      local running = {}
      for i = 1, 8 do running[i] = { prompt = 40, max_tokens = 90, output = 9, accepted = i == 2 and 9 or 0 } end
      local plan = t.step {
        params = { looks = 2 }, running = running,
        measured = { { tokens = 8, ms = 10, n = 50 }, { tokens = 136, ms = 10.1, n = 50 } },
      }
      for i = 1, 8 do assert((plan[i].drafts > 0) == (i == 2 or (i + 9) % 4 == 0), i) end
    end,

    ["a tree gets as many rows as pay"] = function(t)
      local plan = t.step {
        params = { shape = "tree", most = 8 },
        measured = { { tokens = 1, ms = 10, n = 50 }, { tokens = 9, ms = 10.1, n = 50 } },
        running = { { prompt = 40, max_tokens = 90, output = 9, accepted = 30 } },
      }
      assert(plan[1].drafts == 8)
    end,

    ["a draft model is asked for as many tokens as what it takes is worth"] = function(t)
      local function asked(ms)
        local plan = t.step {
          draft_ms = ms, measured = { { tokens = 1, ms = 10, n = 50 }, { tokens = 17, ms = 11, n = 50 } },
          running = { { prompt = 1, max_tokens = 90, output = 1 } }, -- of which nothing repeats yet
        }
        return plan[1].next
      end
      assert(asked(0.5) > asked(3) and asked(3) > 0)
      assert(asked(10) == 0, "it takes as long as the model")
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
