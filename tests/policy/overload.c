/* The policies that come with the program, while more requests come than a node can serve: all of several tenants,
 * priorities, lines of batches and deadlines end, and the watch over starving ones never has to step in. What no policy
 * that keeps an order of its own should have to fear. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/base/rng.h"

enum { N_REQUESTS = 1500 };

static void open_node(struct rig *t, struct rng *rng)
{
    static const int ranks[] = {1, 2, 2, 4, 4, 8}, room[] = {30, 64, 128, 512, 2048}, seats[] = {4, 16, 64};
    int n = ranks[rng_below(rng, 6)], blocks = room[rng_below(rng, 5)], seqs = seats[rng_below(rng, 3)];
    int batched = 64 << rng_below(rng, 3), size = n > 1 ? 1 << rng_below(rng, 2) : 0;
    bool host = rng_below(rng, 2);
    rig_open(t, &(struct rig_knobs){.ranks = n,
                                    .blocks = blocks,
                                    .seqs = seqs,
                                    .batched = batched,
                                    .group_size = size,
                                    .host_blocks = host ? 100 : 0,
                                    .starvation_s = 0.5});
}

/* Some seeds have one tenant and no priorities, others have several of both. */
static void send(struct rig *t, struct rng *rng)
{
    int64_t gap = SECONDS(0.0005) + (int64_t)rng_below(rng, SECONDS(0.008));
    int longest = 16 * engine_world(t->engine)->kv.n_blocks / 2, n_tenants = 1 + (int)rng_below(rng, 8);
    bool ranked = rng_below(rng, 2);
    longest = longest < 400 ? longest : 400;
    for (int i = 0; i < N_REQUESTS && clock_now(&t->clock) < SECONDS(12); i++) {
        char tenant[] = {(char)('a' + rng_below(rng, (uint64_t)n_tenants)), 0};
        int n_output = 1 + (int)rng_below(rng, 40), n_prompt = 1 + (int)rng_below(rng, (uint64_t)longest);
        struct request_spec *s = rig_spec(t, tenant, n_prompt, n_output);
        s->priority = ranked ? (int)rng_below(rng, 3) : 0;
        s->offline = ranked && rng_below(rng, 10) == 0;
        s->slo_ttft_ms = rng_below(rng, 20) ? 0 : 100;
        rig_post(t, IN_SUBMIT, s, 0);
        rig_run_for(t, (int64_t)rng_below(rng, (uint64_t)gap));
    }
}

/* With times in its parameters that suit a watch of half a second. */
struct subject {
    const char *name, *params;
};

static void overload(const struct subject *subject, uint64_t seed)
{
    const char *name = subject->name;
    struct rig t;
    struct rng rng;
    char path[64];
    struct buf source = {0};
    struct err e = {0};
    snprintf(path, sizeof path, "policies/%s.lua", name);
    if (file_read(&source, path, 1 << 20, &e))
        fail_msg("%s", e.text);
    rng_init(&rng, seed);
    open_node(&t, &rng);
    buf_putc(&source, 0);
    if (rig_swap(&t, name, source.data) == 0) {
        if (subject->params)
            rig_post(&t, IN_PARAMS, mem_strdup(subject->params), strlen(subject->params));
        send(&t, &rng);
        rig_settle(&t);
        double starved = rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"),
               stalled = rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}");
        char why[400];
        rig_last_error(&t, why, sizeof why);
        if (starved + stalled + rig_state(&t, "policy.withdrawn") > 0)
            fail_msg("%s, seed %d: starved %g, stalled %g: %s", name, (int)seed, starved, stalled, why);
        rig_check(&t);
    } else {
        fail_msg("%s: %s", name, t.reply.data);
    }
    buf_free(&source);
    rig_close(&t);
}

static void shipped_policies_let_nobody_starve(void **state)
{
    (void)state;
    static const struct subject subjects[] = {
        {"arctic", NULL},     {"auto", NULL},   {"bucket", NULL},   {"daynight", "{\"patience\": 0.08}"},
        {"earlystop", NULL},  {"fair", NULL},   {"fcfs", NULL},     {"flying", NULL},
        {"leastwaste", NULL}, {"ontime", NULL}, {"prefix", NULL},   {"priority", NULL},
        {"session", NULL},    {"shift", NULL},  {"shortest", NULL}, {"sidp", NULL},
        {"static", NULL},     {"tiers", NULL},  {"seesaw", NULL}};
    const char *first = getenv("MOONSHIFT_TEST_SEED"), *n = getenv("MOONSHIFT_TEST_ROUNDS");
    int rounds = n ? atoi(n) : getenv("MOONSHIFT_SLOW") ? 1 : 3;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        for (int k = 0; k < rounds; k++)
            overload(&subjects[i], (first ? strtoull(first, NULL, 10) : 1 + 10 * i) + (uint64_t)k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shipped_policies_let_nobody_starve)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
