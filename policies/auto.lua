-- The groups are those in which all that are here are forecast to be done soonest, unless the way there costs more than
-- it brings; the step size is the one that this forecast rests on. The layout of each step is the one that will take
-- least time, by what steps of each layout have taken so far. A layout that has hardly been seen is tried now and then,
-- and every other one again after a while, since machines change; which and when follows from counts alone, so the same
-- run decides the same.
--
-- Where groups can have pipeline stages, a long queue is served in turns, prompts in one layout and tokens in another,
-- if that is estimated to be done sooner (lib/phases.lua).
--
-- Where FFN weights are pooled (--weights pooled), it also decides which layers lie on every rank for a while: KV that
-- stays idle is lent to layers, which are fetched no more, and KV that runs short gets it back.

local node, kept     -- what never changes; by size of a group, the layout that was the best last
local all            -- by size of a group, its layouts
local calm, changed  -- since when KV has been idle; when layers were last pooled or copied
local debts          -- by group and layout: the ms that the layout would have saved it since the last change
local barred         -- by layout, true: the last change to it was refused; until another one is not
local splits         -- partitions that there may be: { wide =, narrow = }, as view.cover has them; of one size first
local steps          -- of the present one, the tokens of a step, by size of a group
local looked         -- when that was last weighed
local answer, ended  -- tokens of an answer, averaged; of so many
local made           -- tokens of those who had not ended yet, averaged: the most of it so far
local prompt, came   -- the same of prompts
local bet, wrong     -- a request and when its first token is due; how far off such forecasts are, as a share
local moved, first   -- the switch under way: since when; by group, the ms of its first step
local price          -- ms that switches took
local premium, n_premium -- by id: premium requests that live
local turns, judged      -- by lib.phases, while prompts and tokens take turns; when that was last weighed, in steps

-- Every layout of a group of this size, stage by stage: lists with `pp`, and one list of all.
local function layouts_of(size)
  if all[size] then return all[size] end
  local found = { all = {} }
  for _, pp in ipairs(node.stages[size] or {}) do
    found[pp] = {}
    for _, l in ipairs(node.layouts[size / pp] or {}) do
      local layout = { sp = l.sp, tp = l.tp, pp = pp }
      table.insert(found[pp], layout)
      table.insert(found.all, layout)
    end
  end
  all[size] = found
  return found
end

-- What the group can run now: ranks that hold a share of the weights only run one layout.
local function runnable(group)
  local list, w = layouts_of(group.size)[group.base.pp] or {}, group.weights
  if not w then return list end
  for _, l in ipairs(list) do
    if l.tp == w.tp and l.sp == w.sp then return { l } end
  end
  return {}
end

-- The layout with the least estimate, unless it is no better than the last by the margin, and that; and the least seen.
local function compare(view, group, batch, p)
  local best, best_ms, rare, rare_n
  for _, layout in ipairs(runnable(group)) do
    local ms, n = view.estimate(group, layout, batch)
    if layout == kept[group.size] then ms = ms * (1 - p.margin) end
    if not best or ms < best_ms then best, best_ms = layout, ms end
    if not rare or n < rare_n then rare, rare_n = layout, n end
  end
  kept[group.size] = best
  return best, best_ms, rare, rare_n
end

-- To another number of stages, or to other shares of the weights. The KV of these ranks goes to host memory where it
-- has room there; else it moves.
local function change(view, act, group, to, why)
  local running, held = view.running, 0
  for row = 1, running.n do
    if running.group[row] == group.id then held = held + running.blocks[row] * group.size end
  end
  local done = act.bind(group.ranks, {
    base = { sp = group.size / to.pp, pp = to.pp }, kv = view.host_free > held and "host" or "migrate",
    weights = group.weights and { sp = to.sp, tp = to.tp, pp = to.pp } or nil,
    when = group.weights and "ready" or "hard", reason = "auto: " .. why,
  })
  if done then debts[group.id], barred = nil, {} else barred[to] = true end -- its shares find no room, say
  return done
end

-- Would the group have to change for it?
local function is_other(group, layout)
  local now = group.weights
  if barred[layout] then return false end
  return layout.pp ~= group.base.pp or now and (layout.tp ~= now.tp or layout.sp ~= now.sp)
end

-- What has never run cannot be judged: its turn is when nobody has KV that would have to move, and what the group has
-- now has been seen. True: it is about to change.
local function try_another(view, act, group, p)
  if group.steps == 0 or view.n_running > 0 or view.copies > 0 or #view.pending > 0 then return end
  for _, layout in ipairs(layouts_of(group.size).all) do
    local _, seen = view.estimate(group, layout, p.budget)
    if seen < p.least and is_other(group, layout) and change(view, act, group, layout, "to see what it takes") then
      return true
    end
  end
end

-- What the node takes for a token of a prompt, in full steps: ms.
local function pace(view, p)
  local group, tokens = view.groups[1], math.min(p.budget, node.max_num_batched_tokens)
  local ms = group and view.estimate(group, nil, tokens)
  return ms and ms / tokens * group.size / node.n_ranks or 0
end

-- What a step would have taken less in a layout that the group would have to change for adds up; where it would have
-- taken more, that counts against it. Its turn comes when it is more than the way there and back: so changes cost at
-- most about as much as it would have brought to know the future.
local function weigh(view, act, group, batch, ms, p)
  local running, tokens = view.running, 0
  for row = 1, running.n do
    if running.group[row] == group.id then tokens = tokens + running.computed[row] end
  end
  local room = (view.host_free / group.size + view.kv_free) * group.tokens_per_block
  local again = math.max(0, tokens - room) * pace(view, p) -- who finds no room to move begins again
  local list, owed = layouts_of(group.size).all, debts[group.id] or {}
  local move_ms = view.estimate_move(tokens, node.host_kv_blocks > 0 and "host" or nil)
  debts[group.id] = owed
  for _, layout in ipairs(#view.pending == 0 and list or {}) do
    if is_other(group, layout) then
      local shares = group.weights and view.estimate_reshard(group, layout)
      local cost = 2 * (move_ms + (shares and shares.stop_ms or 0)) + again + 10 * ms -- pipes and caches begin anew
      local saves = ms * (1 - p.margin) - view.estimate(group, layout, batch)
      owed[layout] = math.max(0, (owed[layout] or 0) + saves)
      if owed[layout] > cost then
        local why = "%d stages would have saved %.0f ms, the change takes %.0f"
        return change(view, act, group, layout, string.format(why, layout.pp, owed[layout], cost))
      end
    end
  end
end

-- Tokens of an answer. While few have ended, those are short ones: who makes tokens is half done on average.
local function length(view)
  local running, sum, n = view.running, 0, 0
  for row = 1, running.n do
    if running.output[row] > 0 then sum, n = sum + running.output[row], n + 1 end
  end
  if n >= 8 then made = math.max(made, sum / n) end
  local known = made > 0 and ended / 50 or 1
  return math.max(1, known * answer + (1 - known) * 2 * made)
end

-- All at once, ms of the group for a request where n make tokens: who ends makes room for the next prompt, so one step
-- in some computes a prompt beside them, or each computes several.
local function at_once(view, group, layout, n, output)
  local prompts, behind = math.max(1, math.floor(n / output)), math.floor(prompt + output)
  local one = { prompts = prompts, prompt = math.ceil(prompt), decodes = n, context = behind }
  local mixed = view.estimate(group, layout, one) or math.huge
  local tokens = view.estimate(group, layout, { decodes = n, context = behind }) or math.huge
  return mixed / prompts + math.max(0, output / n - 1 / prompts) * tokens
end

-- In turns, ms of the group for a request, where n make tokens at once, those in host memory follow them, and prompts
-- and a step of tokens take so long. A turn ends before its last ones have: when the room that is idle by then would
-- have been worth the changes.
local function in_turns(view, group, layout, n, hosted, it)
  local output = it.output
  local last = math.max(1, math.min(output, math.sqrt(4 * it.change * output / it.step))) -- steps without newcomers
  local fewer, behind = math.ceil(n * (1 - last / output / 2)), math.floor(prompt + output)
  local step = view.estimate(group, layout, { decodes = math.max(fewer, 1), context = behind }) or math.huge
  local served, full = hosted + n * last / output, hosted * output / n
  return it.prompt + (full * it.step + last * step + it.copies + it.change) / served
end

-- If a queue of requests like those that came lately is done sooner in turns: the layouts for prompts and for tokens,
-- and how many make tokens at once. The KV of those moves in a turn, and what host memory holds is copied.
local function judge(view, group, p)
  local output = length(view)
  local n = math.floor(math.min(view.max_num_seqs / #view.groups, group.capacity_tokens / (prompt + output)))
  if n < 8 then return end -- as many make tokens: for fewer, a change of layout brings little
  local hosted = view.host_total / #view.groups / math.ceil(prompt / group.tokens_per_block) / group.size
  local whole, behind = math.max(1, math.floor(p.budget / prompt)), math.floor(prompt + output)
  local it, first, second = { output = output, prompt = math.huge, step = math.huge }, nil, nil
  local others = math.huge
  for _, layout in ipairs(layouts_of(group.size).all) do
    if not barred[layout] then
      local a = view.estimate(group, layout, { prompts = whole, prompt = math.ceil(prompt) }) or math.huge
      local b = view.estimate(group, layout, { decodes = n, context = behind }) or math.huge
      others = math.min(others, at_once(view, group, layout, n, output))
      if a / whole < it.prompt then first, it.prompt = layout, a / whole end
      if b < it.step then second, it.step = layout, b end
    end
  end
  if not first or first == second then return end
  it.change = view.estimate_move(math.floor(n * prompt))
  for _, layout in ipairs { first, second } do
    local shares = group.weights and view.estimate_reshard(group, layout)
    it.change = it.change + (shares and shares.stop_ms or 0)
  end
  it.copies = hosted > 0 and view.estimate_move(math.floor(hosted * prompt), "host") or 0
  local ms = in_turns(view, group, second, n, hosted, it)
  if ms <= others * (turns and 1 or 1 - p.margin) then return first, second, n end
end

-- Prompts and tokens take turns while more wait than find room twice, if that is worth it.
local function take_turns(view, p)
  local group = view.groups[1]
  for _, other in ipairs(view.groups) do
    if other.size ~= view.groups[1].size then group = nil end
  end
  if not group or turns and turns.size ~= group.size then turns = nil end
  if not group or #node.stages[group.size] < 2 or n_premium > 0 or p.preempt or came < 8 then return end
  if view.n_waiting == 0 then turns = nil end
  if judged and view.step - judged < 32 then return turns end
  judged = view.step
  local first, second, n = judge(view, group, p)
  if not first or not turns and view.n_waiting < 2 * n * #view.groups then
    turns = nil
  else
    turns = turns or lib.phases.new(view.now)
    turns.size, turns.first, turns.second = group.size, first, second
  end
  return turns
end

-- What a switch takes from everybody who is here: what those before it took; before the first, a step and its copies.
local function stall(view)
  local tokens, running = 0, view.running
  for row = 1, running.n do tokens = tokens + running.computed[row] end
  return price or view.last_step_ms + view.estimate_move(tokens)
end

-- A switch has ended when a new group has: what it took is all but that step.
local function settle(view)
  for _, group in ipairs(moved and #view.pending == 0 and view.groups or {}) do
    if group.steps == 1 and first[group.id] then
      local ms = math.max((view.now - moved) * 1000 - first[group.id], 0)
      price, moved, first = price and price + (ms - price) / 4 or ms, nil, {}
      return
    end
  end
end

-- The premium requests among the first in the queue, and the others.
local function split(waiting)
  local mine, others = {}, {}
  for _, row in ipairs(n_premium > 0 and waiting.first or {}) do
    table.insert(premium[waiting.id[row]] and mine or others, waiting.id[row])
  end
  return mine, others
end

-- Tokens of a step of this group. Where a premium request answers, and other groups are there for prompts, these make a
-- step at most twice as long.
local function budget_of(view, group, batch, p)
  local budget, r, favoured = steps[group.size] or p.budget, view.running, false
  for row = 1, n_premium > 0 and #view.groups > 1 and r.n or 0 do
    favoured = favoured or r.group[row] == group.id and r.computed[row] > 0 and premium[r.id[row]]
  end
  local alone = favoured and batch.tokens > 0 and view.estimate(group, nil, batch.tokens)
  while alone and budget > 2 * batch.tokens and (view.estimate(group, nil, budget) or 0) > 2 * alone do
    budget = math.floor(budget / 2)
  end
  return budget
end

-- How wide the widest group has to be: for who is premium, and for who fits into no narrower one.
local function least_wide(view, p)
  local tokens, r = view.head_tokens, view.running
  for row = 1, r.n do tokens = math.max(tokens, r.computed[row] + r.remaining[row]) end
  local long = #(view.narrowest(tokens) or {})
  return math.max(long, n_premium > 0 and math.ceil(node.n_ranks / 2) or 0)
end

-- Another partition, if all are done sooner in it by more than the way there and back takes from them, and
-- by more than such forecasts have been wrong lately.
local function arrange(view, act, p)
  settle(view)
  local n = view.n_waiting + view.n_running
  local soon = looked and (view.now - looked) * 2000 < view.last_step_ms
  if #splits < 2 or n == 0 or #view.pending > 0 or soon then return end
  looked = view.now
  local how = {
    output = ended > 0 and math.max(answer, 1) or nil, most = p.budget,
    prompt = came > 0 and prompt or nil, ahead = p.ahead,
    tpot = p.tpot > 0 and p.tpot or nil,
    settles = true, -- what a wide group brings answers it also brings them when the prompts are done
  }
  local ms, queue_ms, wide, narrow = view.forecast(nil, nil, how)
  local best, best_ms, size, least = nil, ms or math.huge, 0, math.huge
  for _, group in ipairs(view.groups) do size, least = math.max(size, group.size), math.min(least, group.size) end
  steps = ms and { [least] = narrow, [size] = wide } or {}
  local width = least_wide(view, p)
  if size < width then ms, best_ms = nil, math.huge end
  for _, to in ipairs(splits) do
    if to.wide > to.narrow and width < 2 then break end -- two sizes: for who needs the wide one
    local its = to.wide >= width and view.forecast(to.wide, to.narrow, how)
    if its and its < best_ms then best, best_ms = to, its end
  end
  -- There and back; for those that wait it counts twice. What is better by less than the margin is no reason.
  local cost = 3 * n * stall(view) * (1 + wrong) + p.margin * (ms or 0)
  if not bet and ms and view.n_waiting > 0 then
    local last = view.row(view.waiting, view.n_waiting)
    bet = last and { id = view.waiting.id[last], at = view.now, due = queue_ms } or nil
  end
  if not best or ms and ms - best_ms <= cost then return end
  local why = string.format("auto: %d|%d", best.wide, best.narrow)
  if ms then
    why = string.format("%s: %.1f s of %.1f less, the way there and back %.1f, wrong by %.0f%%", why,
      (ms - best_ms) / 1e3, ms / 1e3, cost / 1e3, wrong * 100)
  else
    why = why .. (n_premium > 0 and ": a premium request" or ": a long request")
  end
  for _, ranks in ipairs(view.cover(best.wide, best.narrow)) do
    if act.bind(ranks, { reason = why }) then moved, first, steps, bet = view.now, {}, {}, nil end
  end
  act.wake(1)
end

-- Layers are copied in the order of the model, and pooled again from the last one on.
local function lay_weights(view, act, p)
  local ffn, n, free = node.ffn, view.replicas, view.kv_free
  if not ffn or ffn.replica_blocks == 0 then return end
  local spare = math.floor((free - p.idle * view.kv_total) / ffn.replica_blocks / 2)
  local short = free < p.short * view.kv_total
  if short or spare < 1 or view.was_wait_ms == 0 then calm = view.now end
  if short and n > 0 and view.now - changed >= p.calm / 10 then
    act.weights("all", "pooled", { layers = { math.floor(n / 2), n - 1 } })
    changed = view.now
  elseif n < ffn.layers and view.now - math.max(calm, changed) >= p.calm then
    act.weights("all", "replicated", { layers = { n, math.min(n + spare, ffn.layers) - 1 } })
    changed = view.now -- also where it is refused: it is not asked for at every step
  end
end

local function pick(view, group, batch, p)
  local best, ms, rare, seen = compare(view, group, batch, p)
  if best and seen < p.least and group.steps % p.try_every == p.try_every - 1 then return rare, ms end
  local again, list = math.floor(group.steps / p.again_every), runnable(group)
  if best and group.steps % p.again_every == p.again_every - 1 then return list[again % #list + 1], ms end
  return best, ms
end

local function serve_in_turns(view, act, p)
  lib.phases.step(turns, view, act, {
    name = "auto", budget = p.budget, turn_s = 0, least_s = 0.2, few = 0, ahead = 4,
    layout = function(_, prompts) return prompts and turns.first or turns.second end,
    forward = function(group, batch) act.forward(group, batch, (pick(view, group, batch, p))) end,
    refused = function(layout) barred[layout], judged = true, nil end,
  })
end

return {
  api = 1,
  doc = "The groups, the size of steps and the layout of each: what is forecast to serve all that are here soonest.",
  lib = { "phases", "victims" },

  params = {
    least = {
      default = 20, min = 0, type = "integer", unit = "steps",
      doc = "steps of a layout that have to be seen before its estimate is trusted",
    },
    try_every = {
      default = 8, min = 1, type = "integer", unit = "steps",
      doc = "until then, one step in so many tries the layout that was seen least",
    },
    again_every = {
      default = 500, min = 2, type = "integer", unit = "steps",
      doc = "one step in so many tries a layout again, each in turn",
    },
    margin = {
      default = 0.02, min = 0, max = 0.5, unit = "share",
      doc = "share by which another layout or partition has to be better than the last",
    },
    short = {
      default = 0.1, min = 0, max = 1, unit = "share",
      doc = "pooled weights: KV is short with a smaller share of it free",
    },
    idle = {
      default = 0.5, min = 0, max = 1, unit = "share",
      doc = "pooled weights: what of it stays free when layers are copied",
    },
    calm = {
      default = 1, min = 0.01, max = 3600, unit = "s",
      doc = "pooled weights: seconds that it has to be idle before that",
    },
    phases = {
      default = true,
      doc = "with host memory for KV, or weights in shares: groups change their pipeline stages, and their shares; "
        .. "prompts and tokens take turns while a long queue is done sooner so",
    },
    bind = { default = true, doc = "begin with one group of all ranks; else the partition stays as it is" },
    ahead = {
      default = 10, min = 1, max = 600, unit = "s",
      doc = "seconds for which requests are expected to come as lately; view.arrival_rate is of as many",
    },
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
    tpot = {
      default = 50, min = 0, max = 1e6, type = "integer", unit = "ratio",
      doc = "how often the time per token of each answer counts besides, so that short ones weigh more; 0: not at all",
    },
    overtake = {
      default = 300, min = 0, max = 1e6, unit = "ratio",
      doc = "times what its prompt takes by which a request is set back; 0: in order of arrival",
    },
    premium = {
      default = -1, type = "integer", unit = "priority",
      doc = "requests with this priority or a lower number have at least half of the ranks in one group",
    },
    preempt = {
      default = false,
      doc = "lower priority numbers go first, and running requests of lower rank give way to them",
    },
    ageing = {
      default = 30, min = 0.001, max = 1e6, unit = "s",
      doc = "premium, or with preempt: seconds of waiting that make up for one level of priority",
    },
  },

  needs = {
    "waiting.first", "waiting.id", "waiting.parked", "waiting.home", "waiting.in_host", "waiting.computed",
    "running.id", "running.output", "running.computed", "running.blocks", "running.last", "running.group",
    "running.remaining",
  },

  start = function(facts, act, p, view)
    node, kept, all, debts, barred, calm, changed = facts, {}, {}, {}, {}, view.now, view.now
    splits, steps, looked, answer, ended, prompt, came = {}, {}, nil, 0, 0, 0, 0
    bet, wrong, moved, first, price = nil, 0, nil, {}, nil
    premium, n_premium, turns, judged, made = {}, 0, nil, nil, 0
    if not p.bind then return end
    act.bind(node.ranks, { reason = "auto: one group" })
    local sizes, seen, mixed = {}, {}, {}
    for _, set in ipairs(facts.sets) do
      if not seen[#set] and facts.layouts[#set] and facts.residency == "replicated" then table.insert(sizes, #set) end
      seen[#set] = true
    end
    for _, wide in ipairs(sizes) do
      table.insert(splits, { wide = wide, narrow = wide })
      for _, narrow in ipairs(wide < node.n_ranks and sizes or {}) do
        if narrow < wide then table.insert(mixed, { wide = wide, narrow = narrow }) end
      end
    end
    for _, to in ipairs(mixed) do table.insert(splits, to) end
  end,

  finish = function(request)
    if turns then turns.came[request.id] = nil end
    if premium[request.id] then premium[request.id], n_premium = nil, n_premium - 1 end
    if request.output > 0 then
      ended = math.min(ended + 1, 50)
      answer = answer + (request.output - answer) / ended
    end
    if not bet or bet.id ~= request.id then return end
    local took = (request.arrival - bet.at) * 1000 + request.ttft_ms
    if request.ttft_ms >= 0 then wrong = wrong + (math.abs(took - bet.due) / math.max(took, bet.due) - wrong) / 8 end
    bet = nil
  end,

  admit = function(request, view, act, p)
    if request.priority <= p.premium and not premium[request.id] then
      premium[request.id], n_premium, looked = true, n_premium + 1, nil
    end
    if not request.again then
      came = math.min(came + 1, 50)
      prompt = prompt + (request.prompt - prompt) / came
    end
    local rank = (p.preempt or premium[request.id]) and request.priority * p.ageing or 0
    local own = p.overtake * request.prompt * pace(view, p) / 1000
    return request.arrival + own + rank + (request.offline and 1e9 or 0)
  end,

  step = function(view, act, p)
    lay_weights(view, act, p)
    local widens = act.widen() -- where no group can hold the first request, one that can
    if not widens and p.phases and take_turns(view, p) then return serve_in_turns(view, act, p) end
    if not widens then arrange(view, act, p) end
    local home = view.idle[1]
    if home and lib.phases.bring_home(view, act, home, 4, view.waiting.first) then act.wake(1) end
    local mine, others = split(view.waiting)
    local widest = moved and node.n_ranks / 2 or 0 -- a premium request waits for the group that is made for it
    for _, group in ipairs(n_premium > 0 and view.groups or {}) do widest = math.max(widest, group.size) end
    local settled, phases = not p.preempt, p.phases and (node.host_kv_blocks > 0 or node.residency == "sharded")
    for _, group in ipairs(view.idle) do
      if phases and try_another(view, act, group, p) then act.wake(1) end
      settled = settled or lib.victims.give_way(view, act, group)
      local batch = act.batch(group)
      batch:decodes()
      local budget = budget_of(view, group, batch, p)
      if #mine > 0 and group.size >= widest then batch:prefill(mine, budget, "any") end
      batch:prefill(#mine > 0 and group.size < widest and others or view.waiting, budget)
      if batch.tokens > 0 then
        local layout, ms = pick(view, group, batch, p)
        if phases and ms then weigh(view, act, group, batch, ms, p) end
        if group.steps == 0 then first[group.id] = ms end
        act.forward(group, batch, layout)
      end
    end
  end,

  tests = {
    ["the layout that took least runs"] = function(t)
      local seen = { { sp = 4, tp = 1, tokens = 100, ms = 9, n = 20 }, { sp = 2, tp = 2, tokens = 100, ms = 4, n = 20 },
        { sp = 1, tp = 4, tokens = 100, ms = 7, n = 20 } }
      local forward = t.step { ranks = 4, measured = seen, waiting = { { prompt = 100 } } }.forwards[1]
      assert(forward.sp == 2 and forward.tp == 2)
    end,

    ["layers are copied while KV is idle, and pooled when it runs short"] = function(t)
      local now = { ranks = 2, now = 100, pooled = 8, kv_blocks = 100, was_wait_ms = 3, fetch_ms = 9, running = { {} } }
      assert(#t.step(now).weights == 0)
      now.now = 101.5
      local copied = t.step(now).weights[1]
      assert(copied.residency == "replicated" and copied.from == 0 and copied.to == 2)
      local long = { prompt = 620, output = 1 }
      now.now, now.replicas, now.running = 102, 3, { long, long, long, long }
      local pooled = t.step(now).weights[1]
      assert(pooled.residency == "pooled" and pooled.from == 1 and pooled.to == 2)
    end,

    ["where no step waits for fetches, no layer is copied"] = function(t)
      local now = { ranks = 2, now = 100, pooled = 8, fetch_ms = 9, running = { {} } }
      t.step(now)
      now.now = 200
      assert(#t.step(now).weights == 0)
    end,

    ["one request is no reason for another partition"] = function(t)
      assert(#t.step { ranks = 4, waiting = { { prompt = 400 } } }.orders == 0)
    end,

    ["a short prompt goes first, unless the long one came some times its own computing sooner"] = function(t)
      local now = {
        ranks = 1, max_num_seqs = 1, now = 2, measured = { { tokens = 1000, ms = 100, n = 20 } },
        waiting = { { name = "long", prompt = 200, arrival = 0 }, { name = "short", prompt = 20, arrival = 1 } },
      }
      assert(t.step(now)[1].name == "short")
      now.waiting[2].arrival, now.now = 2000, 2001
      assert(t.step(now)[1].name == "long")
    end,

    ["ranks are put together for a premium request"] = function(t)
      local dp = { { 0 }, { 1 }, { 2 }, { 3 } }
      local plan = t.step { ranks = 4, groups = dp, waiting = { { prompt = 400, priority = -1 } } }
      assert(#plan.orders > 0 and #plan.orders[1].bind >= 2)
    end,

    ["a layout that was hardly seen has its turn"] = function(t)
      local seen = {
        { sp = 4, tp = 1, tokens = 100, ms = 1, n = 20 }, { sp = 1, tp = 4, tokens = 100, ms = 2, n = 20 },
      }
      local forward = t.step { ranks = 4, steps = 7, measured = seen, waiting = { { prompt = 100 } } }.forwards[1]
      assert(forward.sp == 2 and forward.tp == 2)
    end,
  },
}
