/* POST /v1/embeddings, /rerank and /score, from the request to its answer: the body goes to a text worker, large ones
 * in parts to two of them, the sequences to the embedder, the vectors back into the answer. Owns the embedder and its
 * books. Front thread only. Invariants: every request that came in is answered, or its client left; when a client
 * leaves, what is not yet under way for it is not computed. */
#ifndef SERVE_EMBED_EMBED_API_H
#define SERVE_EMBED_EMBED_API_H

#include "engine/embed/embedder.h"
#include "engine/serve/embed/ask.h"
#include "engine/serve/front/auth.h"
#include "engine/serve/front/front.h"

enum embed_ending { EMBED_ANSWERED, EMBED_FAILED, EMBED_LEFT, EMBED_ENDINGS };
enum { EMBED_BUCKETS = 12 };

/* What a server needs of an encoder; borrowed until the end. */
struct embed_plan {
    const struct encoder *encoder; /* NULL: none is served */
    const char *name, *root;
    int replicas, threads; /* threads of each */
    int batch_tokens;
    struct embed_link *link; /* NULL: no policy asks how it stands */
    int64_t queued_tokens;   /* that may wait; 0: no bound */
    int queued_inputs;       /* texts that may; 0: 32768 */
    size_t held_bytes;       /* of texts that requests keep; 0: 512 MiB. A single request is always taken */
};

struct embed_api {
    struct front *front;
    struct embed_model model; /* encoder NULL: none is served */
    struct embedder *embedder;
    bool stopping; /* nothing may be handed to anybody any more */
    struct list requests;
    int n_requests;
    size_t held, held_most; /* bytes of the texts that requests keep behind the text workers */
    uint64_t endings[EMBED_ROUTES][EMBED_ENDINGS];
    uint64_t buckets[EMBED_BUCKETS + 1];
    double seconds;
};

int embed_api_init(struct embed_api *a, struct front *f, const struct embed_plan *p, struct err *e);
void embed_api_handle(struct embed_api *a, struct http_exchange *x, enum embed_route route, const struct auth_key *key);
void embed_api_route(struct embed_api *a, struct embed_rule rule);     /* the policy's; nothing without an encoder */
void embed_api_put_state(const struct embed_api *a, struct buf *json); /* an object, or null */
void embed_api_collect(struct embed_api *a);                           /* when embedder_fd is readable */
void embed_api_stop(struct embed_api *a, const char *why); /* every client is told 503, now and from now on */
/* After embed_api_stop and the text workers, before the HTTP server. */
void embed_api_free(struct embed_api *a);
void embed_api_render(const struct embed_api *a,
                      struct buf *out); /* its series for /metrics; none without an encoder */

#endif
