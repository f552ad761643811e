/* The list behind `moonshift reproduce`: runs by name, each with the arguments of a simulation and the policies it
 * compares; and the published numbers, each with a formula over the results of runs (RUN.POLICY.METRIC) and the parts
 * of single steps (step.NAME.PART), or the reason why it has none. Owned by whoever opened it, one thread. Invariant:
 * every run and policy that a formula names is in the list. */
#ifndef LAB_SEARCH_PAPER_LIST_H
#define LAB_SEARCH_PAPER_LIST_H

#include "engine/base/json.h"
#include "engine/lab/search/jobs.h"

enum { PAPER_VALUES = 2 }; /* a number, or the ends of a range */

struct paper_number {
    const char *id, *paper, *where, *what, *unit; /* id and unit may be "" */
    const char *claim;                            /* what was said in words; NULL: numbers */
    double published[PAPER_VALUES];
    const char *formula[PAPER_VALUES];
    int n;                  /* formulas; 0: it is not covered, and why says so */
    const char *why, *note; /* NULL: nothing to say */
    const char *fitted;     /* which constant was fitted to it, or to others of its figure; NULL: none */
    const char *given;      /* what of the run's input it repeats; NULL: it does not */
    double low, high;       /* the bar; high < low: none. A claim with a bar must hold: 1 to 1 */
    bool wanted;
};

struct paper_run {
    const char *name, *policy; /* as formulas write them: NAME.POLICY. */
    int job;                   /* among the jobs; -1: not asked for */
};

struct paper_list {
    struct json *root;
    struct paper_number *numbers;
    int n_numbers;
    struct paper_run *runs;
    int n_runs;
    struct jobs jobs;     /* of the runs that wanted numbers need */
    const char *hardware; /* the caller's */
    char **owned;
    int n_owned;
};

struct paper_choice {
    char *const *only; /* words: only numbers that have one of them somewhere; n_only 0: all */
    int n_only;
    bool bars;            /* only numbers with a bar */
    const char *hardware; /* in the place of {hardware} */
};

/* E_INPUT, E_NOTFOUND: the text names the entry. l must be closed in every case. */
int paper_list_open(struct paper_list *l, const char *path, const struct paper_choice *choice, struct err *e);
/* The wall alone, on bytes; path stands in the messages, and its folder for {here}. */
int paper_list_read(struct paper_list *l, const char *text, size_t n, const char *path,
                    const struct paper_choice *choice, struct err *e);
void paper_list_close(struct paper_list *l);
/* The i-th value of a covered number, once the jobs have run. E_GONE: a run that it needs has not come to an end. */
int paper_list_value(const struct paper_list *l, const struct paper_number *x, int i, double *out, struct err *e);

#endif
