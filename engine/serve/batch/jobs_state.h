/* A batch job as the text of its file. Any thread. Invariant: what is read back is what was written, or nothing. */
#ifndef SERVE_BATCH_JOBS_STATE_H
#define SERVE_BATCH_JOBS_STATE_H

#include "engine/base/json.h"
#include "engine/serve/batch/jobs.h"

void job_put(const struct batch_job *job, struct buf *out);
bool job_read(const char *text, size_t n, struct batch_job *out); /* the caller frees its metadata */

#endif
