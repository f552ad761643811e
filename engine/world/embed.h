/* The encoder as a policy knows it: how much waits for its replicas, and by which rule they take it. The line and the
 * replicas themselves are the front's (engine/embed), and so are the facts: it puts them into a link, out of which the
 * engine reads them without either waiting for the other. A rule goes the other way, as one message (engine.h), so it
 * takes effect as a whole. Invariant: each number of a link is one that held a moment ago; together they need not have
 * held at one moment. */
#ifndef WORLD_EMBED_H
#define WORLD_EMBED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { EMBED_MAX_REPLICAS = 64, EMBED_MOST_SHORT = 1 << 20 };

enum embed_way {
    EMBED_LEAST_LOADED, /* of those that may run, the one that has the fewest tokens */
    EMBED_ROUND_ROBIN,  /* one after the other */
    EMBED_BY_LENGTH,    /* the first n_short take texts of up to short_tokens alone, the others longer ones first; each
                           time the least loaded of them */
    EMBED_WAYS
};

struct embed_rule { /* zeroed: the least loaded of all */
    enum embed_way way;
    int replicas; /* the first so many of those that live may run; 0: all */
    int short_tokens, n_short;
};
uint64_t embed_rule_pack(struct embed_rule r);
struct embed_rule embed_rule_unpack(uint64_t packed);
/* Of so many that live, those that may run; of them, those that are kept for short texts. So many that any text has one
 * that takes it: at least one may run, and at least one of these takes texts of every length. */
int embed_rule_allowed(struct embed_rule r, int n_alive);
int embed_rule_kept(struct embed_rule r, int n_alive);
const char *embed_way_name(enum embed_way w); /* "least_loaded", "round_robin", "by_length" */

struct embed_facts {
    int n_replicas, n_alive;
    int64_t waiting_texts, waiting_tokens;      /* that no replica has */
    int64_t running_tokens[EMBED_MAX_REPLICAS]; /* by replica; -1: it has failed */
};

struct embed_link {
    int n_replicas;
    atomic_int n_alive;
    _Atomic int64_t waiting_texts, waiting_tokens, running_tokens[EMBED_MAX_REPLICAS];
};
void embed_link_init(struct embed_link *l, int n_replicas);             /* nothing waits, all live */
void embed_link_put(struct embed_link *l, const struct embed_facts *f); /* one thread, the front's */
void embed_link_see(const struct embed_link *l, struct embed_facts *out);

#endif
