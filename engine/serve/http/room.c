#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/log.h"
#include "engine/serve/http/conn.h"

/* OTHER_FILES: models, policies, recordings, queues. SLOW: a request that comes at less than this many times the least
 * rate may be ended for a newcomer. CREDIT: seconds' worth of bytes that all begin with, so that a connection that has
 * just begun is not the slowest. FRESH: before its first second is over a silent connection does not idle; its request
 * may be on the way. */
enum { OTHER_FILES = 256, SLOW = 16, CREDIT = 4, FRESH = 2, SAY_S = 10 };
static const double BUSY = 1e300;
static const char idle_first[] = "idle and slow ones are ended, then newcomers are turned away";

/* Each connection is an open file: where fewer are allowed, fewer connections are, or the admin listener could take
 * none either. */
static void fit_files(struct http_limits *l)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return;
    rlim_t others = (rlim_t)l->admin_connections + OTHER_FILES, want = (rlim_t)l->connections + others,
           had = r.rlim_cur;
    if (had < want) {
        r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max > want ? want : r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) < 0)
            r.rlim_cur = had;
    }
    if (r.rlim_cur >= want)
        return;
    l->connections = r.rlim_cur > 2 * others ? (int)(r.rlim_cur - others) : (int)(r.rlim_cur / 2);
    log_warn("http", "only %d connections at once: the system allows %llu open files (ulimit -n)", l->connections,
             (unsigned long long)r.rlim_cur);
}

void rooms_init(struct http *h)
{
    struct http_limits *l = &h->setup.limits;
    fit_files(l);
    if (!l->per_address)
        l->per_address = l->connections > 1 ? l->connections / 2 : 1;
    h->rooms[false] =
        (struct http_room){.max_conns = l->connections, .per_address = l->per_address, .max_bodies = l->bodies};
    h->rooms[true] = (struct http_room){.max_conns = l->admin_connections, .max_bodies = l->bodies};
    for (int i = 0; i < 2; i++)
        map_init(&h->rooms[i].by_address);
}

void rooms_free(struct http *h)
{
    for (int i = 0; i < 2; i++)
        map_free(&h->rooms[i].by_address);
}

/* An IPv4 address, or the network of an IPv6 one: a client that has one address of it has them all. */
uint64_t room_address_key(const struct sockaddr_storage *a)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    uint64_t key = 0;
    uint32_t four = 0;
    if (a->ss_family == AF_INET)
        four = ((const struct sockaddr_in *)a)->sin_addr.s_addr;
    else if (a->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        memcpy(&four, &six->sin6_addr.s6_addr[12], sizeof four);
    else if (a->ss_family == AF_INET6)
        memcpy(&key, six->sin6_addr.s6_addr, sizeof key);
    return key ? key : UINT64_C(0xffff) << 32 | four;
}

static int count_of(const struct http_room *r, uint64_t address)
{
    uint64_t n = 0;
    map_find(&r->by_address, address, &n);
    return (int)n;
}

void room_enter(struct http_conn *c)
{
    struct http_room *r = c->room;
    r->n_conns++;
    map_set(&r->by_address, c->address, (uint64_t)count_of(r, c->address) + 1);
}

void room_leave(struct http_conn *c)
{
    struct http_room *r = c->room;
    int left = count_of(r, c->address) - 1;
    r->n_conns--;
    if (left > 0)
        map_set(&r->by_address, c->address, (uint64_t)left);
    else
        map_remove(&r->by_address, c->address);
}

/* How little a connection would lose: less than nothing when it idles, bytes a second of a request that comes slowly,
 * BUSY when it is not to be ended. */
static double worth(const struct http_conn *c, int64_t now)
{
    double seconds = (double)(now - c->since_ns) * 1e-9 + 1;
    bool silent = c->step == CONN_HEAD && !c->in.len && !conn_backlog(c);
    bool receiving = c->step == CONN_BODY || (c->step == CONN_HEAD && !c->closing && (c->in.len || silent));
    if (c->step == CONN_LINGER || (silent && seconds > FRESH))
        return -seconds;
    size_t slowest = c->http->setup.limits.rate;
    double rate = (double)(c->in.len + c->x.body.len + CREDIT * slowest) / seconds;
    return receiving && rate < (double)(SLOW * slowest) ? rate : BUSY;
}

/* Of those from an address, or of all. */
static struct http_conn *least(struct http *h, const struct http_room *r, const uint64_t *address)
{
    struct http_conn *found = NULL;
    double best = BUSY;
    int64_t now = clock_now(h->setup.clock);
    LIST_EACH(pos, &h->conns)
    {
        struct http_conn *c = LIST_ENTRY(pos, struct http_conn, all);
        double w = c->room == r && (!address || c->address == *address) ? worth(c, now) : BUSY;
        if (w < best) {
            best = w;
            found = c;
        }
    }
    return found;
}

/* In the log, and not again for some seconds: the log is no place to fill either. */
static void say(struct http *h, int64_t *said_ns, const char *what, const char *then)
{
    int64_t now = clock_now(h->setup.clock);
    if (*said_ns && now - *said_ns < SAY_S * INT64_C(1000000000))
        return;
    *said_ns = now;
    log_warn("http", "%s: %s", what, then);
}

static bool free_one(struct http *h, struct http_room *r, const uint64_t *address)
{
    struct http_conn *c = least(h, r, address);
    if (c)
        conn_kill(c);
    return c != NULL;
}

bool room_make(struct http *h, bool admin, uint64_t address)
{
    struct http_room *r = &h->rooms[admin];
    if (r->per_address && count_of(r, address) >= r->per_address) {
        say(h, &r->said_ns, "one address has as many connections as it may (--max-connections-per-address)",
            idle_first);
        if (!free_one(h, r, &address))
            return false;
    }
    if (r->n_conns < r->max_conns)
        return true;
    say(h, &r->said_ns,
        admin ? "the admin listener has as many connections as it may"
              : "there are as many connections as there may be (--max-connections)",
        idle_first);
    return free_one(h, r, NULL);
}

void room_count_body(struct http_conn *c)
{
    size_t now = c->step == CONN_BODY ? c->x.body.len : 0;
    c->room->body_bytes += now - c->counted;
    c->counted = now;
}

struct http_conn *room_largest_body(struct http *h, const struct http_room *r)
{
    struct http_conn *found = NULL;
    if (r->body_bytes <= r->max_bodies)
        return NULL;
    LIST_EACH(pos, &h->conns)
    {
        struct http_conn *c = LIST_ENTRY(pos, struct http_conn, all);
        if (c->room == r && c->counted && (!found || c->counted > found->counted))
            found = c;
    }
    return found;
}

void room_count_unsent(struct http_conn *c)
{
    size_t now = c->dead ? 0 : conn_backlog(c);
    c->http->unsent += now - c->unsent;
    c->unsent = now;
}

static struct http_conn *largest_unsent(struct http *h, const struct http_conn *but)
{
    struct http_conn *found = NULL;
    LIST_EACH(pos, &h->conns)
    {
        struct http_conn *c = LIST_ENTRY(pos, struct http_conn, all);
        if (c != but && c->unsent && (!found || c->unsent > found->unsent))
            found = c;
    }
    return found;
}

void room_bound_unsent(struct http *h, const struct http_conn *but, size_t more)
{
    struct http_conn *c;
    while (h->unsent + more > h->setup.limits.answers && (c = largest_unsent(h, but))) {
        say(h, &h->said_ns, "answers that nobody takes hold more than they may (--max-answer-memory)",
            "who leaves most is cut off");
        conn_kill(c);
    }
}
