/* Policies that go live while the server runs: a source is loaded and tried on the policy lane, handed to the engine,
 * and becomes the live one at a step boundary, or is refused and the old one goes on. Follows the files of the live
 * policy (its own and its libraries'): an edit (stable for two looks) takes the same way. Remembers what came and how
 * it went. Front thread, except the jobs' run. Invariant: a policy is loaded from a complete file. */
#ifndef SERVE_POLICIES_H
#define SERVE_POLICIES_H

#include "engine/serve/followed.h"
#include "engine/serve/front/front.h"
#include "lua/host.h"

enum { POLICY_NAME_MAX = 40, POLICY_VERSIONS = 64, POLICY_PATH = FOLLOWED_PATH };

struct policy_outcome {
    enum reload_result result;
    const char *text; /* OK: the engine's policy state, JSON; else "name.lua:12: reason" */
};
typedef void (*policy_fn)(void *ctx, const struct policy_outcome *o);

struct policy_version {
    char name[POLICY_NAME_MAX + 1], sha256[65], text[360];
    bool from_file;
    enum reload_result result;
    int64_t at_s;
};

struct policies {
    struct front *front;
    const struct lua_opts *lua;
    const char *dir; /* NULL: none */
    struct loop_event *tick;
    struct followed watched;
    char watched_name[POLICY_NAME_MAX + 1];
    const char *watched_dir;                         /* which it may not lead out of; NULL: anywhere */
    bool loading;                                    /* a load from the file is under way */
    struct policy_version versions[POLICY_VERSIONS]; /* ring */
    uint64_t n_versions;
    struct policy_job *jobs; /* under way */
};

struct policies_setup {
    struct front *front;
    struct loop *loop;
    const struct lua_opts *lua;
    const char *dir, *name, *path, *libs; /* libs: of the policy at path, as in struct policy */
    bool no_watch;
};
int policies_init(struct policies *p, const struct policies_setup *s, struct err *e);
void policies_free(struct policies *p);
bool policies_name_ok(const char *name);
/* dir/name.lua; false: no directory. */
bool policies_path(const struct policies *p, const char *name, char out[POLICY_PATH]);
/* Loads source (moves; empty: the file of that name is read) and makes it live. fn is called once, later.
 * E_FULL: too many at once. */
int policies_load(struct policies *p, const char *name, struct buf *source, policy_fn fn, void *ctx);
void policies_forget(struct policies *p, void *ctx); /* the asker is gone: its fn is not called */
/* The live policy may be another one now (a rollback): state is the engine's policy state. Its file is
 * watched from here on. */
void policies_now_live(struct policies *p, const char *state, size_t n);
void policies_list(const struct policies *p, struct buf *json);

#endif
