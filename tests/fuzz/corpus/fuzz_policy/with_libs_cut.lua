policy 103
lib one 219
return {
  api = 1,
  lib = { 'one' },
  step = function(view, act, p) lib.one.serve(view, act) end,
}
local one = {}
function one.serve(view, act)
  for _, g in ipairs(view.idle) do
    local b = act.batch(g)
    b:decodes()
    b:prefill(view.waiting)
    if b.tokens > 0 then act.forward(g, b) end
 