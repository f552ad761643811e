/* The front's own series for /metrics: HTTP requests by route, method and status class, their durations, what
 * the process uses, and how policy loads went. Label values are bounded: routes come from the table,
 * everything else is "none". Front thread only. */
#ifndef SERVE_FRONT_COUNTS_H
#define SERVE_FRONT_COUNTS_H

#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/serve/http/parse.h"

enum { COUNTS_ROUTES = 40, COUNTS_BUCKETS = 14 };
enum reload_result { RELOAD_OK, RELOAD_REFUSED, RELOAD_INIT_ERROR, RELOAD_UNREADABLE, RELOAD_RESULTS };

struct route_counts {
    const char *name;                        /* a literal */
    uint64_t requests[HTTP_METHOD_COUNT][6]; /* by status class: 1xx .. 5xx at 1 .. 5 */
    uint64_t buckets[COUNTS_BUCKETS + 1], n;
    double seconds;
};

struct counts {
    struct route_counts routes[COUNTS_ROUTES];
    int n_routes;
    uint64_t reloads[RELOAD_RESULTS];
    uint64_t record_failures;      /* writes of the record of policies that failed */
    int64_t last_reload_s;         /* Unix; of the last that went live */
    uint64_t n_gone;               /* clients that left before their answer was whole */
    uint64_t n_submitted, n_ended; /* engine requests: handed in, endings seen */
    int64_t start_s;
};

void counts_init(struct counts *c);
int counts_route(struct counts *c, const char *name); /* its index; made when new, 0 ("none") when the table is full */
void counts_request(struct counts *c, int route, enum http_method m, int status, double seconds);
/* Gauges of the moment, given at render time. */
struct counts_now {
    int connections, exchanges, text_jobs;
    size_t backlog;
};
void counts_render(const struct counts *c, const struct counts_now *now, struct buf *out);

#endif
