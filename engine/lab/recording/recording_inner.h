/* What the files of the reader of recordings share. Included by recording.c and recording_head.c only. */
#ifndef LAB_RECORDING_RECORDING_INNER_H
#define LAB_RECORDING_RECORDING_INNER_H

#include "engine/lab/trace/lines.h"
#include "engine/lab/recording/recording.h"

enum { OLDEST_FORMAT = 1, RECORDING_FORMAT = 3 };
static const int64_t RECORDING_MAX_NS = INT64_C(315360000) * 1000000000, /* ten years */
    RECORDING_MAX_ORDER = INT64_C(1) << 48;

/* From the line that was read; h is freed with recording_free_head, on failure too. */
int recording_read_head(struct recording_head *h, const struct lines *l, struct err *e);
void recording_free_head(struct recording_head *h);

#endif
