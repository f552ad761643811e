return { api = 1, doc = 'x', needs = { 'id', 'group', 'home', 'parked' }, start = function(node, act, p, view)
  for _, set in ipairs(node.sets) do act.bind(set, { when = 'soft', kv = 'park', base = { sp = #set }, max_wait_ms = 1, reason = node.model }) end
  for _, g in ipairs(view.groups) do act.release(g, 'recompute') end end,
  step = function(view, act)
    for _, ranks in ipairs(view.cover(2, 1)) do act.bind(ranks, { requests = view.waiting.id, when = 'drain' }) end
    for i = 1, view.running.n do act.remap(view.running.id[i], view.groups[1], 'migrate') end
    for _, g in ipairs(view.groups) do act.preempt(g, 'soft') act.open(g) act.weights(g) act.comm(g.ranks, 'oneshot') view.estimate(g, nil, 7) end
    for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting, 64, 'any') if b.tokens > 0 then act.forward(g, b, { sp = g.size }) end end
    act.bind(view.narrowest(view.head_tokens)) end }
