-- Seesaw. Prompts are computed in pipeline stages, which need no all-reduce; tokens are made in tensor parallelism,
-- which reads the weights fastest. The KV of prompts that are done goes to host memory, so that a phase is long and
-- changes are few. A phase ends when it has no more work or no more room, and after `turn_s` if it keeps others
-- waiting: the paper has only "full" and "empty".

local node           -- what never changes
local phase          -- "prefill" or "decode"
local since = 0      -- when it began
local full = false   -- the last prompt found no room
local came           -- by id, who came back from host memory: its tokens then

-- Stages of a group of this size: as asked for where that can be, else the most that can be.
local function stages_of(size, wanted)
  local most = 1
  for _, pp in ipairs(node.stages[size] or {}) do
    if pp == wanted then return pp end
    most = pp > most and pp or most
  end
  return wanted > 0 and 1 or most
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

-- Seconds of a phase that keeps others waiting: who waits for a fifth of view.starvation_s counts as passed over.
local function turn_of(view, p)
  return view.starvation_s > 0 and math.min(p.turn_s, view.starvation_s / 6) or p.turn_s
end

-- The phase that should be, and why.
local function wanted(view, p, new, n_kept)
  local prompts, makers = count(view.running)
  local fresh, ready = #new + prompts, n_kept + makers
  if fresh == 0 then return ready > 0 and "decode" or phase, "no prompt is left" end
  if ready == 0 then return "prefill", "nobody makes tokens" end
  local age, turn = view.now - since, turn_of(view, p)
  if phase == "prefill" then
    if full then return "decode", "there is no room for more prompts" end
    if age > turn then return "decode", "tokens have waited long" end
  elseif age > math.min(p.least_s, turn) then
    if age > turn then return "prefill", "first tokens have waited long" end
    if n_kept == 0 and makers <= p.few then return "prefill", "few make tokens" end
  end
  return phase, "as it was"
end

-- The layout that a phase takes: so many stages, and tensor parallelism as wide as can be within one.
local function layout_of(size, pp)
  local all = node.layouts[size / pp]
  local tp = all and #all > 0 and all[#all].tp or 1
  return { sp = size / pp / tp, tp = tp, pp = pp }
end

-- Binds every group as the phase wants it. KV goes to host memory where all of it has room there; else it moves. Where
-- ranks hold their share of the weights only, new shares come while the group goes on, as many as there is room for.
local function arrange(view, act, p, why)
  local moves = node.residency == "sharded"
  for _, group in ipairs(view.groups) do
    local pp = stages_of(group.size, phase == "prefill" and p.pp or p.tokens_pp)
    if group.base.pp ~= pp and #view.pending == 0 then
      local held = 0
      for row = 1, view.running.n do held = held + view.running.blocks[row] * group.size end
      act.bind(group.ranks, {
        base = { sp = group.size / pp, pp = pp }, kv = view.host_free > held and "host" or "migrate",
        weights = moves and layout_of(group.size, pp) or nil, when = moves and "ready" or "hard",
        reason = string.format("seesaw: %s, %s", phase, why),
      })
    end
  end
end

-- Has it got further since it came back? Who goes and comes and makes no token would go on so for ever.
local function has_moved_on(running, row)
  return running.computed[row] > (came[running.id[row]] or -1)
end

-- Prompts that are done make room for others. Where host memory is full they wait where they are. Returns how many go.
local function swap_out_done(view, act)
  local running, n = view.running, 0
  for row = 1, running.n do
    if running.output[row] > 0 and has_moved_on(running, row) and act.swap_out(running.id[row]) then n = n + 1 end
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
local function fetch_ahead(view, act, p, group, kept)
  local size, free = node.tokens_per_block[group.size], view.kv_free - view.kv_total / 32
  for k = 1, math.min(#kept, p.ahead - view.copies) do
    free = free - math.ceil(kept.tokens[k] / size)
    if free < 0 or not act.swap_in(kept[k], group) then return end
    came[kept[k]] = kept.tokens[k]
  end
end

-- Decodes grow: when the ranks are nearly full the last of them goes to host memory, before it has to begin again.
local function make_room(view, act)
  local running = view.running
  local last = running.last[1]
  if not last or view.kv_free >= view.n_running or view.n_running < 2 then return end
  for row = 1, running.n do
    if has_moved_on(running, row) and not has_moved_on(running, last) then last = row end
  end
  act.swap_out(running.id[last])
end

-- Nothing can run, and some are parked where no group has the placement of their KV: they move, or begin again.
local function bring_home(view, act, group)
  local waiting = view.waiting
  for row = 1, waiting.n do
    local id = waiting.id[row]
    local stranded = waiting.parked[row] and not waiting.in_host[row] and waiting.home[row] == 0
    if stranded and not act.remap(id, group) then act.preempt(id, "recompute") end
  end
end

return {
  api = 1,
  doc = "Prompts in pipeline stages, tokens in tensor parallelism, KV in host memory in between.",

  params = {
    pp = {
      default = 0, min = 0, max = 64, type = "integer", unit = "stages",
      doc = "stages for prompts; 0: the most that can be",
    },
    tokens_pp = { default = 1, min = 1, max = 64, type = "integer", unit = "stages", doc = "stages for tokens" },
    micro = {
      default = 0, min = 0, max = 1024, type = "integer", unit = "batches",
      doc = "micro-batches of a step of prompts; 0: four for each stage",
    },
    turn_s = {
      default = 10, min = 0.01, max = 3600, unit = "s",
      doc = "seconds after which a phase ends that keeps others waiting, at most a sixth of --starvation-seconds; "
        .. "offline many, with 0 there",
    },
    ahead = {
      default = 4, min = 1, max = 1024, type = "integer", unit = "requests/step",
      doc = "sequences that come back from host memory at once while others make tokens",
    },
    least_s = { default = 0.2, min = 0, max = 3600, unit = "s", doc = "seconds that a decode phase lasts at least" },
    few = {
      default = 0, min = 0, type = "integer", unit = "requests/step",
      doc = "prompts go on when at most so many make tokens, and nobody waits in host memory",
    },
    budget = { default = 8192, min = 1, type = "integer", unit = "tokens/step", doc = "tokens per step" },
  },

  needs = {
    "waiting.id", "waiting.in_host", "waiting.parked", "waiting.home", "waiting.computed", "running.id",
    "running.output", "running.blocks", "running.last", "running.group", "running.remaining", "running.computed",
  },

  start = function(facts, act, p, view)
    node, phase, since, full, came = facts, "prefill", view and view.now or 0, false, {}
  end,

  finish = function(request) came[request.id] = nil end,

  step = function(view, act, p)
    local new, kept, back = sorted(view)
    local next_phase, why = wanted(view, p, new, #kept + #back)
    if next_phase ~= phase then phase, since, full = next_phase, view.now, false end
    arrange(view, act, p, why)
    local leave = view.copies
    if phase == "prefill" then leave = leave + swap_out_done(view, act) else make_room(view, act) end
    for _, group in ipairs(view.idle) do
      local batch, pp = act.batch(group), group.base.pp
      if phase == "prefill" then
        add_last_tokens(view, batch)
        batch:prefill(new, p.budget)
        full = batch.tokens == 0 and leave == 0
      else
        batch:decodes()
        batch:prefill(back, p.budget)
        if view.kv_free > view.kv_total / 2 or batch.tokens == 0 then
          for k, id in ipairs(kept) do came[id] = kept.tokens[k] end
          batch:prefill(kept, p.budget) -- hardly anybody is there who could go on meanwhile
        else
          fetch_ahead(view, act, p, group, kept)
        end
        if batch.tokens == 0 then batch:prefill(view.waiting, p.budget) end
      end
      if batch.tokens == 0 then
        if view.copies == 0 then bring_home(view, act, group) end
        if view.n_waiting > 0 then act.wake(1) end -- copies end, and phases change
      else
        act.forward(group, batch, nil, pp > 1 and { micro = p.micro > 0 and p.micro or 4 * pp } or nil)
      end
    end
  end,

  tests = {
    ["prompts are computed in stages"] = function(t)
      local plan = t.step { ranks = 4, waiting = { { prompt = 100 }, { prompt = 200 } } }
      assert(plan.orders[1].base.pp == 4 and #plan.orders[1].bind == 4)
    end,

    ["prompts that are done make room for others in host memory"] = function(t)
      local now = { kv_blocks = 64, host_kv_blocks = 512, waiting = { { name = "new", prompt = 500 } } }
      now.running = { { name = "done", prompt = 400, output = 1 } }
      local plan = t.step(now)
      assert(plan.remapped.done == "host" and plan[1] and plan[1].name == "new")
    end,

    ["sequences come back while others make tokens"] = function(t)
      local now = { kv_blocks = 64, host_kv_blocks = 512, running = { { name = "runs", prompt = 500, output = 5 } } }
      now.waiting = { { name = "back", prompt = 200, output = 2, in_host = true } }
      local plan = t.step(now)
      assert(#plan == 1 and plan[1].name == "runs" and plan.remapped.back == "migrate")
    end,

    ["where nobody makes tokens the first one is fetched at once"] = function(t)
      local back = { name = "back", prompt = 200, output = 2, in_host = true }
      local plan = t.step { host_kv_blocks = 512, waiting = { back } }
      assert(#plan == 1 and plan[1].name == "back" and plan[1].tokens == 1)
    end,

    ["tokens are made in tensor parallelism"] = function(t)
      local plan = t.step { ranks = 4, running = { { prompt = 100, output = 5 }, { prompt = 200, output = 3 } } }
      assert(#plan.orders == 0 and plan.forwards[1].tp == 4 and plan.forwards[1].n == 2)
    end,
  },
}
