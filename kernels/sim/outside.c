#include "kernels/sim/outside.h"

#include "engine/base/json.h"
#include "engine/base/mem.h"

static void note_axis(struct sim_outside_table *t, int axis, const double bounds[2], double x)
{
    if (t->axis != axis)
        t->low = t->high = 0;
    t->axis = axis;
    t->from = bounds[0];
    t->to = bounds[1];
    if (x < t->from && (t->low == 0 || x < t->low))
        t->low = x;
    if (x > t->to && x > t->high)
        t->high = x;
}

void sim_outside_note(struct sim_outside *o, const struct sim_tables *tables, enum sim_table_kind kind, const double *x,
                      double ns)
{
    const struct sim_table *t = &tables->of[kind];
    static const double described[2] = {2, 8};
    int axis = -1;
    if (t->n_axes)
        axis = sim_table_leaves(t, x);
    else if (kind >= TABLE_REDUCE && x[0] > described[1])
        axis = 0;
    if (axis < 0)
        return;
    const double measured[2] = {t->n_axes ? t->axis[axis][0] : described[0],
                                t->n_axes ? t->axis[axis][t->size[axis] - 1] : described[1]};
    o->of[kind].ns += ns * o->times;
    o->outside_ns += ns * o->times;
    note_axis(&o->of[kind], axis, measured, x[axis]);
}

struct sim_outside *sim_outside_new(void)
{
    return mem_new(sizeof(struct sim_outside));
}

void sim_outside_free(struct sim_outside *o)
{
    mem_free(o);
}

double sim_outside_share(const struct sim_outside *o)
{
    return o && o->total_ns > 0 ? o->outside_ns / o->total_ns : 0;
}

void sim_outside_words(const struct sim_outside *o, struct buf *out)
{
    const char *between = "";
    for (int k = 0; k < TABLE_KINDS; k++) {
        const struct sim_outside_table *t = &o->of[k];
        if (t->ns < 0.0005 * o->total_ns)
            continue; /* 0.0% */
        buf_printf(out, "%s%s %.1f%% (%s", between, sim_table_name((enum sim_table_kind)k), 100 * t->ns / o->total_ns,
                   sim_table_axis((enum sim_table_kind)k, t->axis));
        if (t->low > 0)
            buf_printf(out, " down to %.6g", t->low);
        if (t->high > 0)
            buf_printf(out, "%s up to %.6g", t->low > 0 ? " and" : "", t->high);
        buf_printf(out, ", measured %.6g to %.6g)", t->from, t->to);
        between = "; ";
    }
}

static void put_bound(struct buf *out, const char *name, double v)
{
    buf_printf(out, ",\"%s\":", name);
    if (v > 0)
        json_put_double(out, v);
    else
        buf_puts(out, "null");
}

void sim_outside_json(const struct sim_outside *o, struct buf *out)
{
    const char *comma = "";
    buf_puts(out, "{\"share\":");
    json_put_double(out, sim_outside_share(o));
    buf_puts(out, ",\"tables\":[");
    for (int k = 0; k < TABLE_KINDS; k++) {
        const struct sim_outside_table *t = &o->of[k];
        if (t->ns <= 0)
            continue;
        buf_printf(out, "%s{\"table\":\"%s\",\"share\":", comma, sim_table_name((enum sim_table_kind)k));
        json_put_double(out, t->ns / o->total_ns);
        buf_printf(out, ",\"axis\":\"%s\",\"measured\":[", sim_table_axis((enum sim_table_kind)k, t->axis));
        json_put_double(out, t->from);
        buf_putc(out, ',');
        json_put_double(out, t->to);
        buf_putc(out, ']');
        put_bound(out, "low", t->low);
        put_bound(out, "high", t->high);
        buf_putc(out, '}');
        comma = ",";
    }
    buf_puts(out, "]}");
}
