#include <inttypes.h>

#include "engine/lab/search/regret_inner.h"

/* A policy that follows a table. But for the table it is `static`: what differs in results is the schedule's. */
static const char head[] =
    "-- A schedule of partitions, found by moonshift regret with the trace known: what could have been, not a policy\n"
    "-- for other traffic.\n\n"
    "local schedule = {\n";

static const char body[] =
    "}\n\n"
    "local node, began, ordered\n\n"
    "-- The entry that holds now, and when the next one does.\n"
    "local function entry(view)\n"
    "  local at, found = view.now - began + 1e-9, 1\n"
    "  for i, e in ipairs(schedule) do\n"
    "    if e.at <= at then found = i end\n"
    "  end\n"
    "  local after = schedule[found + 1]\n"
    "  return found, after and (after.at - at) * 1000\n"
    "end\n\n"
    "local function sets_of(size)\n"
    "  local sets, taken = {}, {}\n"
    "  for _, set in ipairs(node.sets) do\n"
    "    local free = #set == size\n"
    "    for _, rank in ipairs(set) do free = free and not taken[rank] end\n"
    "    if free then\n"
    "      table.insert(sets, set)\n"
    "      for _, rank in ipairs(set) do taken[rank] = true end\n"
    "    end\n"
    "  end\n"
    "  return sets\n"
    "end\n\n"
    "local function arrange(view, act)\n"
    "  local found, rest = entry(view)\n"
    "  local e = schedule[found]\n"
    "  if act.widen() then ordered = \"wider\" end\n"
    "  if rest then act.wake(math.min(math.max(rest, 0.01), 60000)) end\n"
    "  if ordered == \"wider\" and view.n_waiting + view.n_running > 0 then return e end\n"
    "  local size = e.sp * e.tp\n"
    "  local wanted = string.format(\"%d x %d\", e.groups, size)\n"
    "  if ordered == wanted or #view.pending > 0 then return e end\n"
    "  for _, set in ipairs(sets_of(size)) do\n"
    "    act.bind(set, { when = \"hard\", base = { sp = size }, reason = \"schedule: \" .. wanted })\n"
    "  end\n"
    "  ordered = wanted\n"
    "  return e\n"
    "end\n\n"
    "return {\n"
    "  api = 1,\n"
    "  doc = \"Follows a schedule of partitions.\",\n"
    "  params = { budget = { default = 8192, min = 1, type = \"integer\", doc = \"tokens per step\" } },\n"
    "  start = function(facts, act, p, view)\n"
    "    node, began, ordered = facts, view.now, nil\n"
    "    arrange(view, act)\n"
    "  end,\n"
    "  step = function(view, act, p)\n"
    "    local e = arrange(view, act)\n"
    "    for _, group in ipairs(view.idle) do\n"
    "      local batch = act.batch(group)\n"
    "      batch:decodes()\n"
    "      batch:prefill(view.waiting, p.budget)\n"
    "      if batch.tokens > 0 then\n"
    "        local layout = group.size == e.sp * e.tp and { sp = e.sp, tp = e.tp } or nil\n"
    "        if layout and e.below and batch.tokens < e.below then layout = { sp = 1, tp = group.size } end\n"
    "        if not act.forward(group, batch, layout) then act.forward(group, batch) end\n"
    "      end\n"
    "    end\n"
    "  end,\n"
    "}\n";

static double begins_at(const struct regret *g, int bin)
{
    return g->horizon_s * bin / g->n_bins;
}

void regret_mode_words(const struct mode *m, struct buf *out)
{
    buf_printf(out, "%d x {sp=%d, tp=%d}", m->groups, m->sp, m->tp);
    if (m->below)
        buf_printf(out, " with steps below %d tokens in {tp=%d}", m->below, m->sp * m->tp);
}

int regret_switches(const struct regret *g, const struct run *r)
{
    int n = 0;
    for (int b = 1; b < g->n_bins; b++)
        n += r->modes[b] != r->modes[b - 1];
    return n;
}

void regret_schedule_words(const struct regret *g, const struct run *r, struct buf *out)
{
    for (int b = 0; b < g->n_bins; b++) {
        if (b && r->modes[b] == r->modes[b - 1])
            continue;
        buf_printf(out, "%sfrom %.2f s ", b ? ", " : "", begins_at(g, b));
        regret_mode_words(&g->modes[r->modes[b]], out);
    }
}

void regret_schedule_json(const struct regret *g, const struct run *r, struct buf *out)
{
    buf_putc(out, '[');
    for (int b = 0; b < g->n_bins; b++) {
        const struct mode *m = &g->modes[r->modes[b]];
        if (b && r->modes[b] == r->modes[b - 1])
            continue;
        buf_printf(out, "%s{\"at_s\":", b ? "," : "");
        json_put_double(out, begins_at(g, b));
        buf_printf(out, ",\"groups\":%d,\"sp\":%d,\"tp\":%d,\"below\":%d}", m->groups, m->sp, m->tp, m->below);
    }
    buf_putc(out, ']');
}

void regret_schedule_lua(const struct regret *g, const struct run *r, struct buf *out)
{
    buf_puts(out, head);
    for (int b = 0; b < g->n_bins; b++) {
        const struct mode *m = &g->modes[r->modes[b]];
        if (b && r->modes[b] == r->modes[b - 1])
            continue;
        buf_puts(out, "  { at = ");
        json_put_double(out, begins_at(g, b));
        buf_printf(out, ", groups = %d, sp = %d, tp = %d", m->groups, m->sp, m->tp);
        if (m->below)
            buf_printf(out, ", below = %d", m->below);
        buf_puts(out, " },\n");
    }
    buf_puts(out, body);
}
