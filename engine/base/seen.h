/* Memory that processes of policies see: with `--policy-isolation process` one range of addresses of this process is a
 * file in memory, and what policies may read (the world, requests, plans, no texts and no keys) is made there. A child
 * that was forked after seen_open has the same bytes at the same addresses, and after seen_only_read it can read them
 * and no more. Without seen_open, seen_new is mem_new. Blocks are given back by mem_free, and resized by mem_resize,
 * like all others. The range is the process's, for as long as it lives; any thread, once it is open. Invariants:
 * nothing here is freed twice; whatever does not fit any more is made elsewhere, where a child that reaches for it
 * dies. */
#ifndef BASE_SEEN_H
#define BASE_SEEN_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

/* Before any thread is started, once. bytes: addresses that are set aside; memory is taken as it is used. E_SYS. */
int seen_open(size_t bytes, struct err *e);
bool seen_is_open(void);
/* In a forked child: from now on what lies there can be read, never written, by nobody in this process; and what this
 * process makes lies elsewhere. E_SYS. */
int seen_only_read(struct err *e);
/* The file of the range, to be kept open by whoever forks children; -1: it is not open. */
int seen_file(void);

void *seen_new(size_t bytes);                    /* zeroed; ASSERTs on failure */
void *seen_new_array(size_t count, size_t size); /* the same, overflow checked */
/* As mem_resize; a block that is made by it (p NULL) lies in the range, too. */
void *seen_resize(void *p, size_t count, size_t size);

/* ---- for mem.c */
bool seen_has(const void *p); /* does it lie in the range? */
size_t seen_size(const void *p);
void seen_free(void *p);

#endif
