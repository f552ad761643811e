/* Made-up traffic: arrivals and lengths by seed, the same rows on every machine (whole microseconds, portable_math.h).
 * Named with its settings as NAME[:key=value,...]: poisson, gamma, batch, shift-bursty, flying-bursty, flying-table1.
 * The last three follow to the bit a written definition: splitmix64 streams that start at seed * 1000003 + k with k = 1
 * arrivals, 2 lengths, 3 phase rates, 4 priorities. Owned by whoever opened it, one thread. Invariant: rows are in
 * order of time. */
#ifndef LAB_TRACE_GENERATE_H
#define LAB_TRACE_GENERATE_H

#include "engine/base/buf.h"
#include "engine/lab/trace/trace.h"

struct generator;

bool generator_named(const char *spec); /* is the word before the ':' a generator's name? */
/* "poisson, gamma, ..." for messages; the nearest name to a wrong one, or NULL. */
const char *generator_names(void);
const char *generator_nearest(const char *spec);
/* E_INPUT names the wrong key or value. */
int generator_open(struct generator **out, const char *spec, uint64_t seed, struct err *e);
void generator_close(struct generator *g); /* NULL is fine */
/* False when there are no more. */
bool generator_next(struct generator *g, struct trace_row *row);
/* What it makes, with every setting, as it would be written:
 * "poisson:rate=4,requests=1000,input=512-512,output=128-128". */
void generator_describe(const struct generator *g, struct buf *out);

#endif
