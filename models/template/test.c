/* The tests of `is`, and the global functions. */
#include <string.h>
#include <time.h>

#include "models/template/str.h"

#define TEST(name)                                                                                                     \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

TEST(t_defined)
{
    UNUSED;
    return j_bool(self.kind != J_UNDEFINED);
}

TEST(t_undefined)
{
    UNUSED;
    return j_bool(self.kind == J_UNDEFINED);
}

TEST(t_none)
{
    UNUSED;
    return j_bool(self.kind == J_NONE);
}

TEST(t_boolean)
{
    UNUSED;
    return j_bool(self.kind == J_BOOL);
}

TEST(t_true)
{
    UNUSED;
    return j_bool(self.kind == J_BOOL && self.u.b);
}

TEST(t_false)
{
    UNUSED;
    return j_bool(self.kind == J_BOOL && !self.u.b);
}

TEST(t_integer)
{
    UNUSED;
    return j_bool(self.kind == J_INT || self.kind == J_BIG);
}

TEST(t_float)
{
    UNUSED;
    return j_bool(self.kind == J_FLOAT);
}

TEST(t_number)
{
    UNUSED;
    return j_bool(j_is_number(self) || self.kind == J_BIG);
}

TEST(t_string)
{
    UNUSED;
    return j_bool(self.kind == J_STRING);
}

TEST(t_mapping)
{
    UNUSED;
    return j_bool(self.kind == J_DICT);
}

TEST(t_iterable)
{
    UNUSED;
    return j_bool(j_iterable(self));
}

TEST(t_escaped)
{
    UNUSED;
    return j_bool(self.kind == J_STRING && self.markup);
}

TEST(t_sameas)
{
    UNUSED;
    return j_bool(j_is(self, a[0]));
}

TEST(t_in)
{
    UNUSED;
    return j_bool(j_in(r, self, a[0]));
}

TEST(t_eq)
{
    UNUSED;
    return j_bool(j_equal(r, self, a[0]));
}

TEST(t_ne)
{
    UNUSED;
    return j_bool(!j_equal(r, self, a[0]));
}

TEST(t_lt)
{
    UNUSED;
    return j_bool(j_less(r, self, a[0], false));
}

TEST(t_le)
{
    UNUSED;
    return j_bool(j_less(r, self, a[0], true));
}

TEST(t_gt)
{
    UNUSED;
    return j_bool(j_less(r, a[0], self, false));
}

TEST(t_ge)
{
    UNUSED;
    return j_bool(j_less(r, a[0], self, true));
}

TEST(t_sequence)
{
    UNUSED;
    return j_bool(j_has_length(self) && self.kind != J_VIEW && self.kind != J_LOOP);
}

TEST(t_callable)
{
    UNUSED;
    switch (self.kind) {
    case J_UNDEFINED: /* its class has a __call__, which raises */
    case J_MACRO:
    case J_LOOP:
    case J_METHOD:
    case J_FUNCTION:
    case J_JOINER:
        return j_bool(true);
    }
    return j_bool(false);
}

static struct value remainder_is(struct run *r, struct value v, struct value divisor, int64_t want)
{
    return j_bool(j_equal(r, j_binary(r, T_MOD, v, divisor), j_int(want)));
}

TEST(t_odd)
{
    UNUSED;
    return remainder_is(r, self, j_int(2), 1);
}

TEST(t_even)
{
    UNUSED;
    return remainder_is(r, self, j_int(2), 0);
}

TEST(t_divisibleby)
{
    UNUSED;
    return remainder_is(r, self, a[0], 0);
}

static struct value text_question(struct run *r, struct value self, const char *method)
{
    struct value s = j_str(r, self);
    const struct args none = {0};
    return j_failed(r) ? s : j_call_builtin(r, text_method_find(method, strlen(method)), s, &none);
}

TEST(t_lower)
{
    UNUSED;
    return text_question(r, self, "islower");
}

TEST(t_upper)
{
    UNUSED;
    return text_question(r, self, "isupper");
}

/* A name is looked up in a dict of Python's, so it must be hashable. */
TEST(t_filter)
{
    UNUSED;
    uint64_t hash;
    if (!j_hash(r, self, &hash) || self.kind != J_STRING)
        return j_bool(false);
    return j_bool(filter_find(self.u.s->data, self.u.s->len) || filter_refused(self.u.s->data, self.u.s->len));
}

TEST(t_test)
{
    UNUSED;
    uint64_t hash;
    return j_bool(j_hash(r, self, &hash) && self.kind == J_STRING && test_find(self.u.s->data, self.u.s->len));
}

const struct builtin *test_find(const char *name, size_t n)
{
    static const struct builtin table[] = {
        {"odd", "", t_odd},
        {"even", "", t_even},
        {"divisibleby", "num", t_divisibleby},
        {"defined", "", t_defined},
        {"undefined", "", t_undefined},
        {"filter", "", t_filter},
        {"test", "", t_test},
        {"none", "", t_none},
        {"boolean", "", t_boolean},
        {"false", "", t_false},
        {"true", "", t_true},
        {"integer", "", t_integer},
        {"float", "", t_float},
        {"lower", "", t_lower},
        {"upper", "", t_upper},
        {"string", "", t_string},
        {"mapping", "", t_mapping},
        {"number", "", t_number},
        {"sequence", "", t_sequence},
        {"iterable", "", t_iterable},
        {"callable", "/", t_callable},
        {"sameas", "other", t_sameas},
        {"escaped", "", t_escaped},
        {"in", "seq", t_in},
        {"==", "/other", t_eq},
        {"eq", "/other", t_eq},
        {"equalto", "/other", t_eq},
        {"!=", "/other", t_ne},
        {"ne", "/other", t_ne},
        {">", "/other", t_gt},
        {"gt", "/other", t_gt},
        {"greaterthan", "/other", t_gt},
        {"ge", "/other", t_ge},
        {">=", "/other", t_ge},
        {"<", "/other", t_lt},
        {"lt", "/other", t_lt},
        {"lessthan", "/other", t_lt},
        {"<=", "/other", t_le},
        {"le", "/other", t_le},
    };
    return builtin_find(table, sizeof table / sizeof *table, name, n);
}

/* ---- global functions ---- */

enum { RANGE_MAX = 100000 }; /* jinja2's sandbox has the same bound */

TEST(g_range)
{
    UNUSED;
    int64_t start = 0, stop, step = 1;
    if (!j_index(r, a[0], &stop))
        return self;
    if (j_given(a[1])) {
        start = stop;
        if (!j_index(r, a[1], &stop) || (j_given(a[2]) && !j_index(r, a[2], &step)))
            return self;
    }
    if (step == 0)
        return j_fail(r, "range() arg 3 must not be zero");
    __int128 span = step > 0 ? (__int128)stop - start : (__int128)start - stop, by = step > 0 ? step : -(__int128)step;
    __int128 n = span > 0 ? (span - 1) / by + 1 : 0;
    if (n > RANGE_MAX)
        return j_fail(r, "Range too big. The sandbox blocks ranges larger than %d", RANGE_MAX);
    struct range *g = j_alloc(r, sizeof *g);
    if (!g)
        return self;
    *g = (struct range){start, step, (size_t)n, stop};
    return (struct value){.kind = J_RANGE, .u.range = g};
}

static void fill_pairs(struct run *r, struct dict *d, struct value from)
{
    struct value iter = j_iter(r, from), each;
    while (j_next(r, iter, &each)) {
        struct value pair = j_list(r, each, J_LIST);
        if (j_failed(r) || pair.u.list->n != 2) {
            j_fail(r, "a dict is made of pairs");
            return;
        }
        j_dict_set(r, d, pair.u.list->items[0], pair.u.list->items[1]);
    }
}

TEST(g_dict)
{
    UNUSED;
    struct value v = j_dict(r);
    if (j_failed(r) || raw->n > 1)
        return j_fail(r, "dict expected at most 1 argument");
    if (raw->n && raw->at[0].kind == J_DICT) {
        const struct dict *from = raw->at[0].u.dict;
        for (size_t i = 0; i < from->n; i++)
            j_dict_set(r, v.u.dict, from->entries[i].key, from->entries[i].value);
    } else if (raw->n) {
        fill_pairs(r, v.u.dict, raw->at[0]);
    }
    for (size_t i = 0; i < raw->n_kw; i++)
        j_dict_set(r, v.u.dict, raw->kw[i].name, raw->kw[i].value);
    return v;
}

TEST(g_namespace)
{
    UNUSED;
    struct value v = g_dict(r, self, a, raw);
    if (v.kind == J_DICT)
        v.kind = J_NAMESPACE;
    return v;
}

TEST(g_cycler)
{
    UNUSED;
    struct cycler *c = j_alloc(r, sizeof *c);
    if (!raw->n || raw->n_kw)
        return j_fail(r, "at least one item has to be provided");
    struct value items = j_array(r, J_TUPLE, raw->n);
    if (j_failed(r))
        return items;
    memcpy(items.u.list->items, raw->at, raw->n * sizeof *raw->at);
    *c = (struct cycler){items, 0};
    return (struct value){.kind = J_CYCLER, .u.cycler = c};
}

TEST(g_joiner)
{
    UNUSED;
    struct joiner *j = j_alloc(r, sizeof *j);
    if (!j)
        return self;
    *j = (struct joiner){j_given(a[0]) ? a[0] : j_cstring(r, ", "), false};
    return (struct value){.kind = J_JOINER, .u.joiner = j};
}

TEST(g_raise)
{
    UNUSED;
    struct value text = j_str(r, a[0]);
    if (j_failed(r))
        return text;
    return j_fail(r, "%.*s", (int)(text.u.s->len < 300 ? text.u.s->len : 300), text.u.s->data);
}

TEST(g_strftime)
{
    UNUSED;
    char out[1024], format[256];
    time_t now = (time_t)r->now;
    struct tm tm;
    if (!j_want_string(r, a[0], "the format of strftime_now"))
        return self;
    if (a[0].u.s->len >= sizeof format || !localtime_r(&now, &tm))
        return j_fail(r, "strftime_now: a format of more than %zu bytes", sizeof format - 1);
    memcpy(format, a[0].u.s->data, a[0].u.s->len);
    format[a[0].u.s->len] = 0;
    size_t n = strftime(out, sizeof out, format, &tm);
    return j_string(r, out, n);
}

const struct builtin *global_find(const char *name, size_t n)
{
    static const struct builtin table[] = {
        {"range", "/start stop? step?", g_range},
        {"dict", "...", g_dict},
        {"namespace", "...", g_namespace},
        {"cycler", "...", g_cycler},
        {"joiner", "sep?", g_joiner},
        {"raise_exception", "message", g_raise},
        {"strftime_now", "format", g_strftime},
    };
    return builtin_find(table, sizeof table / sizeof *table, name, n);
}
