-- Prompts in one layout and tokens in another, by turns: Seesaw's phases. The KV of prompts that are done goes to host
-- memory, so that a phase is long and changes are few. A phase ends when it has no more work or no more room, and after
-- `turn_s` if it keeps others waiting; one of tokens also when room has been idle for so long that a change there and
-- back, and the copies of it, would have been worth it. The paper has only "full" and "empty". Needs waiting.id,
-- in_host, parked, home, computed and running.id, output, blocks, last, group, remaining, computed.

local phases = {}

-- What one policy keeps of it.
function phases.new(now)
  return {
    phase = "prefill", -- or "decode"
    since = now, -- when it began
    full = false, -- the last prompt found no room
    came = {}, -- by id, who came back from host memory: its tokens then
    asked = nil, -- when the last change was asked for, until a step has followed it
    change = 0, -- seconds that one took, averaged
    looked = now, -- when the last step was
    idle = 0, -- seconds of this phase times the share of KV that nobody used, though somebody waited
  }
end

-- The waiting, in their order: ids of new prompts, at most 64, of those whose KV lies in host memory, with its tokens,
-- and of those whose KV has come back.
local function sorted(view)
  local new, kept, back, waiting = {}, { tokens = {} }, {}, view.waiting
  for k = 1, waiting.n do
    local row = view.row(waiting, k)
    local list = waiting.in_host[row] and kept or waiting.parked[row] and back or new
    list[#list + 1] = waiting.id[row]
    if list == kept then kept.tokens[#kept] = waiting.computed[row] end
    if #new == 64 then break end
  end
  return new, kept, back
end

-- Who runs: how many compute their prompt still, and how many make tokens.
local function count(running)
  local prompts = 0
  for row = 1, running.n do prompts = prompts + (running.output[row] == 0 and 1 or 0) end
  return prompts, running.n - prompts
end

-- Seconds of a phase that keeps others waiting: as told, or so many that changes take a twentieth of them. Who waits
-- for a fifth of view.starvation_s counts as passed over.
local function turn_of(s, view, how)
  local turn = how.turn_s > 0 and how.turn_s or math.max(10, 20 * s.change)
  return view.starvation_s > 0 and math.min(turn, view.starvation_s / 6) or turn
end

-- The phase that should be, and why.
local function wanted(s, view, how, new, n_kept)
  local prompts, makers = count(view.running)
  local fresh, ready = #new + prompts, n_kept + makers
  if fresh == 0 then return ready > 0 and "decode" or s.phase, "no prompt is left" end
  if ready == 0 then return "prefill", "nobody makes tokens" end
  local age, turn = view.now - s.since, turn_of(s, view, how)
  if s.phase == "prefill" then
    if s.full then return "decode", "there is no room for more prompts" end
    if age > turn then return "decode", "tokens have waited long" end
  elseif age > math.min(how.least_s, turn) then
    if age > turn then return "prefill", "first tokens have waited long" end
    if s.idle > 4 * s.change then return "prefill", "room was idle for longer than a change is worth" end
    if n_kept == 0 and makers <= how.few then return "prefill", "few make tokens" end
  end
  return s.phase, "as it was"
end

-- Binds every group as the phase wants it. KV goes to host memory where all of it has room there; else it moves. Where
-- ranks hold their share of the weights only, new shares come while the group goes on, as many as there is room for.
local function arrange(s, view, act, how, why)
  for _, group in ipairs(view.groups) do
    local to, shares = how.layout(group, s.phase == "prefill"), group.weights
    local other = shares and (shares.tp ~= to.tp or shares.sp ~= to.sp)
    if (group.base.pp ~= to.pp or other) and #view.pending == 0 then
      local held = 0
      for row = 1, view.running.n do held = held + view.running.blocks[row] * group.size end
      local done = act.bind(group.ranks, {
        base = { sp = group.size / to.pp, pp = to.pp }, kv = view.host_free > held and "host" or "migrate",
        weights = shares and to or nil, when = shares and "ready" or "hard",
        reason = string.format("%s: %s, %s", how.name, s.phase, why),
      })
      if done then s.asked = view.now elseif how.refused then how.refused(to) end
    end
  end
end

-- Has it got further since it came back? Who goes and comes and makes no token would go on so for ever.
local function has_moved_on(s, running, row)
  return running.computed[row] > (s.came[running.id[row]] or -1)
end

-- Prompts that are done make room for others. Where host memory is full they wait where they are. Returns how many go.
local function swap_out_done(s, view, act)
  local running, n = view.running, 0
  for row = 1, running.n do
    if running.output[row] > 0 and has_moved_on(s, running, row) and act.swap_out(running.id[row]) then n = n + 1 end
  end
  return n
end

-- Prompts of which one token is left: batch:prefill takes them for decodes.
local function add_last_tokens(view, batch)
  local running = view.running
  for row = 1, running.n do
    local mine = running.group[row] == batch.group and running.output[row] == 0
    if mine and running.remaining[row] == 1 then batch:add(running.id[row]) end
  end
end

-- The next come back from host memory while others make tokens, so that no step waits for their copies: as many as find
-- room beside those that grow.
local function fetch_ahead(s, view, act, how, group, kept)
  local free = view.kv_free - math.ceil(view.kv_total / 100) -- as the engine counts what newcomers leave to others
  for k = 1, math.min(#kept, how.ahead - view.copies) do
    free = free - math.ceil(kept.tokens[k] / group.tokens_per_block)
    if free < 0 or not act.swap_in(kept[k], group) then return end
    s.came[kept[k]] = kept.tokens[k]
  end
end

-- Decodes grow: when the ranks are nearly full the last of them goes to host memory, before it has to begin again.
local function make_room(s, view, act)
  local running = view.running
  local last = running.last[1]
  if not last or view.kv_free >= view.n_running or view.n_running < 2 then return end
  for row = 1, running.n do
    if has_moved_on(s, running, row) and not has_moved_on(s, running, last) then last = row end
  end
  act.swap_out(running.id[last])
end

-- Some are parked where no group has the placement of their KV, since there was no room to move. They move as room
-- comes, or go to host memory. Where neither can be, and they are more than those who run, the last of them begins
-- again: they would hold the room, and nobody could use it. rows: those to look at, or nil for all that wait. True:
-- there are some, and a plan that only moves them needs act.wake.
function phases.bring_home(view, act, group, ahead, rows)
  local waiting, last, n, moves = view.waiting, nil, 0, view.copies
  for k = 1, rows and #rows or waiting.n do
    local row = rows and rows[k] or k
    if waiting.parked[row] and not waiting.in_host[row] and waiting.home[row] == 0 then
      local id = waiting.id[row]
      last, n = id, n + 1
      if moves < ahead and (act.remap(id, group) or act.swap_out(id)) then moves = moves + 1 end
    end
  end
  if last and moves == 0 and n > view.n_running then act.preempt(last, "recompute") end
  return last ~= nil
end

-- The batch of a group that makes tokens.
local function decode(s, view, act, how, batch, group, kept, back)
  batch:decodes()
  batch:prefill(back, how.budget)
  if view.kv_free > view.kv_total / 2 or batch.tokens == 0 then
    for k, id in ipairs(kept) do s.came[id] = kept.tokens[k] end
    batch:prefill(kept, how.budget) -- hardly anybody is there who could go on meanwhile
  else
    fetch_ahead(s, view, act, how, group, kept)
  end
  if batch.tokens == 0 then batch:prefill(view.waiting, how.budget) end
  phases.bring_home(view, act, group, how.ahead)
end

-- A step of every group that may take one. how: layout(group, prompts), the layout for prompts or for tokens;
-- forward(group, batch); refused(layout), where a group cannot have it, or nil; the numbers budget, turn_s, least_s,
-- few, ahead, as seesaw.lua has them; name, for reasons.
function phases.step(s, view, act, how)
  local new, kept, back = sorted(view)
  s.idle = s.idle + (#new > 0 and (view.now - s.looked) * view.kv_free / view.kv_total or 0)
  s.looked = view.now
  local phase, why = wanted(s, view, how, new, #kept + #back)
  if phase ~= s.phase then s.phase, s.since, s.full, s.idle = phase, view.now, false, 0 end
  arrange(s, view, act, how, why)
  local leave = view.copies
  if phase == "prefill" then leave = leave + swap_out_done(s, view, act) else make_room(s, view, act) end
  for _, group in ipairs(view.idle) do
    local batch = act.batch(group)
    if phase == "prefill" then
      add_last_tokens(view, batch)
      batch:prefill(new, how.budget)
      s.full = batch.tokens == 0 and leave == 0
    else
      decode(s, view, act, how, batch, group, kept, back)
    end
    if batch.tokens > 0 then
      if s.asked and view.now > s.asked and #view.pending == 0 then
        s.change = s.change + ((view.now - s.asked) - s.change) / (s.change > 0 and 4 or 1)
        s.asked = nil
      end
      how.forward(group, batch)
    elseif view.n_waiting > 0 then
      act.wake(1) -- copies end, and phases change
    end
  end
end

return phases
