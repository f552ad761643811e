-- Another order for the beginning of the queue.

local order = {}

-- The ids of the first `most` of the waiting, the smallest score first; equal ones stay in the queue's order. The score
-- of a row of view.waiting is a number. Who is beyond the window keeps its place behind it, so the queue's own order
-- bounds how often anybody is overtaken. Needs a column of view.waiting.
function order.by(view, most, score)
  local ids, scores = {}, {}
  for k = 1, math.min(view.waiting.n, most) do
    local row = view.row(view.waiting, k)
    local s, at = score(row), k
    while at > 1 and scores[at - 1] > s do at = at - 1 end
    table.insert(ids, at, view.waiting.id[row])
    table.insert(scores, at, s)
  end
  return ids
end

return order
