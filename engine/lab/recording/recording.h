/* A recording that `serve --record` wrote, read back one line at a time. A wall: what comes out is in range, in order
 * of time, and its first line describes a node that an engine can be built for. It may be a window of a longer one
 * (record_window.h), which begins in the middle: orders of requests then have gaps, and lines may be about earlier
 * ones. Whether the lines fit each other is for whoever plays them. A file that was cut off ends after its last whole
 * line. Owned by whoever opened it, one thread. Invariant: only the current line is in memory, whatever the size of the
 * file. */
#ifndef LAB_RECORDING_RECORDING_H
#define LAB_RECORDING_RECORDING_H

#include <stdio.h>

#include "engine/engine.h"
#include "engine/exec/comm.h"
#include "engine/world/draft.h"
#include "engine/world/ffn_timeline.h"

enum { RECORDING_MAX_PARAMS = 1 << 16 };

/* A source of draft tokens, as the engine had it in this place. */
struct recorded_source {
    char name[NAME_BYTES];
    bool by_name, keeps, timed;
};

/* The first line. */
struct recording_head {
    struct node_facts facts; /* shape is the one below; comms is NULL */
    struct node_shape shape;
    struct comm_measure comms[MAX_SETS]; /* of the rank sets of two ranks and more, in their order */
    int n_comms;
    struct ffn_setup ffn;             /* how FFN weights are pooled, where facts.ffn is this one */
    struct residency_facts residency; /* how the weights are cut, where facts.residency is this one */
    struct layout start;              /* the partition to begin with; 0: one group of all */
    struct recorded_source sources[MOST_SOURCES];
    int n_sources;     /* 0: nothing was drafted */
    bool timed_drafts; /* some of them took time of their own */
    int block_size;
    int64_t clock_ns; /* the engine's clock at time 0 */
    int64_t began;    /* Unix seconds */
    bool is_window;   /* of a longer one: it begins at from_ns, with the request first_order or a later one */
    int64_t from_ns, first_order;
    char version[32];
    char policy[NAME_BYTES], sha256[65];
    char *params; /* a JSON object, name: value */
    char *config; /* the model as a Hugging Face config.json */
};

/* Draft tokens of a request that a step has verified. */
struct recorded_drafts {
    int64_t order;
    int source, n, right; /* right <= n <= MOST_DRAFTS */
    bool ended;           /* the request ended, and nothing was said about the one behind those that were right */
};

/* A line: which fields mean something depends on kind (record.c says what there is). Pointers are borrowed until the
 * next line is asked for. */
struct recorded {
    char kind;
    uint64_t line;
    int64_t t_ns;
    int64_t order; /* a c e p; -1: it was turned away */
    /* a */
    int64_t arrival_ns, leader; /* leader: -1: none */
    int n_prompt, max_tokens, priority;
    bool logprobs, open_ended, offline;
    int choice; /* of what its client asked for */
    double slo_ttft_ms, slo_tpot_ms;
    char name[NAME_BYTES], tenant[NAME_BYTES]; /* g y: name of the policy */
    /* c e */
    enum ending ending;
    int n_output, n_cached;
    /* s */
    int group, failed_rank;             /* -1: none */
    int64_t start_ns, ns, predicted_ns; /* start: m w h, too */
    struct layout layout;
    int rows, n_logits; /* n_logits: -1: not recorded */
    double looked_at;
    int cas_layers; /* of pooled FFN layers, those whose rows went to their owners */
    struct ffn_cost ffn;
    struct drafter_time drafting; /* of the first and the last forward rows, logits, looked_at and ns alone */
    /* f */
    int rank;                             /* its timeline: start_ns, ns, rows and group as of s */
    const struct ffn_layer_times *layers; /* [head's ffn.n_layers] in ns from its start; end 0: not reached */
    /* s */
    const int64_t *stops; /* orders of the requests that ended with a stop id */
    int n_stops;
    const int64_t *key_orders;            /* s: whose unit keys[i] is */
    const struct recorded_drafts *drafts; /* s, each request once */
    int n_drafts;
    /* a s */
    const uint64_t *keys;
    int n_keys;
    /* w */
    int layer;
    bool gives_up, failed;
    /* h */
    uint64_t ranks;
    /* m */
    uint64_t serial;
    int64_t bytes; /* h, too */
    /* g j q y */
    const char *text; /* params, or the plan as record_plan wrote it */
    char sha256[65];
    /* y; ns: how long it may run */
    int groups[MAX_RANKS], n_groups;
    /* o */
    struct prediction predicted;
    /* l */
    struct limits_order limits; /* each such as the recorded node could have been opened with */
    /* v p */
    uint64_t call;
    /* v */
    enum policy_hook hook;
    enum verdict verdict;
    /* p */
    int source, asked, n_guessed, match; /* n_guessed <= asked <= MOST_DRAFTS */
    float score;
};

struct recording;

/* Does a file begin like a recording? */
bool recording_begins(const char *line);
bool recording_is_file(const char *path); /* false also when it cannot be read */
/* E_NOTFOUND, E_SYS, E_INPUT ("file:line: field ..."). */
int recording_open(struct recording **out, const char *path, struct err *e);
int recording_open_stream(struct recording **out, FILE *f, const char *name,
                          struct err *e);  /* f is its own from then on */
void recording_close(struct recording *r); /* NULL is fine */
const struct recording_head *recording_head(const struct recording *r);
/* E_INPUT: it is a window, whose decisions cannot be taken again. */
int recording_check_whole(const struct recording *r, struct err *e);
/* *end: there is no whole line left (out is untouched then). */
int recording_next(struct recording *r, struct recorded *out, bool *end, struct err *e);
bool recording_complete(const struct recording *r); /* its last line was read: it ended in good order */

#endif
