-- Who gives way when there is no room.

local victims = {}

-- Makes room in the group for the first of the waiting, by running requests of lower rank (view.victims). True:
-- somebody has given way, and one group is enough.
function victims.give_way(view, act, group)
  local gave = false
  for _, id in ipairs(view.victims(group)) do gave = act.preempt(id, "recompute") or gave end
  return gave
end

-- KV blocks that the next tokens of the group's running requests lack there; 0 or less: none. Needs running.group,
-- running.computed and running.blocks.
function victims.lacking(view, group)
  local running, lacking = view.running, -group.kv_free
  if group.n_running + lacking <= 0 then return 0 end -- each takes one at most
  for row = 1, running.n do
    local full = running.computed[row] >= running.blocks[row] * group.tokens_per_block
    if full and running.group[row] == group.id then lacking = lacking + 1 end
  end
  return lacking
end

-- Those of the group with the fewest computed tokens give way, one after the other, until so many blocks are free; the
-- first in the queue's order never does. Needs running.group, running.computed, running.blocks and running.first.
function victims.least_waste(view, act, group, lacking)
  local running, gone = view.running, {}
  while lacking > 0 do
    local least
    for row = 1, running.n do
      local may = running.group[row] == group.id and running.blocks[row] > 0 and row ~= running.first[1]
      if may and not gone[row] and (not least or running.computed[row] < running.computed[least]) then least = row end
    end
    if not least then return end
    gone[least] = true
    if act.preempt(running.id[least], "recompute") then lacking = lacking - running.blocks[least] end
  end
end

return victims
