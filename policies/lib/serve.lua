-- The step of a policy that only decides about order: the next token of each running request, then prompts.

local serve = {}

-- One group's step, up to `budget` tokens. list: whose prompts, in which order: view.waiting unless given, or ids.
function serve.group(view, act, group, budget, list)
  local batch = act.batch(group)
  batch:decodes()
  batch:prefill(list or view.waiting, budget)
  if batch.tokens > 0 then act.forward(group, batch) end
end

-- The step of every group that may take one; where no group can hold the first request, a wider one is asked for.
function serve.all(view, act, budget, list)
  act.widen()
  for _, group in ipairs(view.idle) do serve.group(view, act, group, budget, list) end
end

return serve
