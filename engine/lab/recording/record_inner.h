/* What the files of the recorder, record.c and record_head.c, share. Included by these two only. */
#ifndef LAB_RECORDING_RECORD_INNER_H
#define LAB_RECORDING_RECORD_INNER_H

#include "engine/lab/recording/record.h"

/* The first line up to the policy, then the rest of it, its end included. */
void record_head_node(struct buf *out, const struct recorder_start *s, const struct engine *engine, int64_t base_ns);
void record_head_policy(struct buf *out, const struct policy *p);

#endif
