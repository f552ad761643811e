/* What the files of the recorder, record.c and record_head.c, share. Included by these two only. */
#ifndef LAB_RECORDING_RECORD_INNER_H
#define LAB_RECORDING_RECORD_INNER_H

#include "engine/lab/recording/record.h"

/* The first line, its end included. */
void record_head(struct buf *out, const struct recorder_start *s, const struct engine *engine, int64_t base_ns);

#endif
