/* /v1/batches, as OpenAI has it: create, retrieve, list, cancel. A client finds the batches of its own API key, and no
 * others. Front thread. */
#ifndef SERVE_BATCH_JOBS_API_H
#define SERVE_BATCH_JOBS_API_H

#include "engine/serve/batch/jobs.h"
#include "engine/serve/front/front.h"

struct jobs_api {
    struct front *front;
    struct files *files;
    struct jobs *jobs; /* NULL: no --batch-dir, and there are none */
};

void jobs_api_all(struct jobs_api *a, struct http_exchange *x, const struct auth_key *key); /* /v1/batches */
void jobs_api_one(struct jobs_api *a, struct http_exchange *x, const struct auth_key *key); /* and below */

#endif
