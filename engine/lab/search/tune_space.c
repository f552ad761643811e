#include "engine/lab/search/tune_space.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/trace/portable_math.h"
#include "engine/base/nearest.h"

/* ---- one param */

/* Four digits: what remains of a value that people read and type. */
static double rounded(double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.4g", v);
    return strtod(text, NULL);
}

/* Three digits, and no less than v: an end of a range, for people to read. */
static double rounded_up(double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.3g", v);
    if (strtod(text, NULL) < v)
        snprintf(text, sizeof text, "%.3g", v * 1.005); /* half of the last digit, at most */
    return strtod(text, NULL);
}

static double held(const struct tune_param *p, double v)
{
    return v < p->low ? p->low : v > p->high ? p->high : v;
}

static double number_at(const struct tune_param *p, double u)
{
    double v = p->by_log ? p->low * portable_exp(u * portable_ln(p->high / p->low)) : p->low + u * (p->high - p->low);
    return held(p, p->kind == TUNE_INTEGER ? rint(v) : rounded(v));
}

static double coordinate_of(const struct tune_param *p, double v)
{
    if (p->high <= p->low)
        return 0;
    v = held(p, v);
    return p->by_log ? portable_ln(v / p->low) / portable_ln(p->high / p->low) : (v - p->low) / (p->high - p->low);
}

static int index_at(double u, int n)
{
    int i = (int)(u * n);
    return i < 0 ? 0 : i < n ? i : n - 1;
}

void tune_space_value(const struct tune_space *s, int i, double u, struct buf *out)
{
    const struct tune_param *p = &s->params[i];
    switch (p->kind) {
    case TUNE_BOOLEAN:
        buf_puts(out, u >= 0.5 ? "true" : "false");
        return;
    case TUNE_CHOICE:
        buf_puts(out, p->choices[index_at(u, p->n_choices)]);
        return;
    case TUNE_INTEGER:
        buf_printf(out, "%.0f", number_at(p, u));
        return;
    case TUNE_NUMBER:
        buf_printf(out, "%.17g", number_at(p, u));
        return;
    }
}

void tune_space_default(const struct tune_space *s, int i, struct buf *out)
{
    const struct tune_param *p = &s->params[i];
    if (p->kind <= TUNE_INTEGER)
        buf_printf(out, "%.17g", held(p, p->home));
    else
        tune_space_value(s, i, p->by_default, out);
}

void tune_space_json(const struct tune_space *s, const double *u, struct buf *out)
{
    buf_putc(out, '{');
    for (int i = 0; i < s->n; i++) {
        const struct tune_param *p = &s->params[i];
        buf_puts(out, i ? "," : "");
        buf_put_json(out, p->name, strlen(p->name));
        buf_putc(out, ':');
        if (p->kind == TUNE_CHOICE) {
            const char *c = p->choices[index_at(u[i], p->n_choices)];
            buf_put_json(out, c, strlen(c));
        } else if (p->kind == TUNE_NUMBER) {
            json_put_double(out, number_at(p, u[i]));
        } else {
            tune_space_value(s, i, u[i], out);
        }
    }
    buf_putc(out, '}');
}

void tune_space_words(const struct tune_space *s, const double *u, struct buf *out)
{
    for (int i = 0; i < s->n; i++) {
        const struct tune_param *p = &s->params[i];
        buf_printf(out, "%s%s=", i ? " " : "", p->name);
        if (p->kind == TUNE_NUMBER)
            buf_printf(out, "%.4g", number_at(p, u[i]));
        else
            tune_space_value(s, i, u[i], out);
    }
}

/* ---- what is declared */

static bool is_named(const struct strings *l, const char *name, const char **rest)
{
    for (int i = 0; i < l->n; i++) {
        size_t n = strcspn(l->items[i], "=");
        if (strlen(name) == n && !strncmp(l->items[i], name, n)) {
            *rest = l->items[i][n] ? l->items[i] + n + 1 : NULL;
            return true;
        }
    }
    return false;
}

/* "LOW..HIGH" within what is declared. */
static int read_bounds(struct tune_param *p, const char *text, struct err *e)
{
    const char *dots = strstr(text, "..");
    char *first = mem_strndup(text, dots ? (size_t)(dots - text) : 0), *end, *end2 = NULL;
    double low = strtod(first, &end), high = dots ? strtod(dots + 2, &end2) : 0;
    bool ok =
        dots && end != first && !*end && end2 != dots + 2 && !*end2 && low <= high && isfinite(low) && isfinite(high);
    mem_free(first);
    if (!ok)
        return err_set(e, E_INPUT, "--param %.40s: bounds are LOW..HIGH, not '%.40s'", p->name, text);
    if (low < p->low || high > p->high)
        return err_set(e, E_INPUT, "--param %.40s: the policy allows %g to %g", p->name, p->low, p->high);
    p->low = low;
    p->high = high;
    p->asked = true;
    return 0;
}

static bool read_declared(struct tune_param *p, const struct json *d)
{
    const char *type = json_text(json_find(d, "type"));
    const struct json *choices = json_find(d, "choices"), *min = json_find(d, "min"), *max = json_find(d, "max"),
                      *def = json_find(d, "default");
    *p = (struct tune_param){.name = json_key(d), .low = -INFINITY, .high = INFINITY};
    if (!type || !strcmp(type, "map"))
        return false;
    if (!strcmp(type, "boolean")) {
        p->kind = TUNE_BOOLEAN;
        p->by_default = json_true(def) ? 0.75 : 0.25;
        return true;
    }
    if (!strcmp(type, "string")) {
        p->kind = TUNE_CHOICE;
        for (const struct json *c = json_first(choices); c && p->n_choices < 8; c = json_next(c))
            p->choices[p->n_choices++] = json_text(c);
        for (int i = 0; i < p->n_choices; i++)
            if (json_text(def) && !strcmp(p->choices[i], json_text(def)))
                p->by_default = (i + 0.5) / p->n_choices;
        return p->n_choices > 0;
    }
    const char *unit = json_text(json_find(d, "unit"));
    p->kind = !strcmp(type, "integer") ? TUNE_INTEGER : TUNE_NUMBER;
    p->unit = unit ? unit_named(unit) : UNIT_NONE;
    unit_range(p->unit, &p->low, &p->high);
    p->home = json_number(def);
    p->low = json_type(min) == JSON_NUMBER ? json_number(min) : fmin(p->low, p->home);
    p->high = json_type(max) == JSON_NUMBER ? json_number(max) : p->high;
    return true;
}

static int add_param(struct tune_space *s, const struct json *d, const struct strings *asked, struct err *e)
{
    struct tune_param p;
    const char *bounds = NULL;
    bool possible = read_declared(&p, d), numeric = possible && p.kind <= TUNE_INTEGER,
         wanted = is_named(asked, json_key(d), &bounds);
    if (asked->n && !wanted)
        return 0;
    if (wanted && !possible)
        return err_set(e, E_UNSUPPORTED, "--param %.40s: a table or a free text cannot be searched", json_key(d));
    if (bounds && !numeric)
        return err_set(e, E_INPUT, "--param %.40s: only numbers have bounds", p.name);
    if (bounds)
        TRY(read_bounds(&p, bounds, e));
    bool ends = isfinite(p.high) || tune_unit_is_limited(p.unit);
    if (!possible || (numeric && (!isfinite(p.low) || !ends))) {
        if (wanted)
            return err_set(e, E_INPUT, "--param %.40s: the policy does not bound it: give --param %.40s=LOW..HIGH",
                           json_key(d), json_key(d));
        s->left[s->n_left++] = mem_strdup(json_key(d));
        return 0;
    }
    s->params[s->n++] = p;
    return 0;
}

/* ---- what a unit cuts off */

static int nothing_left(struct err *e)
{
    return err_set(e, E_UNSUPPORTED, "no param is left to search: those without bounds want --param NAME=LOW..HIGH");
}

static int cut_param(struct tune_param *p, const struct tune_limits *l, struct err *e)
{
    struct tune_limit limit;
    p->declared = p->high;
    if (!tune_limit_of(l, p->unit, &limit) || limit.most >= p->high || (p->asked && !limit.hard))
        return 0;
    if (p->asked && p->low > limit.most)
        return err_set(e, E_INPUT, "--param %.40s: from %.6g %s on (%s) it makes no difference", p->name, limit.most,
                       unit_name(p->unit), limit.why);
    double most = p->kind == TUNE_INTEGER ? ceil(limit.most) : limit.hard ? limit.most : rounded_up(limit.most);
    p->high = fmax(fmax(most, p->low), limit.hard ? p->low : p->home);
    if (p->high >= p->declared)
        p->high = p->declared;
    else
        p->cut_why = limit.why;
    return 0;
}

int tune_space_cut(struct tune_space *s, const struct tune_limits *l, struct err *e)
{
    int n = s->n;
    s->n = 0;
    for (int i = 0; i < n; i++) {
        struct tune_param p = s->params[i];
        bool numeric = p.kind <= TUNE_INTEGER;
        if (numeric)
            TRY(cut_param(&p, l, e));
        if (numeric && !isfinite(p.high)) {
            s->left[s->n_left++] = mem_strdup(p.name);
            continue;
        }
        if (numeric) {
            p.by_log = p.low > 0 && p.high / p.low >= 100;
            p.by_default = coordinate_of(&p, p.home);
        }
        s->params[s->n++] = p;
    }
    return s->n ? 0 : nothing_left(e);
}

void tune_space_cuts(const struct tune_space *s, struct buf *out)
{
    const char *comma = "";
    for (int i = 0; i < s->n; i++) {
        const struct tune_param *p = &s->params[i];
        if (!p->cut_why)
            continue;
        buf_printf(out, "%s%s to %.6g %s (%s)", comma, p->name, p->high, unit_name(p->unit), p->cut_why);
        comma = ", ";
    }
}

void tune_space_cuts_json(const struct tune_space *s, struct buf *out)
{
    const char *comma = "";
    buf_putc(out, '[');
    for (int i = 0; i < s->n; i++) {
        const struct tune_param *p = &s->params[i];
        if (!p->cut_why)
            continue;
        buf_printf(out, "%s{\"param\":", comma);
        buf_put_json(out, p->name, strlen(p->name));
        buf_printf(out, ",\"unit\":\"%s\",\"declared\":", unit_name(p->unit));
        if (isfinite(p->declared))
            json_put_double(out, p->declared);
        else
            buf_puts(out, "null");
        buf_puts(out, ",\"to\":");
        json_put_double(out, p->high);
        buf_printf(out, ",\"why\":\"%s\"}", p->cut_why);
        comma = ",";
    }
    buf_putc(out, ']');
}

/* ---- all of it */

static int check_names(const struct tune_space *s, const struct strings *asked, struct err *e)
{
    const char *names[TUNE_MAX];
    int n = 0;
    for (const struct json *d = json_first(s->declared); d && n < TUNE_MAX; d = json_next(d))
        names[n++] = json_key(d);
    for (int i = 0; i < asked->n; i++) {
        char *name = mem_strndup(asked->items[i], strcspn(asked->items[i], "="));
        const char *near = nearest_word(name, names, n);
        int rc = json_find(s->declared, name)
                     ? 0
                     : err_set(e, E_INPUT, "--param %.40s: the policy declares no such param%s%s%s", name,
                               near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        mem_free(name);
        TRY(rc);
    }
    return 0;
}

int tune_space_open(struct tune_space *s, const char *declared, const struct strings *asked,
                    const struct strings *fixed, struct err *e)
{
    *s = (struct tune_space){.declared = json_parse(declared, strlen(declared), NULL, e)};
    if (!s->declared)
        return E_INPUT;
    if (!json_count(s->declared))
        return err_set(e, E_UNSUPPORTED, "the policy declares no params: there is nothing to search");
    TRY(check_names(s, asked, e));
    const char *value;
    for (const struct json *d = json_first(s->declared); d && s->n < TUNE_MAX; d = json_next(d))
        if (!is_named(fixed, json_key(d), &value))
            TRY(add_param(s, d, asked, e));
    return s->n ? 0 : nothing_left(e);
}

void tune_space_close(struct tune_space *s)
{
    for (int i = 0; i < s->n_left; i++)
        mem_free(s->left[i]);
    json_free(s->declared);
    *s = (struct tune_space){0};
}
