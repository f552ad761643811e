/* One thing asked of a policy's process, and what it says until it is done: verbs are carried out, files of libraries
 * read for it. The engine's side. Bounded: a process that is late is given up. One thread at a time. Invariant: what a
 * verb may do is what it may in this call. */
#ifndef LUA_TALK_H
#define LUA_TALK_H

#include "engine/base/clock.h"
#include "lua/exchange.h"
#include "lua/libs.h"
#include "lua/nursery.h"
#include "lua/overtime.h"

enum heard {
    HEARD_END,    /* it is done: talk.end */
    HEARD_LATE,   /* it is not, and has used up its time */
    HEARD_SILENT, /* it is not, and does not run either */
    HEARD_GONE,   /* it has ended */
    HEARD_WRONG   /* it said what no policy says */
};

struct talk {
    const struct born *born;
    struct verb_scope scope; /* of the call; zeroed: none */
    const char *name;        /* for the log */
    bool quiet;
    const char *folder; /* of libraries that it may ask for; NULL: none */
    struct libs *libs;  /* those that were read for it */
    int64_t most_ns;    /* wall time; past it, it may go on until its overtime is over, or for a second */
    /* while it lasts */
    int64_t began_ns;
    struct overtime overtime;
};

/* What outlasts talks: room for verbs, and how the last one ended. */
struct talker {
    struct clock clock;
    struct exchange_eye eye;
    struct exchange_verb verb;
    struct exchange_end end;
    int64_t said_second; /* lines of the log that came outside of steps, in this second of the clock */
    int n_said;
};
void talker_init(struct talker *r);
void talker_free(struct talker *r);

/* The turn is the engine's, and what is asked lies in the page. */
enum heard talk(struct talker *r, struct talk *t, enum exchange_word w);
/* The same for what was said before. */
enum heard talk_wait(struct talker *r, struct talk *t);

#endif
