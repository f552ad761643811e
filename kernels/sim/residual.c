#include "kernels/sim/residual.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/rng.h"

/* The levels of "quantiles", and where a normal variable has them. */
static const struct {
    double level, z;
} levels[RESIDUAL_LEVELS] = {{0.005, -2.575829}, {0.025, -1.959964}, {0.05, -1.644854}, {0.1, -1.281552},
                             {0.25, -0.67449},   {0.5, 0},           {0.75, 0.67449},   {0.9, 1.281552},
                             {0.95, 1.644854},   {0.975, 1.959964},  {0.995, 2.575829}};

/* ---- reading */

static const double LEAST_DOUBLINGS = 0.1, MOST_DOUBLINGS = 64, LEAST_RATIO = 0.01, MOST_RATIO = 100;

/* n numbers from low to high, not descending, or (strictly) ascending. */
static int read_numbers(double *to, int n, const struct json *j, const double bounds[2], bool ascending)
{
    int i = 0;
    if (json_type(j) != JSON_ARRAY || json_count(j) != (size_t)n)
        return -1;
    for (const struct json *x = json_first(j); x; x = json_next(x), i++) {
        to[i] = json_number(x);
        if (json_type(x) != JSON_NUMBER || !(to[i] >= bounds[0] && to[i] <= bounds[1]) ||
            (ascending && i && !(to[i] > to[i - 1])))
            return -1;
    }
    return 0;
}

static int read_regions(struct sim_residual *r, enum sim_table_kind kind, const struct json *o, const char *what,
                        struct err *e)
{
    static const double places[2] = {1e-9, 1e15}, ratios[2] = {LEAST_RATIO, MOST_RATIO};
    const struct json *at = json_find(o, "at"), *quantiles = json_find(o, "quantiles");
    const char *along = json_text(json_find(o, "along"));
    size_t n = json_count(at);
    for (r->axis = 0; along && r->axis < sim_table_axes(kind); r->axis++)
        if (!strcmp(along, sim_table_axis(kind, r->axis)))
            break;
    if (!along || r->axis == sim_table_axes(kind))
        return err_set(e, E_INPUT, "%s: \"along\" must name an axis of the table", what);
    if (n < 1 || n > RESIDUAL_REGIONS || read_numbers(r->at, (int)n, at, places, true))
        return err_set(e, E_INPUT, "%s: \"at\" must list 1 to %d ascending places", what, RESIDUAL_REGIONS);
    if (json_type(quantiles) != JSON_ARRAY || json_count(quantiles) != n)
        return err_set(e, E_INPUT, "%s: \"quantiles\" must have a list for each of %zu places", what, n);
    for (const struct json *q = json_first(quantiles); q; q = json_next(q)) {
        double *to = r->quantiles[r->n++];
        bool bad = read_numbers(to, RESIDUAL_LEVELS, q, ratios, false) != 0;
        for (int i = 1; i < RESIDUAL_LEVELS && !bad; i++)
            bad = to[i] < to[i - 1];
        if (bad)
            return err_set(e, E_INPUT, "%s: \"quantiles\" must list %d numbers from %g to %g that do not descend", what,
                           RESIDUAL_LEVELS, LEAST_RATIO, MOST_RATIO);
    }
    return 0;
}

static int read_kind(struct sim_residual *r, enum sim_table_kind kind, const struct json *o, const char *what,
                     struct err *e)
{
    static const char *const known[] = {"rows", "doublings", "along", "at", "quantiles", "median"};
    static const double lengths[2] = {0, MOST_DOUBLINGS};
    int64_t rows;
    for (const struct json *m = json_first(o); m; m = json_next(m)) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(json_key(m), known[i]) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            return err_set(e, E_INPUT, "%s: unknown field \"%.40s\"", what, json_key(m));
    }
    if (json_type(o) != JSON_OBJECT || !json_i64(json_find(o, "rows"), &rows) || rows < 1)
        return err_set(e, E_INPUT, "%s: \"rows\" must say from how many measured rows it comes", what);
    bool bad = read_numbers(r->doublings, sim_table_axes(kind), json_find(o, "doublings"), lengths, false) != 0;
    for (int a = 0; a < sim_table_axes(kind); a++)
        bad = bad || (r->doublings[a] > 0 && r->doublings[a] < LEAST_DOUBLINGS);
    if (bad)
        return err_set(e, E_INPUT, "%s: \"doublings\" must list %d numbers, one for each axis: 0, or %g to %g", what,
                       sim_table_axes(kind), LEAST_DOUBLINGS, MOST_DOUBLINGS);
    if (json_find(o, "median") && json_type(json_find(o, "median")) != JSON_ARRAY)
        return err_set(e, E_INPUT, "%s: \"median\" must be a list", what);
    return read_regions(r, kind, o, what, e);
}

int sim_residuals_read(struct sim_residuals *r, const struct json *object, const char *name, struct err *e)
{
    if (json_type(object) != JSON_OBJECT)
        return err_set(e, E_INPUT, "%s: \"residuals\" must be an object, not %s", name, json_type_name(object));
    if (!json_text(json_find(object, "origin")))
        return err_set(e, E_INPUT, "%s: \"residuals\" must say \"origin\": where they come from", name);
    for (const struct json *m = json_first(object); m; m = json_next(m)) {
        char what[160];
        int kind = sim_table_find(json_key(m));
        if (!strcmp(json_key(m), "origin"))
            continue;
        if (kind < 0)
            return err_set(e, E_INPUT, "%s: \"residuals\": unknown kind of kernel \"%.40s\"", name, json_key(m));
        snprintf(what, sizeof what, "%.100s: residuals of %s", name, json_key(m));
        TRY(read_kind(&r->of[kind], (enum sim_table_kind)kind, m, what, e));
    }
    return 0;
}

void sim_residuals_lack(const struct sim_residuals *r, struct buf *out)
{
    const char *comma = "";
    for (int k = 0; k < TABLE_KINDS; k++)
        if (!r->of[k].n) {
            buf_printf(out, "%s%s", comma, sim_table_name((enum sim_table_kind)k));
            comma = ", ";
        }
}

/* ---- drawing */

static uint64_t mix(uint64_t seed, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return rng_at(seed, bits);
}

/* Of mean 0 and variance 1, nearly normal: the sum of twelve even ones. */
static double normal(uint64_t seed)
{
    struct rng r;
    double sum = 0;
    rng_init(&r, seed);
    for (int i = 0; i < 3; i++) {
        uint64_t v = rng_next(&r);
        for (int k = 0; k < 4; k++, v >>= 16)
            sum += (double)(v & 0xffff) + 0.5;
    }
    return sum / 65536 - 6;
}

/* A field over the axes: independent values at the points of a lattice whose steps are as long as errors stay the same,
 * linear between them, and scaled back to variance 1. The lattice lies at random, so no place is special. */
static double field(const struct sim_residual *r, int n_axes, uint64_t seed, const double *x)
{
    double w[TABLE_AXES], sum = 0, squares = 0;
    int64_t at[TABLE_AXES];
    int n = 0;
    for (int a = 0; a < n_axes; a++) {
        if (r->doublings[a] == 0) {
            seed = mix(seed, x[a]);
            continue;
        }
        double shift = (double)(rng_at(seed, (uint64_t)a) >> 11) * 0x1p-53;
        double place = sim_table_scale(x[a]) / r->doublings[a] + shift;
        at[n] = (int64_t)floor(place);
        w[n] = place - (double)at[n];
        n++;
    }
    for (int corner = 0; corner < 1 << n; corner++) {
        double part = 1;
        uint64_t where = seed;
        for (int a = 0; a < n; a++) {
            int up = corner >> a & 1;
            part *= up ? w[a] : 1 - w[a];
            where = rng_at(where, (uint64_t)(at[a] + up));
        }
        if (part > 0)
            sum += part * normal(where);
        squares += part * part;
    }
    return sum / sqrt(squares);
}

/* The quantiles at x along the regions' axis. */
static void quantiles_at(const struct sim_residual *r, const double *x, double out[RESIDUAL_LEVELS])
{
    int i = 0;
    while (i + 1 < r->n && r->at[i + 1] <= x[r->axis])
        i++;
    double w = 0;
    if (i + 1 < r->n && x[r->axis] > r->at[i]) {
        double lo = sim_table_scale(r->at[i]), hi = sim_table_scale(r->at[i + 1]);
        w = (sim_table_scale(x[r->axis]) - lo) / (hi - lo);
    }
    for (int k = 0; k < RESIDUAL_LEVELS; k++)
        out[k] = w > 0 ? (1 - w) * r->quantiles[i][k] + w * r->quantiles[i + 1][k] : r->quantiles[i][k];
}

double sim_residual_draw(const struct sim_residuals *r, uint64_t seed, enum sim_table_kind kind, const double *x)
{
    const struct sim_residual *k = &r->of[kind];
    double q[RESIDUAL_LEVELS];
    int i = 0;
    if (!k->n)
        return 1;
    double z = field(k, sim_table_axes(kind), rng_at(seed, (uint64_t)kind), x);
    quantiles_at(k, x, q);
    if (z <= levels[0].z)
        return q[0];
    if (z >= levels[RESIDUAL_LEVELS - 1].z)
        return q[RESIDUAL_LEVELS - 1];
    while (levels[i + 1].z <= z)
        i++;
    return q[i] + (q[i + 1] - q[i]) * (z - levels[i].z) / (levels[i + 1].z - levels[i].z);
}

double sim_residual_level(const struct sim_residual *r, double level, const double *x)
{
    double q[RESIDUAL_LEVELS];
    int i = 0;
    quantiles_at(r, x, q);
    while (i + 1 < RESIDUAL_LEVELS && levels[i].level < level)
        i++;
    return q[i];
}
