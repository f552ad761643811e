return { api = 1, doc = 'x', step = function(view, act)
  act.bind({}) act.bind({ 63, 63 }, { base = { sp = 64, tp = 64 } }) act.release(2147483647) act.remap(65536, 1, 'host')
  for _, g in ipairs(view.groups) do g.id, g.ranks, g.layout = 1e9, {}, nil end view.groups, view.pending, view.free_ranks = nil, {}, view end }
