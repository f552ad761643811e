-- What a policy can ask beyond the columns: rows in order, counts by tenant, and whether a client gave a limit. The
-- policy itself compares the answers with the columns.
local h = require("helper")

local CURIOUS = [[
return {
  api = 1, params = { open = { default = "any" } },
  needs = { "tenant", "key", "waiting.prompt", "waiting.output", "waiting.open_ended", "first" },
  admit = function(r, view, act, p) return (r.prompt * 37) % 101 end,
  step = function(view, act, p)
    for _, queue in ipairs({ view.waiting, view.running }) do -- every row once, in the order of keys
      local seen, last = {}, -math.huge
      for k = 1, queue.n do
        local row = view.row(queue, k)
        assert(row and not seen[row], "a row twice")
        assert(queue.key[row] >= last, "out of order")
        assert(k > 16 or queue.first[k] == row, "not as first says")
        seen[row], last = true, queue.key[row]
      end
      assert(view.row(queue, queue.n + 1) == nil, "a row too many")
    end
    local waiting, running, tokens, names = {}, {}, {}, {}
    for i = 1, view.waiting.n do
      local t = view.waiting.tenant[i]
      waiting[t], names[t] = (waiting[t] or 0) + 1, true
      tokens[t] = (tokens[t] or 0) + view.waiting.prompt[i] + view.waiting.output[i]
      assert(p.open == "any" or view.waiting.open_ended[i] == (view.waiting.prompt[i] % 2 == 0), "open_ended")
    end
    for i = 1, view.running.n do
      local t = view.running.tenant[i]
      running[t], names[t] = (running[t] or 0) + 1, true
    end
    local listed = view.tenants()
    local n = 0
    for name in sorted_pairs(names) do
      n = n + 1
      assert(listed[n] == name, "a tenant is missing")
      local w, r, t = view.tenant(name)
      assert(w == (waiting[name] or 0) and r == (running[name] or 0) and t == (tokens[name] or 0), "counts of a tenant")
    end
    assert(#listed == n, "a tenant too many")
    local w, r, t = view.tenant("nobody")
    assert(w == 0 and r == 0 and t == 0)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, 200)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end,
}
]]

-- A tenant may have two requests in the house; the next one is turned away.
local QUOTA = [[
return {
  api = 1,
  admit = function(r, view, act, p)
    local waiting, running = view.tenant(r.tenant)
    if not r.again and waiting + running > 2 then act.refuse(r, 429, 1, "two at a time") end
  end,
  step = function(view, act, p)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end,
}
]]

-- Who has to leave, worked out from the columns, is who view.victims names.
local JUDGE = [[
local function expected(view, group)
  local waiting, running, ids = view.waiting, view.running, {}
  local head, seats = waiting.first[1], view.max_num_seqs - view.n_running
  if not head or group.closed then return ids end
  local tokens, reserve = waiting.computed[head] + waiting.remaining[head], math.floor(view.kv_total / 100)
  for _, g in ipairs(view.groups) do
    if seats > 0 and not g.closed and g.kv_free >= math.ceil(tokens / g.tokens_per_block) + reserve then return ids end
  end
  local lacking = math.ceil(tokens / group.tokens_per_block) + reserve - group.kv_free
  for _, row in ipairs(running.last) do
    if lacking <= 0 and seats > 0 then break end
    if running.priority[row] <= waiting.priority[head] or running.key[row] <= waiting.key[head] then break end
    if running.group[row] == group.id then
      table.insert(ids, running.id[row])
      lacking, seats = lacking - running.blocks[row], seats + 1
    end
  end
  return lacking <= 0 and seats > 0 and ids or {}
end

return {
  api = 1,
  needs = {
    "priority", "key", "waiting.first", "waiting.computed", "waiting.remaining",
    "running.last", "running.blocks", "running.group",
  },
  admit = function(r) return r.arrival + r.priority * 30 end,
  step = function(view, act, p)
    local settled = false
    for _, g in ipairs(view.groups) do
      local want, got = expected(view, g), view.victims(g)
      assert(#want == #got, "another number of victims")
      for i, id in ipairs(want) do assert(got[i] == id, "another victim") end
    end
    for _, g in ipairs(view.idle) do
      for _, id in ipairs(settled and {} or view.victims(g)) do settled = act.preempt(id, "recompute") end
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting, 200)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end,
}
]]

-- The time per token counts in a forecast as often as asked, and an answer of one token has none.
local WEIGHER = [[
return {
  api = 1, needs = { "prompt", "output" },
  step = function(view, act, p)
    local function sum(tpot) return (view.forecast(nil, nil, { tpot = tpot })) end
    if view.n_waiting == 1 and view.n_running == 0 then
      local none, some, more = sum(nil), sum(10), sum(20)
      assert(math.abs((more - none) - 2 * (some - none)) < 1e-6 * more, "not as often as asked")
      local prompt = view.waiting.prompt[1]
      assert(prompt ~= 53 or some > none, "the time per token of twenty tokens is lost")
      assert(prompt ~= 61 or some == none, "an answer of one token has a time per token")
    elseif view.n_running == 1 and view.running.prompt[1] == 53 and view.running.output[1] > 0 then
      local none, some = sum(nil), sum(10)
      assert(math.abs(some / none - 1 - 10 / 19) < 1e-6, "those that it has made do not count")
      assert(view.forecast(nil, nil, { settles = true }) == none, "no prompt waits: what there is counts")
    end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end,
}
]]

describe("a policy can ask", function()
  it("a forecast to count the time per token", function()
    h.with({ name = "weigher", source = WEIGHER }, function(e)
      e:submit { prompt = 53, max_tokens = 20, at = 0 }
      e:submit { prompt = 61, max_tokens = 1, at = 5 }
      e:run()
      h.clean(e)
    end)
  end)

  for _, options in ipairs {
    { kv_blocks = 40 }, { kv_blocks = 210, max_num_seqs = 6 }, { ranks = 4, group_size = 1, kv_blocks = 30 },
  } do
    local machine = options.kv_blocks .. " blocks on " .. (options.ranks or 1) .. " ranks"
    it("who would have to give way, with " .. machine, function()
      options.source, options.name = JUDGE, "judge"
      h.with(options, function(e)
        for k = 1, 60 do
          e:submit { priority = k * 7 % 5, prompt = 20 + k * 53 % 150, max_tokens = 5 + k % 20, at = k * 0.002 }
        end
        e:run()
        assert.is_true(h.metric(e, 'policy_decisions_total{action="preempt"}') > 0)
        h.clean(e)
      end)
    end)
  end

  it("for a wider group where none can hold the first request, and not otherwise", function()
    h.with({ name = "wide", ranks = 4, group_size = 1, kv_blocks = 10, source = [[
      local asked = {}
      return { api = 1, params = { live = { default = false } }, step = function(view, act, p)
        local needed, before = view.head_tokens > view.group_capacity, act.widen()
        assert(before == needed)
        if needed then asked[view.head_tokens] = true end
        for _, g in ipairs(view.idle) do
          local b = act.batch(g)
          b:decodes()
          b:prefill(view.waiting)
          if b.tokens > 0 then act.forward(g, b) end
        end
      end, finish = function(r, view, p) assert(not p.live or (asked[r.prompt] or false) == (r.prompt > 160)) end }
    ]] }, function(e)
      e:set { live = true }
      e:submit { prompt = 100, max_tokens = 2 }
      e:submit { prompt = 300, max_tokens = 2, at = 1 }
      e:run()
      assert.equal("2 1 1", h.sizes(e))
      assert.equal("no group can hold the first request", h.switches(e)[1].reason)
      h.clean(e)
    end)
  end)

  for _, options in ipairs { { kv_blocks = 60 }, { ranks = 4, group_size = 2, kv_blocks = 60 } } do
    it("for rows in order, and for counts by tenant, on " .. (options.ranks or 1) .. " ranks", function()
      options.source, options.name, options.max_num_seqs = CURIOUS, "curious", 12
      h.with(options, function(e)
        e:set { open = "even" } -- not so in the dry runs
        for k = 1, 120 do
          local prompt = 1 + k * 53 % 150
          e:submit {
            prompt = prompt, max_tokens = 5 + k % 20, tenant = ({ "red", "blue", "green", "" })[k % 4 + 1],
            at = k * 0.002, open_ended = prompt % 2 == 0,
          }
        end
        e:run_until(0.15)
        for id = 10, 60, 10 do if e:result(id).ending == "none" then e:cancel(id) end end
        e:run()
        h.clean(e)
      end)
    end)
  end

  it("whether a client gave a limit, in its own tests too", function()
    local source = [[
      return { api = 1, admit = function(r) return r.open_ended and 1 or 0 end, step = function(view, act)
        for _, g in ipairs(view.idle) do
          local b = act.batch(g) b:decodes() b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end
        end end,
      tests = { t = function(t)
        assert(t.admit { open_ended = true } == 1 and t.admit {} == 0)
        local plan = t.step { max_num_seqs = 1, waiting = { { name = "a", open_ended = true }, { name = "b" } } }
        assert(plan[1].name == "b")
      end } }]]
    h.with({ source = source, max_num_seqs = 1 }, function(e)
      e:submit { name = "open", open_ended = true }
      e:submit { name = "shut" }
      e:run()
      assert.same({ "shut", "open" }, h.started(e))
      h.clean(e)
    end)
  end)

  it("how many a tenant has, in admit", function()
    h.with({ source = QUOTA, name = "quota" }, function(e)
      local ids = {}
      for i = 1, 3 do ids[i] = e:submit { tenant = "red", at = 0.001 } end
      ids[4] = e:submit { tenant = "blue", at = 0.001 }
      ids[5] = e:submit { tenant = "red", at = 1 }
      e:run()
      local endings = {}
      for i, id in ipairs(ids) do endings[i] = e:result(id).ending end
      assert.same({ "length", "length", "refused", "length", "length" }, endings)
      h.clean(e)
    end)
  end)

  it("and is told what it asks in a wrong way", function()
    for code, says in pairs {
      ["view.row(view.idle, 1)"] = "the queue is view.waiting or view.running",
      ["view.row(view.waiting, 0)"] = "k must be a whole number from 1",
      ["view.row(view.waiting, 1)"] = "view.waiting has no rows: add what you read of them to needs",
      ["view.tenant()"] = "the name is a text",
    } do
      local source = "return { api = 1, step = function(view, act)\n" .. code .. " end }"
      local ok, why = require("moonshift").check(source, "wrong")
      assert.is_nil(ok)
      assert.is_truthy(why:find("wrong.lua:2: ", 1, true) and why:find(says, 1, true), why)
    end
  end)
end)
