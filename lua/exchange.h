/* The page by which the engine and the process of a policy talk. One has the turn and says one thing: the engine a job
 * or a call of a hook, the process a verb, a file that it wants, or how it ended. Whoever waits looks at the turn for
 * some microseconds and then sleeps on it. Made by the engine's side, which passes the file on to the process; one
 * thread of each side at a time. Invariant: what the process has written is hostile: the engine copies it once
 * (exchange_take_*), and looks only at the copy. */
#ifndef LUA_EXCHANGE_H
#define LUA_EXCHANGE_H

#include <stdatomic.h>

#include "lua/host.h"
#include "lua/verb_call.h"

enum { EXCHANGE_TEXT = 1 << 20, EXCHANGE_LIST = MAX_REQUESTS };

enum exchange_turn { TURN_ENGINE, TURN_PROCESS };

/* What is said. */
enum exchange_word {
    SAY_NOTHING,
    /* the engine */
    SAY_JOB,
    SAY_CALL,
    SAY_VERB_DONE,
    SAY_FILE_READ,
    /* the process */
    SAY_VERB,
    SAY_FILE, /* of a library; text: its name */
    SAY_ENDED
};

/* What the process is to do with a text; the first four on its own. */
enum exchange_job {
    JOB_LOAD,  /* and then calls of its hooks */
    JOB_CHECK, /* the report comes back as text */
    JOB_TEST,
    JOB_TEXT, /* its libraries, each wanted as a file */
    /* of what was loaded */
    JOB_IDLE,
    JOB_IMPORT,
    JOB_EXPORT,
    JOB_PARAMS
};

/* In `text`: the name, the source, the params and the folder of libraries, one behind the other; a size below 0: there
 * is none. */
struct exchange_order {
    int job;
    struct lua_opts opts; /* without its pointers */
    int64_t sizes[4];
};

struct exchange_call {
    int hook, ending;
    const struct node_facts *node; /* these lie in what the process sees of the engine (engine/base/seen.h) */
    struct plan *plan;
    const struct request *request;
    struct view view;
    double key; /* admit: the default */
};

/* Numbers only, so that any bytes are one. */
struct exchange_end {
    int rc, verdict;
    int code; /* of the error */
    char error[360];
    /* admit */
    double key;
    int refused, http_status, retry_after_s;
    int64_t hold_until_ns;
    char why[200];
    /* load */
    int hooks; /* bit h: it has this one */
    char doc[200];
    int64_t heap_bytes, heap_limit;
    int wants_rest; /* JOB_IDLE would do something */
};

struct exchange_page {
    _Atomic uint32_t turn, sleepers; /* sleepers: bit t: the side of that turn */
    uint32_t word;
    struct exchange_order order;
    struct exchange_call call;
    struct exchange_end end;
    struct verb_call verb;
    unsigned char switch_order[sizeof(struct switch_order)];
    char verb_text[VERB_TEXT];
    struct verb_result result;
    char reason[VERB_REASON];
    req_id list[EXCHANGE_LIST];
    int64_t n_text;
    char text[EXCHANGE_TEXT];
};

/* The engine's side makes the page; *file is to be closed once the process has it. E_SYS. */
int exchange_make(struct exchange_page **out, int *file, struct err *e);
struct exchange_page *exchange_map(int file); /* NULL: the system refused */
void exchange_unmap(struct exchange_page *x); /* NULL is fine */

/* Says it: the other side has the turn. Returns what waking it has taken, in CPU time of this thread. */
int64_t exchange_say(struct exchange_page *x, enum exchange_turn to, enum exchange_word w);
/* Of one side: whether it pays to look for the turn. Where the other side cannot run meanwhile, since other work has
 * the cores, it does not. */
struct exchange_eye {
    bool looks;                 /* there is more than one core */
    unsigned n_missed, n_blind; /* times in a row that the turn did not come while it looked; that it has not looked */
    int64_t cpu_ns;             /* what the last wait took, in CPU time of this thread */
};
/* Waits for the turn, up to slice_ns (0: without end). eye NULL: sleeps at once. False: it has not come. */
bool exchange_wait(struct exchange_page *x, enum exchange_turn mine, int64_t slice_ns, struct exchange_eye *eye);

/* ---- the engine's copies of what the process says */

/* A verb, with room for what it points to. */
struct exchange_verb {
    struct verb_call call;
    struct switch_order order;
    char text[VERB_TEXT];
    req_id *list; /* grown as need be; the owner frees it */
    size_t cap_list;
};
/* False: no library says so. What it names is in *out, terminated and counted; lawful it is by verb_is_lawful. */
bool exchange_take_verb(const struct exchange_page *x, struct exchange_verb *out);
void exchange_take_end(const struct exchange_page *x, struct exchange_end *out); /* texts are terminated */
/* Appends the text. False: it has no length that could be. */
bool exchange_take_text(const struct exchange_page *x, struct buf *out);

#endif
