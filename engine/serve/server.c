#include "engine/serve/server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/admin.h"
#include "engine/serve/routes.h"

enum { EVENT_BATCH = 512, BATCHES_PER_TURN = 8, MOST_BATCH_LINES = 64 };

struct server {
    struct server_setup setup;
    struct front front;
    struct think_marks think; /* what front.model_text has of it */
    struct openai openai;
    struct embed_api embed;
    struct routes routes;
    struct policies policies;
    struct events watching;
    struct whatif whatif;
    struct admin admin;
    struct loop *loop;
    struct loop_event *on_outbox, *on_text, *on_embed, *on_tick, *on_guard;
    struct engine_event *events; /* EVENT_BATCH */
    int64_t drain_ns;            /* when draining began; 0: not */
    bool engine_drained, stopped_hard;
};

/* ---- HTTP */

static void handle(void *ctx, struct http_exchange *x)
{
    struct server *s = ctx;
    if (x->admin)
        admin_handle(&s->admin, x);
    else
        routes_handle(&s->routes, x);
}

static bool admit(void *ctx, struct http_exchange *x)
{
    struct server *s = ctx;
    return x->admin ? admin_admit(&s->admin, x) : routes_admit(&s->routes, x);
}

static void exchange_done(void *ctx, const struct http_exchange *x, int64_t now)
{
    struct server *s = ctx;
    double seconds = (double)(now - x->began_ns) * 1e-9;
    counts_request(&s->front.counts, routes_count_index(&s->front, x), x->head.method, x->status, seconds);
    if (s->setup.log_requests)
        log_info("http", "%s %s %d %.3f s", http_method_name(x->head.method), x->head.path ? x->head.path : "-",
                 x->status, seconds);
}

static void error_body(int status, const char *why, struct buf *out)
{
    struct fault f;
    fault_set(&f, status, status == 413 ? "too_large" : "bad_request", NULL, "%s", why);
    fault_put(&f, out);
}

/* ---- the engine's events */

static void take_event(struct server *s, struct engine_event *ev)
{
    if (ev->kind == EV_REPLY)
        calls_take(&s->front.calls, ev);
    else if (ev->kind == EV_DRAINED)
        s->engine_drained = true;
    else if (ev->kind == EV_POLICY)
        policies_event(&s->policies, ev->payload, ev->n);
    else if (ev->kind == EV_EMBED)
        embed_api_route(&s->embed, embed_rule_unpack(ev->tag));
    else if (ev->kind == EV_DOWN) {
        snprintf(s->front.down, sizeof s->front.down, "%s", (const char *)ev->payload);
        embed_api_route(&s->embed, (struct embed_rule){0}); /* no policy decides any more */
    } else
        openai_event(&s->openai, ev);
    mem_free(ev->payload);
}

static void check_drained(struct server *s);

/* Many tokens for one connection leave as one write: the batch is taken first, then sent. */
static void on_outbox(void *ctx)
{
    struct server *s = ctx;
    queue_fd_clear(s->setup.outbox);
    size_t n = EVENT_BATCH;
    for (int i = 0; i < BATCHES_PER_TURN && n == EVENT_BATCH; i++) {
        n = queue_take_many(s->setup.outbox, s->events, EVENT_BATCH);
        for (size_t k = 0; k < n; k++)
            take_event(s, &s->events[k]);
        http_flush(s->front.http);
    }
    if (n == EVENT_BATCH)
        loop_again(s->on_outbox); /* others get their turn first */
    check_drained(s);
}

static void on_text(void *ctx)
{
    struct server *s = ctx;
    text_collect(s->front.text);
    check_drained(s);
}

static void on_embed(void *ctx)
{
    struct server *s = ctx;
    embed_api_collect(&s->embed);
    check_drained(s);
}

/* What has become of a policy, for those who watch. */
static void tell_watchers(void *ctx, const struct audit_entry *a)
{
    struct buf json = {0};
    buf_putc(&json, '{');
    audit_show(a, &json);
    buf_putc(&json, '}');
    events_tell(ctx, "policy", json.data, json.len);
    buf_free(&json);
}

/* ---- the end */

static void check_drained(struct server *s)
{
    if (s->drain_ns && s->engine_drained && openai_is_idle(&s->openai) && http_n_exchanges(s->front.http) == 0 &&
        http_backlog(s->front.http) == 0)
        loop_stop(s->loop);
}

void server_drain(struct server *s)
{
    if (s->drain_ns)
        return;
    jobs_interrupt(s->routes.jobs.jobs);
    s->drain_ns = clock_now(s->setup.clock);
    s->front.draining = true;
    log_info("server", "draining: %d sequences are under way", s->front.n_live);
    whatif_interrupt(&s->whatif);
    if (s->setup.guard)
        guard_note_drain(s->setup.guard);
    http_close_after_answers(s->front.http);
}

/* IN_DRAIN goes out once nothing is on its way to the engine any more. */
static void push_drain(struct server *s)
{
    if (!s->drain_ns || s->openai.n_orders || s->openai.n_behind || s->front.stopped)
        return;
    s->front.stopped = true;
    struct engine_message m = {.kind = IN_DRAIN};
    if (s->setup.inbox)
        queue_post(s->setup.inbox, &m);
}

static void stop_now(struct server *s)
{
    jobs_interrupt(s->routes.jobs.jobs);
    s->stopped_hard = s->front.stopped = s->front.draining = true;
    log_warn("server", "stopping at once: %d sequences are cut off", s->front.n_live);
    openai_fail_all(&s->openai, "the server is stopping");
    embed_api_stop(&s->embed, "the server is stopping");
    http_close_after_answers(s->front.http);
    loop_stop(s->loop);
}

static void reload(struct server *s)
{
    if (policies_reload(&s->policies, "signal"))
        log_info("server", "SIGHUP: %s is read again", s->policies.watched.path);
    else
        log_warn("server", "SIGHUP: no file of the live policy is followed, so nothing is read");
}

static void on_guard(void *ctx)
{
    struct server *s = ctx;
    enum guard_word word;
    while ((word = guard_take(s->setup.guard)) != GUARD_NOTHING && !s->stopped_hard) {
        if (word == GUARD_STOP)
            stop_now(s);
        else if (word == GUARD_RELOAD)
            reload(s);
        else
            server_drain(s);
    }
    push_drain(s);
}

static void drain_by_admin(void *ctx)
{
    server_drain(ctx);
}

static void on_tick(void *ctx)
{
    struct server *s = ctx;
    openai_tick(&s->openai, clock_now(s->setup.clock));
    events_tick(&s->watching);
    push_drain(s);
    check_drained(s);
}

/* ---- making */

static uint64_t seed(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec << 20 ^ (uint64_t)getpid();
}

/* A token by its name, "" when there is none. */
static char *piece(const struct tokenizer *t, int32_t id)
{
    struct buf out = {0};
    if (id >= 0)
        tokenizer_piece(t, id, &out);
    return buf_take(&out);
}

/* Is it one control token? */
static bool is_control(const struct tokenizer *t, const char *mark)
{
    struct tokens ids = {0};
    struct tokenize_how how = {.flags = TOKENIZE_SPECIAL};
    bool control = tokenizer_encode(t, mark, strlen(mark), how, &ids, NULL) == 0 && ids.len == 1 &&
                   tokenizer_is_special(t, ids.ids[0]);
    tokens_free(&ids);
    return control;
}

static struct front_text text_of(const struct server_setup *u, struct think_marks *think)
{
    const struct tokenizer *t = u->tokenizer;
    bool thinks = t && u->think_end;
    if (thinks)
        think_marks_set(think, u->think_end, is_control(t, u->think_end));
    return t ? (struct front_text){t,
                                   u->chat,
                                   piece(t, tokenizer_bos(t)),
                                   piece(t, tokenizer_eos(t)),
                                   u->n_vocab,
                                   u->max_model_len,
                                   u->tools,
                                   thinks ? think : NULL,
                                   thinks && u->splits_thoughts && *think->begin,
                                   thinks && u->can_probe}
             : (struct front_text){0};
}

/* The path of what answers, for /v1/models and for batches that go on after a restart. */
static const char *root_of(const struct server_setup *u)
{
    return u->root ? u->root : u->n_names ? u->names[0] : u->embed.root;
}

static void init_front(struct server *s)
{
    const struct server_setup *u = &s->setup;
    struct front *f = &s->front;
    f->clock = u->clock;
    f->inbox = u->inbox;
    f->model_text = text_of(u, &s->think);
    f->names = u->names;
    f->n_names = u->n_names;
    f->encoder = u->embed.encoder ? u->embed.name : NULL;
    f->alone = !u->inbox;
    f->root = root_of(u);
    f->chat_source = u->chat_source;
    f->created_s = clock_wall_seconds();
    f->max_live = u->max_live;
    f->places = u->max_num_seqs;
    f->step_tokens = u->max_num_batched_tokens;
    f->ping_s = u->ping_s == 0 ? 5 : u->ping_s < 0 ? 0 : u->ping_s;
    f->force_usage = u->force_usage;
    calls_init(&f->calls, u->inbox);
    counts_init(&f->counts);
    rng_init(&f->rng, seed());
    openai_init(&s->openai, f);
    events_init(&s->watching, f);
    s->routes = (struct routes){
        .front = f, .openai = &s->openai, .embed = &s->embed, .origins = u->origins, .n_origins = u->n_origins};
    s->admin = (struct admin){.front = f,
                              .openai = &s->openai,
                              .embed = &s->embed,
                              .policies = &s->policies,
                              .events = &s->watching,
                              .whatif = &s->whatif,
                              .suffix = s->setup.suffix,
                              .drain = drain_by_admin,
                              .drain_ctx = s};
    admin_init_limits(&s->admin);
}

/* Where keys go, and whether what can be read only once is left for later. */
struct key_reading {
    struct auth *api, *admin;
    bool rehearsal;
};

static int read_keys(struct auth *a, const char *const *paths, int n, bool rehearsal, struct err *e)
{
    struct stat st;
    for (int i = 0; i < n; i++)
        if (!rehearsal || stat(paths[i], &st) < 0 || S_ISREG(st.st_mode))
            TRY(auth_read(a, paths[i], e));
    return 0;
}

static int add_keys(const struct server_setup *u, const struct key_reading *to, struct err *e)
{
    for (int i = 0; i < u->n_api_keys; i++)
        TRY(auth_add_spec(to->api, u->api_keys[i], e));
    TRY(read_keys(to->api, u->api_key_files, u->n_api_key_files, to->rehearsal, e));
    if (u->admin_key && *u->admin_key)
        TRY(auth_add(to->admin, u->admin_key, "", e)); /* whole: it has no tenant */
    return read_keys(to->admin, u->admin_key_files, u->n_admin_key_files, to->rehearsal, e);
}

static int take_keys(struct server *s, struct err *e)
{
    TRY(add_keys(&s->setup, &(struct key_reading){&s->routes.auth, &s->admin.auth, false}, e));
    if (!s->routes.auth.n)
        return 0;
    struct buf text = {0};
    auth_describe(&s->routes.auth, &text);
    log_info("server", "API: %s", text.data);
    buf_free(&text);
    return 0;
}

static int name_address(int rc, bool admin, struct err *e)
{
    return rc ? err_prefix(e, rc,
                           admin ? "the port of /admin (--admin-listen; unless given, the one after --port)"
                                 : "the server's port (--host, --port)")
              : 0;
}

int server_can_start(const struct server_setup *u, struct err *e)
{
    struct auth api = {0}, admin = {0};
    int rc = add_keys(u, &(struct key_reading){&api, &admin, true}, e);
    auth_free(&api);
    auth_free(&admin);
    TRY(rc);
    TRY(name_address(http_can_listen(u->host, u->port, e), false, e));
    return u->admin_host ? name_address(http_can_listen(u->admin_host, u->admin_port, e), true, e) : 0;
}

/* What the address really is can be said only once it is bound: a name may mean anything. Nobody is let in before. */
static int listen_all(struct server *s, struct err *e)
{
    const struct server_setup *u = &s->setup;
    TRY(name_address(http_listen(s->front.http, u->host, u->port, false, e), false, e));
    if (!u->admin_host)
        return 0;
    TRY(name_address(http_listen(s->front.http, u->admin_host, u->admin_port, true, e), true, e));
    bool local = http_is_loopback(s->front.http, true);
    s->admin.hosts = (struct hosts){u->admin_hosts, u->n_admin_hosts, u->admin_host, local};
    if (!local && !s->admin.auth.n)
        return err_set(e, E_INPUT, "admin routes on %s need a key: give --admin-key-file, or listen on 127.0.0.1",
                       u->admin_host);
    return 0;
}

static bool has_owner(void *ctx, const char *owner)
{
    const struct auth *a = ctx;
    static const struct auth_key everyone;
    char name[FILES_OWNER];
    for (int i = 0; i < (a->n ? a->n : 1); i++) {
        files_api_owner(a->n ? &a->keys[i] : &everyone, name);
        if (strcmp(name, owner) == 0)
            return true;
    }
    return false;
}

/* Lines of batches have half of the places, at most: the rest is for who waits for an answer. An encoder has no places,
 * and who waits takes turns with them. */
static int lines_at_once(const struct server_setup *u)
{
    int half = u->max_num_seqs / 2;
    if (!u->inbox || half > MOST_BATCH_LINES)
        return MOST_BATCH_LINES;
    return half > 0 ? half : 1;
}

static int open_batches(struct server *s, struct err *e)
{
    const struct server_setup *u = &s->setup;
    struct routes *r = &s->routes;
    struct files_limits limits = u->batch_files;
    int clients = 0;
    for (int i = 0; i < r->auth.n; i++)
        clients += !r->auth.keys[i].offline;
    limits.shared = clients > 1;
    TRY(files_open(&r->files.files, u->batch_dir, &limits, e));
    TRY(jobs_open(&r->jobs.jobs,
                  &(struct jobs_setup){.dir = u->batch_dir,
                                       .files = r->files.files,
                                       .model = u->batch_model,
                                       .encoder = u->batch_encoder,
                                       .clock = u->clock,
                                       .at_once = lines_at_once(u)},
                  e));
    r->files.jobs = r->jobs.jobs;
    r->jobs.files = r->files.files;
    jobs_drop_strangers(r->jobs.jobs, has_owner, &r->auth);
    return 0;
}

/* Its lines come over the server's own port. */
static int start_batches(struct server *s, struct err *e)
{
    if (!s->routes.jobs.jobs)
        return 0;
    if (s->setup.host && !http_is_loopback(s->front.http, false) && !http_is_any(s->front.http))
        return err_set(
            e, E_INPUT,
            "--batch-dir needs a server that hears itself: listen on 127.0.0.1, or on all addresses (--host)");
    return jobs_start(s->routes.jobs.jobs, http_port(s->front.http, false), e);
}

/* What comes back from the engine and from the encoder, as far as there are such. */
static int hear_models(struct server *s, struct err *e)
{
    if (s->setup.outbox) {
        s->on_outbox = loop_fd(s->loop, queue_fd(s->setup.outbox), LOOP_READ, on_outbox, s);
        if (!s->on_outbox)
            return err_set(e, E_SYS, "no event for the engine");
        loop_arm(s->on_outbox);
    }
    if (s->embed.embedder) {
        s->on_embed = loop_fd(s->loop, embedder_fd(s->embed.embedder), LOOP_READ, on_embed, s);
        if (!s->on_embed)
            return err_set(e, E_SYS, "no event for the embedder");
        loop_arm(s->on_embed);
    }
    return 0;
}

static int start_parts(struct server *s, struct err *e)
{
    const struct server_setup *u = &s->setup;
    TRY(take_keys(s, e));
    s->routes.files.front = s->routes.jobs.front = &s->front;
    if (u->batch_dir)
        TRY(open_batches(s, e));
    TRY(loop_create(&s->loop, e));
    s->whatif = (struct whatif){.front = &s->front, .loop = s->loop, .window = u->whatif, .stretch_s = u->probation_s};
    struct http_setup h = {.loop = s->loop,
                           .clock = u->clock,
                           .limits = u->http,
                           .ctx = s,
                           .admit = admit,
                           .handle = handle,
                           .done = exchange_done,
                           .error_body = error_body};
    TRY(http_create(&s->front.http, &h, e));
    double text_s = u->text_s < 0 ? 0 : u->text_s > 0 ? u->text_s : 10;
    struct text_limits l = {u->max_text_jobs ? u->max_text_jobs : 512, text_s, text_s / 10};
    TRY(text_create(&s->front.text, &l, e));
    TRY(embed_api_init(&s->embed, &s->front, &u->embed, e));
    struct policies_setup p = {.front = &s->front,
                               .loop = s->loop,
                               .lua = u->lua,
                               .dir = u->policy_dir,
                               .name = u->policy_name,
                               .path = u->policy_path,
                               .libs = u->policy_libs,
                               .no_watch = u->no_watch,
                               .ledger = u->ledger,
                               .source = u->policy_source,
                               .params = u->policy_params,
                               .why = u->policy_why,
                               .probation_s = u->probation_s};
    TRY(policies_init(&s->policies, &p, e));
    s->policies.ledger->heard = tell_watchers;
    s->policies.ledger->heard_ctx = &s->watching;
    s->on_text = loop_fd(s->loop, text_fd(s->front.text), LOOP_READ, on_text, s);
    s->on_tick = loop_every(s->loop, 250, on_tick, s);
    s->on_guard = u->guard ? loop_fd(s->loop, guard_fd(u->guard), LOOP_READ, on_guard, s) : NULL;
    if (!s->on_text || !s->on_tick || (u->guard && !s->on_guard))
        return err_set(e, E_SYS, "no events for the server");
    loop_arm(s->on_text);
    if (s->on_guard)
        loop_arm(s->on_guard);
    TRY(hear_models(s, e));
    TRY(listen_all(s, e));
    return start_batches(s, e);
}

int server_create(struct server **out, const struct server_setup *u, struct err *e)
{
    struct server *s = mem_new(sizeof *s);
    s->setup = *u;
    s->events = mem_new_array(EVENT_BATCH, sizeof *s->events);
    s->engine_drained = !u->inbox;
    init_front(s);
    int rc = start_parts(s, e);
    *out = rc ? NULL : s;
    if (rc)
        server_destroy(s);
    return rc;
}

int server_port(const struct server *s, bool admin)
{
    return http_port(s->front.http, admin);
}

int server_run(struct server *s)
{
    signal(SIGPIPE, SIG_IGN);
    loop_run(s->loop);
    http_flush(s->front.http); /* last words */
    s->front.stopped = true;
    http_close_listeners(s->front.http);
    http_close_connections(s->front.http);
    loop_event_free(s->on_guard);
    s->on_guard = NULL;
    return s->stopped_hard ? E_GONE : 0;
}

void server_destroy(struct server *s)
{
    if (!s)
        return;
    s->front.stopped = true;
    jobs_stop(s->routes.jobs.jobs);
    embed_api_stop(&s->embed, "the server is stopping");
    policies_lane_ends(&s->policies);
    text_destroy(s->front.text); /* what it brings back is answered, not submitted */
    s->front.text = NULL;
    struct engine_event ev;
    while (s->setup.outbox && queue_take(s->setup.outbox, &ev))
        take_event(s, &ev);
    embed_api_free(&s->embed);
    http_destroy(s->front.http);
    jobs_close(s->routes.jobs.jobs);
    files_close(s->routes.files.files);
    openai_free(&s->openai);
    whatif_free(&s->whatif);
    policies_free(&s->policies);
    calls_free(&s->front.calls);
    auth_free(&s->routes.auth);
    auth_free(&s->admin.auth);
    admin_free_limits(&s->admin);
    loop_event_free(s->on_guard);
    loop_event_free(s->on_outbox);
    loop_event_free(s->on_text);
    loop_event_free(s->on_embed);
    loop_event_free(s->on_tick);
    loop_destroy(s->loop);
    mem_free(s->front.model_text.bos);
    mem_free(s->front.model_text.eos);
    think_marks_free(&s->think);
    mem_free(s->events);
    mem_free(s);
}
