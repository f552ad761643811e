/* /admin: what an operator does to a running server, on a listener of its own with a key of its own. Browsers are kept
 * out, except on the control room's own page (room/): a request with an Origin that is not this listener's is refused,
 * and one to a host name that is not known here (a page can make its own name mean this machine). Everything that
 * changes something is logged. Front thread only. Invariant: no admin route is on the public listener.
 *
 * - GET /admin/policy: the live policy, the one before, generations, params, strikes
 * - PUT /admin/policies/NAME: body: Lua source; empty: the file NAME.lua of the policy directory. A broken one is
 *   400 with file, line and reason, and the old one goes on
 * - GET /admin/policies: the directory and the versions seen
 * - POST /admin/policy/check: body: Lua source (?name=NAME): loaded and tried, not made live
 * - PATCH /admin/policy/params: body: an object of values
 * - POST /admin/policy/rollback: the previous good policy becomes live
 * - GET /admin/state: requests, queues, KV, the front's books
 * - GET /admin/decisions?from=STEP&n=N: what was decided, on what facts; without from the last n
 * - GET /admin/requests/ID: where the time of a request went; GET /admin/requests?slowest=N: of the slowest
 * - POST /admin/reset_prefix_cache
 * - POST /admin/drafts/save, POST /admin/drafts/load: what was said, for draft tokens, to and from --draft-file
 * - POST /admin/drain: as SIGTERM
 * - GET /admin/events: server-sent events (room/events.h)
 * - GET /: the control room, without a key (room/room.h)
 *
 * Where an encoder is served alone there are no policies and no engine: state (of the front) and drain are left. */
#ifndef SERVE_ADMIN_H
#define SERVE_ADMIN_H

#include "engine/serve/embed/embed_api.h"
#include "engine/serve/front/auth.h"
#include "engine/serve/http/hosts.h"
#include "engine/serve/openai/openai.h"
#include "engine/serve/policies.h"
#include "engine/serve/room/events.h"

struct admin {
    struct front *front;
    struct openai *openai;
    struct embed_api *embed;
    struct policies *policies;
    struct events *events;
    struct suffix *suffix; /* NULL: nothing is kept for draft tokens */
    struct auth auth;      /* no key: open */
    struct hosts hosts;
    void (*drain)(void *ctx);
    void *drain_ctx;
};

bool admin_admit(struct admin *a, struct http_exchange *x);  /* false: answered */
void admin_handle(struct admin *a, struct http_exchange *x); /* who was let in */

#endif
