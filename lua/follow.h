/* One call of a policy's step, followed line by line: the facts as the call saw them, how many bytecodes it executed,
 * which lines ran and how often, what it logged. For `moonshift policy step`, which replays a recording; no server
 * follows. Owned by the host of the script, on its thread; made for one call and freed after it. What is allocated for
 * it in the script's machine is not charged to the policy. Invariant: a call decides the same whether or not somebody
 * follows. */
#ifndef LUA_FOLLOW_H
#define LUA_FOLLOW_H

#include "lua/script.h"

enum { FOLLOW_FILE = NAME_BYTES + 16 };

/* Line i + 1 of a file. */
struct followed_line {
    uint32_t count; /* how often it was begun; a line that goes on after a call is not */
    bool code;      /* a function that ran has code on it */
    bool looked;    /* the function that begins on it has been looked at */
};

struct followed_file {
    char name[FOLLOW_FILE]; /* as errors have it: "fair.lua", "lib/victims.lua" */
    struct followed_line *lines;
    int n;
};

/* Where a function was that is not over. */
struct followed_frame {
    const struct followed_file *file;
    int linedefined, line;
};

enum { FOLLOW_DEPTH = 128 }; /* deeper down, a line counts once more when what it called returns */

struct follow {
    struct script *script;
    struct followed_file files[1 + POLICY_LIBS];
    int n;
    struct followed_frame frames[FOLLOW_DEPTH]; /* by depth */
    int depth;                                  /* of the last line */
    struct buf view;                            /* JSON */
};

/* The next call of step is followed, until follow_end. */
struct follow *follow_begin(struct script *s);
/* The call has its view and begins: writes it down. A body; script.c calls it. */
void follow_view(struct follow *f, lua_State *L, const struct view *v);
/* How the call went. text: what libs_text made of the policy. */
struct follow_end {
    enum verdict verdict;
    const struct err *error;
    const struct plan *plan; /* as the call left it */
    const char *text;
    size_t n;
};
/* Appends the call as a JSON object: verdict, error, bytecodes, params, view, log, and sources: each file of which a
 * line ran, with all of its lines, a count where one has code that could have run. Frees f. */
void follow_tell(struct follow *f, const struct follow_end *end, struct buf *out);

#endif
