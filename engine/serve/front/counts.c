#include "engine/serve/front/counts.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/clock.h"

static const double bounds[COUNTS_BUCKETS] = {.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120};

void counts_init(struct counts *c)
{
    *c = (struct counts){.start_s = clock_wall_seconds()};
    counts_route(c, "none");
}

int counts_route(struct counts *c, const char *name)
{
    for (int i = 0; i < c->n_routes; i++)
        if (strcmp(c->routes[i].name, name) == 0)
            return i;
    if (c->n_routes == COUNTS_ROUTES)
        return 0;
    c->routes[c->n_routes].name = name;
    return c->n_routes++;
}

void counts_request(struct counts *c, int route, enum http_method m, int status, double seconds)
{
    struct route_counts *r = &c->routes[route];
    int class = status / 100;
    r->requests[m < HTTP_METHOD_COUNT ? m : 0][class >= 1 && class <= 5 ? class : 5]++;
    int b = 0;
    while (b < COUNTS_BUCKETS && seconds > bounds[b])
        b++;
    r->buckets[b]++;
    r->n++;
    r->seconds += seconds;
    c->n_gone += status == 499;
}

static void put_requests(const struct counts *c, struct buf *out)
{
    buf_puts(out, "# HELP http_requests_total Requests by route, method and status class.\n# TYPE "
                  "http_requests_total counter\n");
    for (int i = 0; i < c->n_routes; i++)
        for (int m = 0; m < HTTP_METHOD_COUNT; m++)
            for (int s = 1; s <= 5; s++)
                if (c->routes[i].requests[m][s])
                    buf_printf(out, "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %" PRIu64 "\n",
                               c->routes[i].name, http_method_name((enum http_method)m), s,
                               c->routes[i].requests[m][s]);
}

static void put_durations(const struct counts *c, struct buf *out)
{
    const char *name = "http_request_duration_seconds";
    buf_printf(out, "# HELP %s Time from a request's head to the end of its answer.\n# TYPE %s histogram\n", name,
               name);
    for (int i = 0; i < c->n_routes; i++) {
        const struct route_counts *r = &c->routes[i];
        if (!r->n)
            continue;
        uint64_t sum = 0;
        for (int b = 0; b < COUNTS_BUCKETS; b++) {
            sum += r->buckets[b];
            buf_printf(out, "%s_bucket{handler=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, r->name, bounds[b], sum);
        }
        buf_printf(out,
                   "%s_bucket{handler=\"%s\",le=\"+Inf\"} %" PRIu64
                   "\n%s_sum{handler=\"%s\"} %.9g\n%s_count{handler=\"%s\"} %" PRIu64 "\n",
                   name, r->name, r->n, name, r->name, r->seconds, name, r->name, r->n);
    }
}

static void put_one(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, v);
}

static void put_reloads(const struct counts *c, struct buf *out)
{
    static const char *const names[] = {"ok", "validate", "init_error", "unreadable"};
    buf_puts(out, "# HELP policy_reload_total Policy loads by result: ok, refused by validation, failed to "
                  "start, file unreadable.\n"
                  "# TYPE policy_reload_total counter\n");
    for (int i = 0; i < RELOAD_RESULTS; i++)
        buf_printf(out, "policy_reload_total{result=\"%s\"} %" PRIu64 "\n", names[i], c->reloads[i]);
    put_one(out, "policy_record_failures_total", "counter", "Writes of --state-dir that failed.",
            (double)c->record_failures);
    put_one(out, "policy_last_reload_timestamp", "gauge", "Unix time of the last load that went live; 0: none.",
            (double)c->last_reload_s);
}

static double resident_bytes(void)
{
    long pages = 0, skip = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &skip, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static double open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the folder itself */
}

static void put_process(const struct counts *c, struct buf *out)
{
    struct rusage u = {0};
    getrusage(RUSAGE_SELF, &u);
    double cpu = (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    struct rlimit files = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    put_one(out, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    put_one(out, "process_cpu_seconds_total", "counter", "CPU time, user and system.", cpu);
    put_one(out, "process_open_fds", "gauge", "Open file descriptors.", open_files());
    put_one(out, "process_max_fds", "gauge", "Most file descriptors the process may open.", (double)files.rlim_cur);
    put_one(out, "process_start_time_seconds", "gauge", "Unix time of the start.", (double)c->start_s);
}

void counts_render(const struct counts *c, const struct counts_now *now, struct buf *out)
{
    put_requests(c, out);
    put_durations(c, out);
    put_one(out, "http_connections", "gauge", "Open connections.", now->connections);
    put_one(out, "http_requests_in_progress", "gauge", "Requests being answered.", now->exchanges);
    put_one(out, "http_unsent_bytes", "gauge", "Bytes waiting for readers.", (double)now->backlog);
    put_one(out, "http_clients_gone_total", "counter", "Clients that left before their answer was whole.",
            (double)c->n_gone);
    put_one(out, "front_text_jobs", "gauge", "Requests with the text workers.", now->text_jobs);
    put_one(out, "front_requests_submitted_total", "counter", "Sequences handed to the engine.",
            (double)c->n_submitted);
    put_one(out, "front_requests_ended_total", "counter", "Endings received for them.", (double)c->n_ended);
    put_reloads(c, out);
    put_process(c, out);
}
