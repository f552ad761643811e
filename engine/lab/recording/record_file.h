/* The file of `serve --record`: texts are handed over by the recorder on the engine's thread and written by a thread of
 * its own. When the disk fails or does not keep up, the file ends with one warning and takes nothing more. Owned by the
 * recorder. Invariant: handing over never waits for the disk. */
#ifndef LAB_RECORDING_RECORD_FILE_H
#define LAB_RECORDING_RECORD_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

struct record_file;

/* E_INPUT: the file is there already; E_SYS. */
int record_file_open(struct record_file **out, const char *path, struct err *e);
bool record_file_over(const struct record_file *f); /* nothing is written any more. Any thread */
/* n bytes of text, which is its own from then on. One thread. */
void record_file_give(struct record_file *f, char *text, size_t n);
void record_file_close(struct record_file *f); /* writes what it was given; NULL is fine */

#endif
