/* The table of public routes: path, methods, handler, and the doors before them (keys, CORS, method and path
 * checks), which run when a head is complete: a client that is refused sends no body. Front thread only. */
#ifndef SERVE_ROUTES_H
#define SERVE_ROUTES_H

#include "engine/serve/batch/files_api.h"
#include "engine/serve/batch/jobs_api.h"
#include "engine/serve/embed/embed_api.h"
#include "engine/serve/front/auth.h"
#include "engine/serve/openai/openai.h"

struct routes {
    struct front *front;
    struct openai *openai;
    struct embed_api *embed;
    struct files_api files;
    struct jobs_api jobs;
    struct auth auth;
    const char *const *origins;
    int n_origins;
};

bool routes_admit(struct routes *r, struct http_exchange *x);  /* false: answered */
void routes_handle(struct routes *r, struct http_exchange *x); /* who was let in */
/* The index in counts of the route that this exchange took. */
int routes_count_index(struct front *f, const struct http_exchange *x);

#endif
