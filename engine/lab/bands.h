/* What many samples of one simulation came to: for each policy and metric its values, their quantiles, and for two
 * policies the differences between what both came to on the same luck; where a trace has tenants, the same of each of
 * them. Filled from the JSON of each sample by
 * search/sample.c, shown beside the plain run by simulate_report.c. Owned by whoever made it, one thread. Invariant:
 * what is shown depends on the values only, not on the order in which they came. */
#ifndef LAB_BANDS_H
#define LAB_BANDS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

/* Of one tenant. In samples in which it sends nothing it has no values. */
struct bands_tenant {
    char *name;
    double *values; /* [policy][metric of tenants][sample]; NAN: none */
};

struct bands {
    int n_samples, n_policies;
    char **labels;                /* of the policies */
    double *values;               /* [policy][metric][sample]; NAN: none, such as a latency of no request */
    struct bands_tenant *tenants; /* those that some sample has, as they came */
    int n_tenants;                /* 0: all requests are of one */
    struct buf words;             /* what was drawn */
    const char *twin;             /* the description that odd samples are of; NULL: none */
    bool goodput;                 /* objectives were given */
};

/* Of how many samples no end of a 90% band can be told from the most extreme one. */
enum { BANDS_FEW = 20 };

enum { BANDS_TENANTS = 64, BANDS_SHOWN_TENANTS = 8 }; /* kept; in the table */

void bands_open(struct bands *b, int n_samples, int n_policies);
void bands_free(struct bands *b);
/* The results of the i-th sample: what `moonshift simulate --json` wrote. E_INPUT: it lacks a policy or a number. */
int bands_take(struct bands *b, int i, const struct json *result, struct err *e);
/* Rows of medians with their 90% bands, then, for more than one policy, which is better than the first; then the same
 * of the first tenants. */
void bands_table(const struct bands *b, struct buf *out);
/* The object "bands". */
void bands_json(const struct bands *b, struct buf *out);

#endif
