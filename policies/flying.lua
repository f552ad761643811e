-- Flying Serving. Narrow groups serve many requests at once; one wide group serves each of a few sooner. How wide the
-- widest group is follows from three needs: load (narrow while many wait, wide while few are here), priority (a premium
-- request gets a wide group), and long context (who fits no group gets the narrowest that holds it). KV moves with the
-- sequences.

local node           -- what never changes
local premium, n_premium = {}, 0 -- by id: premium requests that live

-- How wide the widest group should be, and why. Now it is `now`.
local function wanted(view, now, p)
  local width, why, r = now, "as it was", view.running
  local most = #view.cover(node.n_ranks, 1)[1]
  local here = view.n_waiting + view.n_running
  if view.n_waiting >= p.many then width, why = p.narrow, "many wait" end
  if p.crowd > 0 and here >= p.crowd then width, why = p.narrow, "many are here" end
  if here <= p.few then width, why = most, "few are here" end
  local premium_width = math.min(p.premium_width > 0 and p.premium_width or most, most)
  if n_premium > 0 and width < premium_width then width, why = premium_width, "a premium request" end
  local tokens = view.head_tokens
  for row = 1, width < now and r.n or 0 do tokens = math.max(tokens, r.computed[row] + r.remaining[row]) end
  local holds = view.narrowest(tokens) or {}
  if #holds > width then width, why = #holds, "a long request" end
  return width, why
end

-- Which sizes a group may have, and whether this is one.
local function sizes_of(facts, wanted)
  local seen, text, found = {}, "", false
  for _, set in ipairs(facts.sets) do
    if not seen[#set] then text = text .. (text == "" and "" or ", ") .. string.format("%d", #set) end
    seen[#set] = true
    found = found or #set == wanted
  end
  return found, text
end

-- The premium requests among the first in the queue, and the others.
local function split(waiting)
  local mine, others = {}, {}
  if n_premium == 0 then return mine, others end
  for _, row in ipairs(waiting.first) do
    table.insert(premium[waiting.id[row]] and mine or others, waiting.id[row])
  end
  return mine, others
end

-- Asks for another partition when there should be one. Returns how wide a group has to be for a premium request to
-- start in: while its own is on the way it may begin elsewhere if that is soft, and waits for it if not.
local function arrange(view, act, mine, p)
  local now, meanwhile = 0, math.huge
  for _, group in ipairs(view.groups) do now = math.max(now, group.size) end
  local width, why = wanted(view, now, p)
  if p.how == "soft" then meanwhile = now end
  if #view.pending > 0 then return meanwhile end
  if width == now and #view.free_ranks == 0 then return now end
  local rest = p.min_gap_ms - view.last_switch_ms
  if rest > 0 then return now, act.wake(math.max(rest, 1)) end
  local how = why == "a premium request" and p.how or "hard"
  for i, ranks in ipairs(view.cover(width, p.narrow)) do
    act.bind(ranks, {
      when = i == 1 and how or "hard", kv = p.kv, max_wait_ms = p.patience_ms, requests = i == 1 and mine or nil,
      reason = "flying: " .. why,
    })
  end
  return meanwhile
end

return {
  api = 1,
  doc = "Narrow groups under load, wide ones for few, premium and long requests.",

  params = {
    many = { default = 8, min = 1, type = "integer", unit = "requests", doc = "so many requests wait: narrow groups" },
    crowd = {
      default = 0, min = 0, type = "integer", unit = "requests",
      doc = "so many requests are here, waiting or not: narrow groups; 0: only those that wait count",
    },
    few = {
      default = 2, min = 0, type = "integer", unit = "requests",
      doc = "at most so many requests are here: one wide group",
    },
    narrow = { default = 1, min = 1, type = "integer", unit = "ranks", doc = "ranks of a narrow group" },
    premium = {
      default = -1, type = "integer", unit = "priority",
      doc = "requests of this priority or lower are premium",
    },
    premium_width = {
      default = 0, min = 0, type = "integer", unit = "ranks",
      doc = "ranks of a premium request's group; 0: all",
    },
    how = {
      default = "soft", choices = { "soft", "hard", "drain" },
      doc = "how running requests are interrupted for a premium one",
    },
    kv = {
      default = "migrate", choices = { "migrate", "park", "recompute" },
      doc = "what becomes of running requests",
    },
    min_gap_ms = { default = 200, min = 0, max = 60000, unit = "ms", doc = "time between two switches" },
    patience_ms = {
      default = 2000, min = 1, type = "integer", unit = "ms",
      doc = "a soft or draining switch becomes hard after it",
    },
    ageing = {
      default = 30, min = 0.001, max = 1e6, unit = "s",
      doc = "seconds of waiting that make up for one level of priority",
    },
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = { "waiting.first", "running.computed", "running.remaining" },

  fits = function(facts, p)
    local narrow, sizes = sizes_of(facts, p.narrow)
    if not narrow then
      return false, string.format("narrow=%d: on %d ranks a group can have %s of them", p.narrow, facts.n_ranks, sizes)
    end
    if p.premium_width > 0 and not sizes_of(facts, p.premium_width) then
      return false,
        string.format("premium_width=%d: on %d ranks a group can have %s of them",
          p.premium_width, facts.n_ranks, sizes)
    end
    return true
  end,

  start = function(facts) node, premium, n_premium = facts, {}, 0 end,

  admit = function(request, view, act, p)
    if request.priority <= p.premium and not premium[request.id] then
      premium[request.id], n_premium = true, n_premium + 1
    end
    return request.arrival + request.priority * p.ageing + (request.offline and 1e9 or 0)
  end,

  finish = function(request)
    if premium[request.id] then premium[request.id], n_premium = nil, n_premium - 1 end
  end,

  step = function(view, act, p)
    local mine, others = split(view.waiting)
    local wide = arrange(view, act, mine, p)
    for _, group in ipairs(view.idle) do
      local batch = act.batch(group)
      batch:decodes()
      if #mine > 0 and group.size >= wide then batch:prefill(mine, p.budget, "any") end
      batch:prefill(#mine > 0 and group.size < wide and others or view.waiting, p.budget)
      if batch.tokens > 0 then act.forward(group, batch) end
    end
  end,

  tests = {
    ["few requests have all ranks, many have one each"] = function(t)
      local dp, crowd = { { 0 }, { 1 }, { 2 }, { 3 } }, {}
      for i = 1, 20 do crowd[i] = { prompt = 100 } end
      assert(#t.step { ranks = 4, groups = dp }.orders[1].bind == 4)
      assert(#t.step { ranks = 4, waiting = crowd }.orders == 4)
      assert(#t.step { ranks = 4, groups = dp, waiting = crowd }.orders == 0)
    end,

    ["a premium request has a wide group formed for it"] = function(t)
      local run = {}
      for i = 1, 4 do run[i] = { group = i } end
      local plan = t.step {
        ranks = 4, groups = { { 0 }, { 1 }, { 2 }, { 3 } }, running = run,
        waiting = { { name = "vip", priority = -1 } },
      }
      assert(plan.orders[1].when == "soft" and plan.orders[1].requests[1] == "vip" and #plan.orders[1].bind == 4)
    end,
  },
}
