/* /v1/files, as OpenAI has it: upload, list, retrieve, content, delete; purpose is "batch". A client finds the files of
 * its own API key, and no others. What touches the disk for long runs on the long text lane. Front thread. Invariant:
 * an upload whose client has left leaves nothing. */
#ifndef SERVE_BATCH_FILES_API_H
#define SERVE_BATCH_FILES_API_H

#include "engine/serve/batch/files.h"
#include "engine/serve/front/auth.h"
#include "engine/serve/front/front.h"

struct jobs;
struct files_api {
    struct front *front;
    struct files *files; /* NULL: no --batch-dir, and nothing is kept */
    struct jobs *jobs;   /* that may use them, and make others */
};

enum { FILES_API_FORM = 65536 /* of an upload, besides the file: boundaries, heads, the other fields */ };

/* Whose files a key finds: a hash of its digest, so that the folder tells nothing about the key. */
void files_api_owner(const struct auth_key *key, char out[FILES_OWNER]);
void files_api_all(struct files_api *a, struct http_exchange *x, const struct auth_key *key); /* /v1/files */
void files_api_one(struct files_api *a, struct http_exchange *x, const struct auth_key *key); /* and below */

#endif
