/* /admin: what an operator does to a running server, on a listener of its own with a key of its own. Browsers are kept
 * out, except on the control room's own page (room/): a request with an Origin that is not this listener's is refused,
 * and one to a host name that is not known here (a page can make its own name mean this machine). Everything that
 * changes something is logged. Front thread only. Invariant: no admin route is on the public listener.
 *
 * - GET /admin/policy: the live policy, the one before, generations, params, strikes
 * - GET /admin/policies: the directory and the versions: name, sha256, when, from whom, state (live, previous,
 *   last-good, quarantined, refused)
 * - GET /admin/policies/NAME: the source of the newest version, as text; ?sha=SHA of another. SHA: 8 or more digits
 * - PUT /admin/policies/NAME: body: Lua source, or ?from=folder: the file NAME.lua of the policy directory. It goes
 *   live; with ?activate=0 it is only tried and kept. A broken one is 400 with file, line and reason, and the old one
 *   goes on; one in quarantine is 409, unless ?force=1; one that cannot be recorded is 507
 * - POST /admin/policies/NAME/check: body: Lua source: loaded and tried, neither kept nor made live
 * - POST /admin/policies/NAME/activate: the newest version of that name goes live; ?sha=SHA another; ?force=1
 * - POST /admin/policies/NAME/rollback: the version of that name that was live last; ?to=SHA another; ?force=1
 * - DELETE /admin/policies/NAME?sha=SHA: forgotten; 409 where it is live, previous or last-good
 * - POST /admin/policy/check: body: Lua source (?name=NAME): loaded and tried, not made live
 * - POST /admin/what-if: body: Lua source (?name=NAME), or ?policy=NAME[&sha=SHA] of a version that is kept: simulated,
 *   with the live one, on the last of this server's own traffic (?seconds=S: the last so many). 409: no traffic, or
 *   another one is under way
 * - GET /admin/what-if: how much traffic is kept
 * - PATCH /admin/policy/params: body: an object of values
 * - GET /admin/limits: the limits of now, of the start, and what each may be set to; PATCH: an object of some of them,
 *   obeyed as a whole
 * - POST /admin/policy/rollback: the policy before the live one becomes live; ?to=SHA any earlier version; ?force=1
 * - POST /admin/policies/NAME/shadow: body: a policy's source, or ?sha=SHA of a version that is kept; it is asked
 * beside the live one for ?seconds=N (600). GET /admin/shadow: what came of it; DELETE /admin/shadow: it ends
 * - POST /admin/policies/NAME/canary?groups=ID,ID: the same, and it decides for these groups for ?seconds=N (600).
 *   GET /admin/canary: how requests fare on both sides; DELETE /admin/canary: it ends
 * - GET /admin/audit: the newest lines of the record, as they stand in it; ?from=SEQ from there on; ?n=N at most
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
#include "engine/serve/whatif/whatif.h"

struct admin {
    struct front *front;
    struct openai *openai;
    struct embed_api *embed;
    struct policies *policies;
    struct events *events;
    struct whatif *whatif;
    struct suffix *suffix; /* NULL: nothing is kept for draft tokens */
    struct auth auth;      /* no key: open */
    struct hosts hosts;
    struct list limits; /* orders for the limits that the engine has not answered */
    void (*drain)(void *ctx);
    void *drain_ctx;
};

void admin_init_limits(struct admin *a);                     /* before anything is handled */
void admin_free_limits(struct admin *a);                     /* after the connections */
bool admin_admit(struct admin *a, struct http_exchange *x);  /* false: answered */
void admin_handle(struct admin *a, struct http_exchange *x); /* who was let in */

#endif
