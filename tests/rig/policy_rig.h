/* What the policy tests share: the real engine on the simulated device in virtual time, with a Lua policy, and the
 * outcome of each request. A rig belongs to one test. */
#ifndef RIG_POLICY_RIG_H
#define RIG_POLICY_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"
#include "engine/engine.h"
#include "lua/host.h"
#include "lua/nursery.h"

#define SECONDS(n) ((int64_t)((n)*1e9))
enum { RIG_TAGS = 4096, RIG_TURNS = 20000 };
/* No call is slow: what the engine does in virtual time must not depend on how fast the machine is. */
enum { RIG_SOFT_NS = 2000000000 };

struct rig_knobs {
    int seqs, batched, blocks; /* 0: 16, 64, 256 */
    int ranks, group_size;     /* 0: 1 rank; one group of all */
    int host_blocks;           /* of host memory for KV; 0: none */
    int fail_rank;             /* fails in its step number fail_at_step (0: never) */
    uint64_t fail_at_step;
    double starvation_s, probation_s; /* 0: off */
    double shadow_share;
    size_t heap_bytes;
    int64_t hard_ns;
    const struct backend_ops *ops; /* NULL: those of the simulated device */
    const struct ffn_setup *ffn;   /* pooled weights; NULL: not */
    const struct witness *witness; /* NULL: none */
};

struct rig {
    struct lua_watchdog *dog;
    struct clock clock;
    struct model *model;
    struct engine *engine;
    struct lua_opts opts;
    struct {
        int n_tokens, n_ends, status;
        enum ending ending;
        int64_t end_ns;
        uint64_t text; /* a hash of its tokens */
    } heard[RIG_TAGS];
    uint64_t n_tags;
    int reply_code;
    struct buf reply;
    uint64_t embed_rule; /* of an encoder, as the front was told last */
    int n_embed_rules;
    int n_told; /* of policies: kept, withdrawn, rolled back */
    char told[1024];
};

/* With MOONSHIFT_TEST_ISOLATION=process policies have processes of their own, from a nursery that is this program's. It
 * is started before the first rig has a thread, and ends with the program. */
static inline struct nursery *rig_nursery(void)
{
    static struct nursery *nursery;
    const char *asked = getenv("MOONSHIFT_TEST_ISOLATION");
    struct err e = {0};
    if (!nursery && asked && !strcmp(asked, "process") &&
        (seen_open((size_t)1 << 30, &e) || nursery_start(&nursery, NULL, NULL, &e)))
        fail_msg("%s", e.text);
    return nursery;
}

static inline void rig_open(struct rig *t, const struct rig_knobs *k)
{
    struct err e = {0};
    struct nursery *nursery = rig_nursery();
    memset(t, 0, sizeof *t);
    clock_init_virtual(&t->clock, 1000000000);
    if (lua_watchdog_start(&t->dog, &e) ||
        model_open_dummy(&t->model, k->ranks > 1 ? "tests/data/sim_ranks.json" : "tests/data/sim_model.json", DT_BF16,
                         1, &e))
        fail_msg("%s", e.text);
    t->opts = (struct lua_opts){.watchdog = t->dog,
                                .heap_bytes = k->heap_bytes,
                                .soft_ns = RIG_SOFT_NS,
                                .hard_ns = k->hard_ns,
                                .quiet = true,
                                .nursery = nursery,
                                .folder = "policies"};
    struct engine_setup s = {.ops = k->ops ? k->ops : backend_sim(),
                             .ffn = k->ffn,
                             .device = {.sim_step_ns = 1000000, .sim_row_ns = 10000, .pool = k->ffn},
                             .model = t->model,
                             .limits = {.max_num_seqs = k->seqs ? k->seqs : 16,
                                        .max_num_batched_tokens = k->batched ? k->batched : 64,
                                        .prefix_caching = true,
                                        .park_ns = 200000000,
                                        .probation_ns = (int64_t)(k->probation_s * 1e9),
                                        .starvation_ns = (int64_t)(k->starvation_s * 1e9)},
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .n_ranks = k->ranks ? k->ranks : 1,
                             .start = {k->group_size, k->group_size ? 1 : 0, 1},
                             .fail_rank = k->fail_rank,
                             .fail_at_step = k->fail_at_step,
                             .shadow_share = k->shadow_share,
                             .witness = k->witness,
                             .clock = &t->clock,
                             .quiet = true};
    policy_fcfs(&s.policy);
    snprintf(s.model_name, sizeof s.model_name, "sim");
    const struct model_config *c = model_config(t->model);
    s.kv_bytes = (size_t)(k->blocks ? k->blocks : 256) * (size_t)c->n_layers *
                 backend_sim()->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    s.host_kv_bytes = (size_t)k->host_blocks * s.kv_bytes / (size_t)(k->blocks ? k->blocks : 256);
    if (engine_create(&t->engine, &s, &e))
        fail_msg("%s", e.text);
}

static inline void rig_listen(struct rig *t)
{
    struct engine_event ev;
    while (queue_take(engine_outbox(t->engine), &ev)) {
        if (ev.kind == EV_TOKEN) {
            t->heard[ev.tag].n_tokens++;
            t->heard[ev.tag].text = t->heard[ev.tag].text * 1000003 + (uint64_t)ev.token;
        }
        if (ev.kind == EV_END) {
            t->heard[ev.tag].n_ends++;
            t->heard[ev.tag].ending = (enum ending)ev.code;
            t->heard[ev.tag].status = ev.http_status;
            t->heard[ev.tag].end_ns = clock_now(&t->clock);
        }
        if (ev.kind == EV_EMBED) {
            t->embed_rule = ev.tag;
            t->n_embed_rules++;
        }
        if (ev.kind == EV_POLICY) {
            t->n_told++;
            snprintf(t->told, sizeof t->told, "%s", (const char *)ev.payload);
        }
        if (ev.kind == EV_REPLY) {
            t->reply_code = ev.code;
            buf_clear(&t->reply);
            buf_put(&t->reply, ev.payload, ev.n);
        }
        mem_free(ev.payload);
    }
}

static inline void rig_turn(struct rig *t)
{
    for (int n = 0; engine_turn(t->engine); n++)
        if (n == RIG_TURNS)
            fail_msg("%d turns, and the clock has not moved", n);
    rig_listen(t);
}

static inline void rig_run_until(struct rig *t, int64_t until)
{
    for (int n = 0;; n++) {
        rig_turn(t);
        int64_t next = engine_next_ns(t->engine), now = clock_now(&t->clock);
        if (next > until || next == INT64_MAX)
            break;
        if (next > now)
            n = 0;
        else if (n == RIG_TURNS)
            fail_msg("something is due %d times, and nothing is done about it", n);
        clock_advance_to(&t->clock, next > now ? next : now);
    }
    if (until != INT64_MAX && until > clock_now(&t->clock))
        clock_advance_to(&t->clock, until);
}

static inline void rig_run(struct rig *t)
{
    rig_run_until(t, INT64_MAX);
}

static inline void rig_run_for(struct rig *t, int64_t ns)
{
    rig_run_until(t, clock_now(&t->clock) + ns);
}

/* Until no request lives: a policy may want to be woken for ever. */
static inline void rig_settle(struct rig *t)
{
    for (int i = 0; i < 20000; i++) {
        rig_run_until(t, clock_now(&t->clock) + 5000000);
        if (!engine_world(t->engine)->requests.n_live)
            return;
    }
    fail_msg("requests live on and on");
}

static inline void rig_post(struct rig *t, enum engine_in kind, void *payload, size_t n)
{
    struct engine_message m = {.kind = kind, .payload = payload, .n = n};
    assert_int_equal(queue_post(engine_inbox(t->engine), &m), 0);
}

static inline struct request_spec *rig_spec(struct rig *t, const char *tenant, int n_prompt, int max_tokens)
{
    struct request_spec *s = request_spec_new();
    s->tag = ++t->n_tags;
    assert_true(s->tag < RIG_TAGS);
    snprintf(s->tenant, sizeof s->tenant, "%s", tenant);
    snprintf(s->name, sizeof s->name, "r%llu", (unsigned long long)s->tag);
    s->arrival_ns = clock_now(&t->clock);
    s->n_prompt = n_prompt;
    s->max_tokens = max_tokens;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = (int32_t)((s->tag * 131 + (uint64_t)i) % 1000);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    return s;
}

static inline uint64_t rig_submit(struct rig *t, const char *tenant, int n_prompt, int max_tokens)
{
    rig_post(t, IN_SUBMIT, rig_spec(t, tenant, n_prompt, max_tokens), 0);
    return t->n_tags;
}

/* Loads a source and makes it live. Returns 0, or the code with the text in t->reply. */
static inline int rig_swap(struct rig *t, const char *name, const char *source)
{
    struct err e = {0};
    struct policy *p = mem_new(sizeof *p);
    int rc = lua_policy_load(p, name, source, strlen(source), &t->opts, NULL, &e);
    if (rc) {
        mem_free(p);
        buf_clear(&t->reply);
        buf_puts(&t->reply, e.text);
        return rc;
    }
    rig_post(t, IN_POLICY, p, 0);
    rig_turn(t);
    return t->reply_code;
}

static inline void rig_live(struct rig *t, const char *name, const char *source)
{
    if (rig_swap(t, name, source))
        fail_msg("%s: %s\n%s", name, t->reply.data, source);
}

/* A number of the engine's state, by a path like "policy.fallback_steps.timeout". */
static inline double rig_state(struct rig *t, const char *path)
{
    char copy[200], *rest = copy;
    snprintf(copy, sizeof copy, "%s", path);
    rig_post(t, IN_STATE, NULL, 0);
    rig_turn(t);
    struct json *root = json_parse(t->reply.data, t->reply.len, NULL, NULL);
    assert_non_null(root);
    const struct json *j = root;
    for (char *key; j && (key = strsep(&rest, "."));)
        j = json_find(j, key);
    if (!j)
        fail_msg("the state has no %s", path);
    double v = json_type(j) == JSON_BOOL ? json_true(j) : json_number(j);
    json_free(root);
    return v;
}

/* The value of a metric's line that begins with this text; -1: there is none. */
static inline double rig_metric(struct rig *t, const char *line)
{
    rig_post(t, IN_METRICS, NULL, 0);
    rig_turn(t);
    size_t n = strlen(line);
    for (const char *p = t->reply.data; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, line, n) == 0)
            return strtod(p + n, NULL);
    return -1;
}

/* The last error as the state shows it, into out. */
static inline void rig_last_error(struct rig *t, char *out, size_t cap)
{
    rig_post(t, IN_STATE, NULL, 0);
    rig_turn(t);
    struct json *root = json_parse(t->reply.data, t->reply.len, NULL, NULL);
    assert_non_null(root);
    snprintf(out, cap, "%s", json_text(json_find(json_find(root, "policy"), "last_error")));
    json_free(root);
}

/* Every request has one ending, nothing is held, the books add up. */
static inline void rig_check(struct rig *t)
{
    const struct world *w = engine_world(t->engine);
    for (uint64_t i = 1; i <= t->n_tags; i++)
        assert_int_equal(t->heard[i].n_ends, 1);
    assert_true(world_check(w));
    assert_int_equal(w->requests.n_live, 0);
    for (int i = 0; i < w->kv.n_ranks; i++)
        assert_int_equal(w->kv.ranks[i].n_free + w->kv.ranks[i].n_cached + w->kv.ranks[i].n_lent, w->kv.n_blocks);
}

static inline void rig_close(struct rig *t)
{
    engine_destroy(t->engine);
    model_close(t->model);
    lua_watchdog_stop(t->dog);
    buf_free(&t->reply);
}

#endif
