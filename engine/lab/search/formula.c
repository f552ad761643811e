#include "engine/lab/search/formula.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

struct formula {
    const char *text, *at;
    formula_name_fn name;
    void *ctx;
    int depth;
    struct err *e;
};

static int comparison(struct formula *f, double *out);

static int wrong(struct formula *f, const char *what)
{
    return err_set(f->e, E_INPUT, "'%.80s', column %d: %s", f->text, (int)(f->at - f->text) + 1, what);
}

static void blanks(struct formula *f)
{
    f->at += strspn(f->at, " \t\n");
}

static bool take(struct formula *f, const char *sign)
{
    blanks(f);
    size_t n = strlen(sign);
    if (strncmp(f->at, sign, n) != 0)
        return false;
    f->at += n;
    return true;
}

/* min, max, abs, and, or: folded from left to right. */
static int call(struct formula *f, const char *fn, double *out)
{
    static const char *const known[] = {"min", "max", "abs", "and", "or"};
    int which = 0;
    while (which < 5 && strcmp(fn, known[which]) != 0)
        which++;
    if (which == 5)
        return wrong(f, "there are the functions min, max, abs, and, or");
    for (int i = 0;; i++) {
        double v;
        TRY(comparison(f, &v));
        if (which == 2)
            v = fabs(v);
        if (i == 0)
            *out = which > 2 ? v != 0 : v;
        else if (which < 2)
            *out = which == 0 ? fmin(*out, v) : fmax(*out, v);
        else if (which > 2)
            *out = which == 3 ? *out != 0 && v != 0 : *out != 0 || v != 0;
        else
            return wrong(f, "abs has one value");
        if (take(f, ")"))
            return 0;
        if (!take(f, ","))
            return wrong(f, "a ',' or ')' is missing");
    }
}

static int named(struct formula *f, double *out)
{
    char name[FORMULA_NAME];
    size_t n = 0;
    while (isalnum((unsigned char)f->at[n]) || f->at[n] == '_' || f->at[n] == '.')
        n++;
    if (n == 0)
        return wrong(f, "a number, a name or '(' is missing");
    if (n >= sizeof name)
        return wrong(f, "the name is too long");
    memcpy(name, f->at, n);
    name[n] = 0;
    f->at += n;
    return take(f, "(") ? call(f, name, out) : f->name(f->ctx, name, out, f->e);
}

static int factor(struct formula *f, double *out)
{
    if (take(f, "-")) {
        if (++f->depth > MAX_DEPTH)
            return wrong(f, "too many signs");
        TRY(factor(f, out));
        f->depth--;
        *out = -*out;
        return 0;
    }
    if (take(f, "(")) {
        TRY(comparison(f, out));
        return take(f, ")") ? 0 : wrong(f, "a ')' is missing");
    }
    blanks(f);
    if (!isdigit((unsigned char)*f->at))
        return named(f, out);
    char *end;
    *out = strtod(f->at, &end);
    f->at = end;
    return 0;
}

static int product(struct formula *f, double *out)
{
    double v;
    TRY(factor(f, out));
    for (;;) {
        if (take(f, "*")) {
            TRY(factor(f, &v));
            *out *= v;
        } else if (take(f, "/")) {
            TRY(factor(f, &v));
            if (v == 0)
                return wrong(f, "this divides by nothing");
            *out /= v;
        } else {
            return 0;
        }
    }
}

static int sum(struct formula *f, double *out)
{
    double v;
    TRY(product(f, out));
    for (;;) {
        if (take(f, "+")) {
            TRY(product(f, &v));
            *out += v;
        } else if (take(f, "-")) {
            TRY(product(f, &v));
            *out -= v;
        } else {
            return 0;
        }
    }
}

static int comparison(struct formula *f, double *out)
{
    static const char *const signs[] = {"<=", ">=", "==", "<", ">"};
    double v;
    if (++f->depth > MAX_DEPTH)
        return wrong(f, "too many brackets");
    TRY(sum(f, out));
    for (int i = 0; i < 5; i++) {
        if (!take(f, signs[i]))
            continue;
        TRY(sum(f, &v));
        *out = i == 0 ? *out <= v : i == 1 ? *out >= v : i == 2 ? *out == v : i == 3 ? *out < v : *out > v;
        break;
    }
    f->depth--;
    return 0;
}

int formula_value(const char *text, formula_name_fn name, void *ctx, double *out, struct err *e)
{
    struct err local = {0};
    struct formula f = {.text = text, .at = text, .name = name, .ctx = ctx, .e = e ? e : &local};
    TRY(comparison(&f, out));
    blanks(&f);
    if (*f.at)
        return wrong(&f, "this is too much");
    return isfinite(*out) ? 0 : wrong(&f, "the answer is not a finite number");
}
