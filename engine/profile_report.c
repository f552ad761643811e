#include "engine/profile_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const op_names[PROFILE_OPS] = {
    [PROFILE_PREPARE] = "prepare",
    [PROFILE_EMBED] = "embed",
    [PROFILE_QKV] = "qkv",
    [PROFILE_ATTENTION_OUT] = "attention output",
    [PROFILE_GATE_UP] = "gate|up",
    [PROFILE_DOWN] = "down",
    [PROFILE_HEAD] = "head",
    [PROFILE_OTHER_LINEAR] = "other products",
    [PROFILE_ROPE] = "rope",
    [PROFILE_KV_WRITE] = "kv write",
    [PROFILE_ATTENTION] = "attention",
    [PROFILE_GATHER] = "gather",
    [PROFILE_SAMPLE] = "sample",
    [PROFILE_DRAFT] = "draft heads",
    [PROFILE_EXCHANGE] = "exchange",
    [PROFILE_REDUCE] = "reduce",
};
static const char *const size_names[PROFILE_SIZES] = {
    [PROFILE_ONE] = "1", [PROFILE_FEW] = "2-16", [PROFILE_MANY] = "17+"};

/* ---- a row, whatever it is of */

struct row {
    const char *name;
    struct profile_count n;
    double share; /* of the steps' time */
    double
        alone;   /* of its own time: one thread of the rank alone, while the others had nothing to do; < 0: no others */
    double wait; /* of its own time; < 0: no others */
    double gb_s, gop_s;
    double of_read, of_products; /* stored bytes and operations, of what the machine can do at most; < 0: not known, or
                                    there are none */
};

static double ratio(double a, double b)
{
    return b > 0 ? a / b : -1;
}

/* How much of a second of a device the operations would take at their peaks; < 0: not known. */
static double at_peak(const struct profile *p, const struct profile_count *n)
{
    double int8 = n->int8_ops > 0 ? ratio(n->int8_ops * p->n_devices, p->peaks.int8_ops) : 0;
    double floats = n->float_ops > 0 ? ratio(n->float_ops * p->n_devices, p->peaks.float_ops) : 0;
    return int8 < 0 || floats < 0 || int8 + floats <= 0 ? -1 : int8 + floats;
}

static struct row row_of(const struct profile *p, const struct profile_steps *s, const char *name,
                         const struct profile_count *n)
{
    double took = (double)n->ns * 1e-9, ops = n->int8_ops + n->float_ops, peak = at_peak(p, n);
    bool others = p->n_threads > p->n_devices && n->ns > 0, reads = n->stored_bytes > 0 && p->peaks.bytes > 0;
    return (struct row){.name = name,
                        .n = *n,
                        .share = s->ns > 0 ? (double)n->ns / (double)s->ns : 0,
                        .alone = others ? (double)(n->ns - n->pool_ns) / (double)n->ns : -1,
                        .wait = others ? (double)n->wait_ns / (double)n->ns : -1,
                        .gb_s = took > 0 ? n->bytes * 1e-9 / took : 0,
                        .gop_s = took > 0 ? ops * 1e-9 / took : 0,
                        .of_read = reads ? ratio(n->stored_bytes * p->n_devices / p->peaks.bytes, took) : -1,
                        .of_products = peak < 0 ? -1 : ratio(peak, took)};
}

enum { ROWS = PROFILE_OPS + 2 };

/* The ops that were called, what is between them, all. Returns how many rows that is. */
static int rows_of(const struct profile *p, const struct profile_steps *s, struct row rows[ROWS])
{
    struct profile_count all = {0};
    int n = 0;
    for (int i = 0; i < PROFILE_OPS; i++) {
        if (s->ops[i].calls)
            rows[n++] = row_of(p, s, op_names[i], &s->ops[i]);
        profile_add(&all, &s->ops[i]);
    }
    struct profile_count rest = {.calls = s->steps, .ns = s->ns - all.ns};
    rows[n++] = row_of(p, s, "rest", &rest);
    all.ns = s->ns;
    rows[n++] = row_of(p, s, "total", &all);
    return n;
}

/* ---- for people */

static const char *percent(double share, char out[16])
{
    snprintf(out, 16, share < 0 ? "-" : "%.1f%%", 100 * share);
    return out;
}

static const char *number(double x, char out[16])
{
    snprintf(out, 16, x <= 0 ? "-" : x < 9.9995 ? "%.3f" : x < 99.995 ? "%.2f" : "%.1f", x);
    return out;
}

static void put_row(const struct row *r, struct buf *out)
{
    char share[16], alone[16], wait[16], gb[16], gb_s[16], of_read[16], gop[16], gop_s[16], of_products[16];
    double ops = r->n.int8_ops + r->n.float_ops;
    buf_printf(out, "%-16s %8" PRIu64 " %10.2f %6s %6s %6s %8s %7s %6s %9s %7s %6s\n", r->name, r->n.calls,
               (double)r->n.ns * 1e-6, percent(r->share, share), percent(r->alone, alone), percent(r->wait, wait),
               number(r->n.bytes * 1e-9, gb), number(r->gb_s, gb_s), percent(r->of_read, of_read),
               number(ops * 1e-9, gop), number(r->gop_s, gop_s), percent(r->of_products, of_products));
}

static void put_steps(const struct profile *p, const struct profile_steps *s, const char *size, struct buf *out)
{
    struct row rows[ROWS];
    int n = rows_of(p, s, rows);
    buf_printf(out, "\nSteps of %s row%s: %" PRIu64 " (%" PRIu64 " rows), %.2f ms, and %.2f ms before them\n", size,
               strcmp(size, "1") ? "s" : "", s->steps, s->rows, (double)s->ns * 1e-6, (double)s->before_ns * 1e-6);
    buf_printf(out, "%-16s %8s %10s %6s %6s %6s %8s %7s %6s %9s %7s %6s\n", "op", "calls", "ms", "share", "alone",
               "wait", "GB", "GB/s", "peak", "Gop", "Gop/s", "peak");
    for (int i = 0; i < n; i++)
        put_row(&rows[i], out);
}

void profile_table(const struct profile *p, struct buf *out)
{
    char gb_s[16], int8[16], floats[16];
    buf_printf(out,
               "Profile by op; ranks: %d, threads: %d; peaks of a rank: %s GB/s read, %s Gop/s of int8, %s of floats\n",
               p->n_devices, p->n_threads, number(ratio(p->peaks.bytes, p->n_devices) * 1e-9, gb_s),
               number(ratio(p->peaks.int8_ops, p->n_devices) * 1e-9, int8),
               number(ratio(p->peaks.float_ops, p->n_devices) * 1e-9, floats));
    for (int i = 0; i < PROFILE_SIZES; i++)
        if (p->steps[i].steps)
            put_steps(p, &p->steps[i], size_names[i], out);
}

/* ---- for programs */

static void put_share(struct buf *out, const char *name, double x)
{
    if (x < 0)
        buf_printf(out, ",\"%s\":null", name);
    else
        buf_printf(out, ",\"%s\":%.6g", name, x);
}

static void put_row_json(const struct row *r, struct buf *out)
{
    buf_printf(
        out,
        "{\"op\":\"%s\",\"calls\":%" PRIu64 ",\"ns\":%" PRId64 ",\"pool_ns\":%" PRId64 ",\"wait_ns\":%" PRId64
        ",\"bytes\":%.0f,\"stored_bytes\":%.0f,\"int8_ops\":%.0f,\"float_ops\":%.0f,\"share\":%.6g,\"gb_s\":%.6g,"
        "\"gop_s\":%.6g",
        r->name, r->n.calls, r->n.ns, r->n.pool_ns, r->n.wait_ns, r->n.bytes, r->n.stored_bytes, r->n.int8_ops,
        r->n.float_ops, r->share, r->gb_s, r->gop_s);
    put_share(out, "of_read_peak", r->of_read);
    put_share(out, "of_products_peak", r->of_products);
    buf_putc(out, '}');
}

void profile_json(const struct profile *p, struct buf *out)
{
    buf_printf(out,
               "{\"ranks\":%d,\"threads\":%d,\"peaks\":{\"bytes_s\":%.0f,\"int8_ops_s\":%.0f,\"float_ops_s\":%.0f},"
               "\"steps\":[",
               p->n_devices, p->n_threads, p->peaks.bytes, p->peaks.int8_ops, p->peaks.float_ops);
    for (int i = 0; i < PROFILE_SIZES; i++) {
        const struct profile_steps *s = &p->steps[i];
        struct row rows[ROWS];
        int n = rows_of(p, s, rows);
        buf_printf(out,
                   "%s{\"rows_a_step\":\"%s\",\"steps\":%" PRIu64 ",\"rows\":%" PRIu64 ",\"ns\":%" PRId64
                   ",\"before_ns\":%" PRId64 ",\"ops\":[",
                   i ? "," : "", size_names[i], s->steps, s->rows, s->ns, s->before_ns);
        for (int k = 0; k < n; k++) {
            if (k)
                buf_putc(out, ',');
            put_row_json(&rows[k], out);
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "]}");
}
