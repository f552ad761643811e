/* What `moonshift tune` searches: the declared params of a policy as a box of unit length on each side, and back.
 * Numbers that span a factor of a hundred are laid out by their logarithm and rounded to four digits, so that a found
 * value can be read out. Open at the top where a unit will say how far to look (tune_space_cut). Owned by whoever
 * opened it, one thread. Invariant: every value lies inside what the policy declares. */
#ifndef LAB_SEARCH_TUNE_SPACE_H
#define LAB_SEARCH_TUNE_SPACE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/strings.h"
#include "engine/lab/search/tune_limits.h"

enum { TUNE_MAX = 32 };

enum tune_kind { TUNE_NUMBER, TUNE_INTEGER, TUNE_BOOLEAN, TUNE_CHOICE };

struct tune_param {
    const char *name;
    enum tune_kind kind;
    enum unit unit;
    double low, high;    /* high: infinite until it is cut, where only the unit bounds it */
    double declared;     /* what high was before it was cut */
    const char *cut_why; /* static; NULL: it was not cut */
    bool asked;          /* somebody gave its bounds */
    double home;         /* of a number: its default */
    bool by_log;
    const char *choices[8];
    int n_choices;
    double by_default; /* as a coordinate; of a number that is not cut yet: not known */
};

struct tune_space {
    struct json *declared;
    struct tune_param params[TUNE_MAX];
    int n;
    char *left[TUNE_MAX]; /* declared, not searched, nor fixed: for want of bounds */
    int n_left;
};

/* declared: as a policy's params_get writes it; asked: NAME or NAME=LOW..HIGH, none: all that have bounds; fixed:
 * NAME=VALUE. E_INPUT: a name that is not declared (with the nearest), bounds that are none; E_UNSUPPORTED: there is
 * nothing to search. s must be closed in every case. */
int tune_space_open(struct tune_space *s, const char *declared, const struct strings *asked,
                    const struct strings *fixed, struct err *e);
/* Ends ranges where the units say that nothing changes any more, or at least the default. Once, and before there are
 * coordinates. What has no end then is left, too. E_INPUT: bounds that were asked for lie past it; E_UNSUPPORTED: there
 * is nothing to search. */
int tune_space_cut(struct tune_space *s, const struct tune_limits *l, struct err *e);
void tune_space_close(struct tune_space *s);
/* "budget to 2048 tokens/step (--max-num-batched-tokens), ..."; nothing: nothing was cut. */
void tune_space_cuts(const struct tune_space *s, struct buf *out);
/* [{"param":"budget","unit":"tokens/step","declared":8192,"to":2048,"why":".."}]; declared null: no bound. */
void tune_space_cuts_json(const struct tune_space *s, struct buf *out);

/* The default of param i, within bounds that were asked for, as NAME=VALUE takes it. Before the cut, too. */
void tune_space_default(const struct tune_space *s, int i, struct buf *out);
/* The value of param i at coordinate u in [0, 1], as NAME=VALUE takes it. */
void tune_space_value(const struct tune_space *s, int i, double u, struct buf *out);
/* {"name":value,...}, as --policy-params-file takes it. */
void tune_space_json(const struct tune_space *s, const double *u, struct buf *out);
/* "threshold=300 budget=4096" */
void tune_space_words(const struct tune_space *s, const double *u, struct buf *out);

#endif
