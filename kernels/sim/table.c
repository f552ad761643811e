#include "kernels/sim/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

enum { MAX_POINTS = 64, MAX_VALUES = 1 << 20 };

#define GEMM_AXES                                                                                                      \
    3,                                                                                                                 \
    {                                                                                                                  \
        "outputs", "columns", "rows"                                                                                   \
    }
#define PREFILL_AXES                                                                                                   \
    5,                                                                                                                 \
    {                                                                                                                  \
        "head size", "q heads per kv head", "new tokens", "sequences", "q heads"                                       \
    }
#define DECODE_AXES                                                                                                    \
    3,                                                                                                                 \
    {                                                                                                                  \
        "head size", "cached tokens", "sequences times kv heads"                                                       \
    }
#define COLLECTIVE_AXES                                                                                                \
    2,                                                                                                                 \
    {                                                                                                                  \
        "devices", "bytes"                                                                                             \
    }

static const struct {
    const char *name;
    int n_axes;
    const char *axes[TABLE_AXES];
} kinds[TABLE_KINDS] = {
    [TABLE_GEMM_BF16] = {"gemm_bf16", GEMM_AXES},          [TABLE_GEMM_FP8] = {"gemm_fp8", GEMM_AXES},
    [TABLE_PREFILL_BF16] = {"prefill_bf16", PREFILL_AXES}, [TABLE_PREFILL_FP8] = {"prefill_fp8", PREFILL_AXES},
    [TABLE_DECODE_BF16] = {"decode_bf16", DECODE_AXES},    [TABLE_DECODE_FP8] = {"decode_fp8", DECODE_AXES},
    [TABLE_REDUCE] = {"all_reduce", COLLECTIVE_AXES},      [TABLE_REDUCE_EAGER] = {"all_reduce_eager", COLLECTIVE_AXES},
    [TABLE_ALL_TO_ALL] = {"all_to_all", COLLECTIVE_AXES},  [TABLE_ALL_GATHER] = {"all_gather", COLLECTIVE_AXES},
};

double sim_table_scale(double x)
{
    int e;
    double m = frexp(x, &e);
    return e + 2 * m;
}

static int read_axis(struct sim_table *t, const struct json *j, const char *name, struct err *e)
{
    size_t n = json_count(j);
    double last = 0;
    if (json_type(j) != JSON_ARRAY || n < 1 || n > MAX_POINTS)
        return err_set(e, E_INPUT, "%s: an axis must list 1 to %d numbers", name, MAX_POINTS);
    double *axis = t->axis[t->n_axes] = mem_new_array(n, sizeof *axis);
    double *scale = t->scale[t->n_axes] = mem_new_array(n, sizeof *scale);
    t->size[t->n_axes++] = (int)n;
    for (const struct json *x = json_first(j); x; x = json_next(x)) {
        double v = json_number(x);
        if (json_type(x) != JSON_NUMBER || !(v > last && v < 1e15))
            return err_set(e, E_INPUT, "%s: an axis must be positive and ascending", name);
        *axis++ = last = v;
        *scale++ = sim_table_scale(v);
    }
    return 0;
}

static int read_axes(struct sim_table *t, const struct json *j, const char *name, struct err *e)
{
    if (json_type(j) != JSON_ARRAY || json_count(j) < 1 || json_count(j) > TABLE_AXES)
        return err_set(e, E_INPUT, "%s: \"axes\" must list 1 to %d axes", name, TABLE_AXES);
    for (const struct json *a = json_first(j); a; a = json_next(a))
        TRY(read_axis(t, a, name, e));
    return 0;
}

static int read_values(struct sim_table *t, const struct json *j, const char *name, struct err *e)
{
    size_t n = 1;
    for (int i = 0; i < t->n_axes; i++)
        n *= (size_t)t->size[i];
    if (json_type(j) != JSON_ARRAY || json_count(j) != n || n > MAX_VALUES)
        return err_set(e, E_INPUT, "%s: \"thousandths\" must list %zu values, one for each point of the axes", name, n);
    int32_t *to = t->values = mem_new_array(n, sizeof *to);
    for (const struct json *x = json_first(j); x; x = json_next(x)) {
        int64_t v;
        if (!json_i64(x, &v) || v < 1 || v > 100000000)
            return err_set(e, E_INPUT, "%s: \"thousandths\" must be whole numbers from 1 to 100000000", name);
        *to++ = (int32_t)v;
    }
    return 0;
}

static int read_table(struct sim_table *t, const struct json *o, const char *name, struct err *e)
{
    for (const struct json *m = json_first(o); m; m = json_next(m))
        if (strcmp(json_key(m), "axes") != 0 && strcmp(json_key(m), "thousandths") != 0 &&
            strcmp(json_key(m), "origin") != 0)
            return err_set(e, E_INPUT, "%s: unknown field \"%.40s\"", name, json_key(m));
    if (!json_text(json_find(o, "origin")))
        return err_set(e, E_INPUT, "%s: \"origin\" must say where the numbers come from", name);
    TRY(read_axes(t, json_find(o, "axes"), name, e));
    return read_values(t, json_find(o, "thousandths"), name, e);
}

int sim_table_find(const char *key)
{
    for (int i = 0; i < TABLE_KINDS; i++)
        if (!strcmp(key, kinds[i].name))
            return i;
    return -1;
}

int sim_tables_read(struct sim_tables *t, const struct json *object, const char *name, struct err *e)
{
    if (json_type(object) != JSON_OBJECT)
        return err_set(e, E_INPUT, "%s must be an object, not %s", name, json_type_name(object));
    for (const struct json *m = json_first(object); m; m = json_next(m)) {
        int kind = sim_table_find(json_key(m));
        char what[160];
        if (kind < 0 || t->of[kind].n_axes)
            return err_set(e, E_INPUT, "%s: %s table \"%.40s\"", name, kind < 0 ? "unknown" : "a second", json_key(m));
        snprintf(what, sizeof what, "%.100s: table %s", name, kinds[kind].name);
        TRY(read_table(&t->of[kind], m, what, e));
        if (t->of[kind].n_axes != kinds[kind].n_axes)
            return err_set(e, E_INPUT, "%s: %d axes are needed", what, kinds[kind].n_axes);
    }
    return 0;
}

void sim_tables_free(struct sim_tables *t)
{
    for (int k = 0; k < TABLE_KINDS; k++) {
        for (int a = 0; a < TABLE_AXES; a++) {
            mem_free(t->of[k].axis[a]);
            mem_free(t->of[k].scale[a]);
        }
        mem_free(t->of[k].values);
    }
    *t = (struct sim_tables){0};
}

/* The point of an axis at or below x and how far x is towards the next. */
static double place(const struct sim_table *t, int a, double x, int *at)
{
    const double *axis = t->axis[a], *scale = t->scale[a];
    int lo = 0, hi = t->size[a] - 1;
    *at = 0;
    if (hi == 0 || x <= axis[0])
        return 0;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (axis[mid] <= x)
            lo = mid;
        else
            hi = mid;
    }
    *at = lo;
    return x >= axis[hi] ? 1 : (sim_table_scale(x) - scale[lo]) / (scale[hi] - scale[lo]);
}

/* Between how many points it takes the mean is 2 to the number of axes along which x lies between two: most often it is
 * a point along all but one or two. */
double sim_table_at(const struct sim_table *t, const double *x)
{
    double w[TABLE_AXES], sum = 0;
    int step[TABLE_AXES], n = 0, first = 0, at;
    for (int a = 0; a < t->n_axes; a++) {
        for (int i = 0; i < n; i++)
            step[i] *= t->size[a];
        w[n] = place(t, a, x[a], &at);
        step[n] = 1;
        first = first * t->size[a] + at + (w[n] == 1);
        n += w[n] > 0 && w[n] < 1;
    }
    for (int corner = 0; corner < 1 << n; corner++) {
        double part = 1;
        int i = first;
        for (int a = 0; a < n; a++) {
            int up = corner >> a & 1;
            part *= up ? w[a] : 1 - w[a];
            i += up ? step[a] : 0;
        }
        sum += part * t->values[i];
    }
    return sum / 1000;
}

int sim_table_leaves(const struct sim_table *t, const double *x)
{
    for (int a = 0; a < t->n_axes; a++)
        if (x[a] < t->axis[a][0] || x[a] > t->axis[a][t->size[a] - 1])
            return a;
    return -1;
}

const char *sim_table_name(enum sim_table_kind kind)
{
    return kinds[kind].name;
}

int sim_table_axes(enum sim_table_kind kind)
{
    return kinds[kind].n_axes;
}

const char *sim_table_axis(enum sim_table_kind kind, int axis)
{
    return kinds[kind].axes[axis];
}
