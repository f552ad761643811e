/* What a rank holds is taken and filled on threads of its own, so that it lies beside them on a machine of several NUMA
 * nodes; ranks open at the same time, and the first of them that cannot says why. The backend's calls are noted with
 * the thread that made them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/monitor.h"
#include "engine/base/numa.h"
#include "engine/exec/kv_memory.h"
#include "engine/node.h"

enum { RANKS = 4, MOST = 4096, SEEN_DEVICES = 64 };

/* A call that takes or fills memory, and the rank whose device it was for: devices have their rank's number. */
struct call {
    enum { LOADS, TAKES } what;
    int rank, cpu; /* cpu: the one that the thread may run on; -1: several */
    char thread[16];
};

static struct notes {
    struct monitor *lock;
    struct backend_ops ops;
    struct {
        const struct device *device;
        int rank;
    } devices[SEEN_DEVICES];
    struct call calls[MOST];
    int n_devices, n_calls;
    int fails_from; /* ranks from this one on find no memory for weights; -1: none */
} notes;

static int rank_of(const struct device *d)
{
    for (int i = notes.n_devices - 1; i >= 0; i--)
        if (notes.devices[i].device == d)
            return notes.devices[i].rank;
    return -1;
}

/* The only CPU that this thread may run on; -1: there are several. */
static int only_cpu(void)
{
    bool may[CORES_MOST_CPUS];
    int found = -1, n = 0;
    cores_allowed(may);
    for (int i = 0; i < CORES_MOST_CPUS; i++)
        if (may[i]) {
            found = i;
            n++;
        }
    return n == 1 ? found : -1;
}

static int note(struct device *d, int what)
{
    monitor_lock(notes.lock);
    assert_true(notes.n_calls < MOST);
    struct call *c = &notes.calls[notes.n_calls++];
    c->what = what;
    c->rank = rank_of(d);
    c->cpu = only_cpu();
    prctl(PR_GET_NAME, c->thread);
    int rank = c->rank;
    monitor_unlock(notes.lock);
    return rank;
}

static int noted_open(struct device **out, const struct device_opts *o, struct err *e)
{
    int rc = backend_cpu()->open(out, o, e);
    monitor_lock(notes.lock);
    assert_true(notes.n_devices < SEEN_DEVICES);
    notes.devices[notes.n_devices].device = *out;
    notes.devices[notes.n_devices++].rank = o->index;
    monitor_unlock(notes.lock);
    return rc;
}

static void *noted_alloc(struct device *d, size_t bytes)
{
    note(d, TAKES);
    return backend_cpu()->alloc(d, bytes);
}

static int noted_load(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    int rank = note(d, LOADS);
    if (notes.fails_from >= 0 && rank >= notes.fails_from)
        return err_set(e, E_UNSUPPORTED, "rank %d has no such weights", rank);
    return backend_cpu()->weight_load(d, out, src, e);
}

static const struct backend_ops *noted_cpu(int fails_from)
{
    notes = (struct notes){.lock = monitor_new(), .ops = *backend_cpu(), .fails_from = fails_from};
    notes.ops.open = noted_open;
    notes.ops.alloc = noted_alloc;
    notes.ops.weight_load = noted_load;
    return &notes.ops;
}

static void ended(void *ctx, struct step *s)
{
    (void)ctx;
    (void)s;
}

static void moved(void *ctx, struct move *m)
{
    (void)ctx;
    (void)m;
}

static int open_it(struct node *n, struct model *m, const struct ffn_setup *ffn, const struct numa *numa, struct err *e)
{
    struct engine_setup s = {.ops = &notes.ops,
                             .device = {.n_threads = RANKS},
                             .model = m,
                             .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 16, .max_model_len = 32},
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .kv_bytes = 1 << 20,
                             .n_ranks = RANKS,
                             .ffn = ffn,
                             .numa = numa,
                             .rank_memory = ffn ? 256 << 20 : 0,
                             .threaded = true,
                             .quiet = true};
    struct limits limits = s.limits;
    for (int i = 0; i < RANKS; i++)
        s.devices[i] = ffn ? i : 0;
    return node_open(n, &s, &limits, &(struct node_callbacks){.step_done = ended, .move_done = moved}, e);
}

static struct model *open_gqa(void)
{
    struct err e = {0};
    struct model *m;
    if (model_open_dummy(&m, "tests/data/layout_gqa.json", DT_Q8_0, 1, &e))
        fail_msg("%s", e.text);
    return m;
}

static struct ffn_setup pool_of(const struct model *m)
{
    struct err e = {0};
    struct ffn_setup f = {
        .n_ranks = RANKS, .n_layers = model_config(m)->n_layers, .n_slots = 2, .order = FFN_SLICED, .tile_bytes = 4096};
    assert_int_equal(ffn_parse_owners(&f, "layer-mod", &e), 0);
    return f;
}

static void close_notes(void)
{
    monitor_free(notes.lock);
    notes.lock = NULL;
}

/* Weights, vectors, working memory, KV, slots and rows: nothing of a rank is touched by another thread. */
static void each_rank_touches_its_own_memory_first(void **state)
{
    (void)state;
    struct err e = {0};
    struct node n;
    struct model *m = open_gqa();
    struct ffn_setup ffn = pool_of(m);
    int loads[RANKS] = {0}, takes[RANKS] = {0};
    noted_cpu(-1);
    if (open_it(&n, m, &ffn, NULL, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < notes.n_calls; i++) {
        const struct call *c = &notes.calls[i];
        char own[16];
        if (strcmp(c->thread, "comm") == 0) /* measures links, and gives it back */
            continue;
        assert_in_range(c->rank, 0, RANKS - 1);
        snprintf(own, sizeof own, "rank-%d", c->rank);
        assert_string_equal(c->thread, own);
        (c->what == LOADS ? loads : takes)[c->rank]++;
    }
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(loads[r], 1 + !model_config(m)->tied + 4 * ffn.n_layers + 3 * ffn_owned(&ffn, r));
        assert_int_equal(takes[r], 3 + ffn.n_slots + 1); /* vectors, working memory, KV; slots; rows of others */
    }
    node_close(&n);
    model_close(m);
    close_notes();
}

/* Two nodes of one CPU each, of those that this process has. */
static void made_nodes(struct numa *out, int cpus[2])
{
    bool may[CORES_MOST_CPUS];
    int n = 0;
    cores_allowed(may);
    for (int i = 0; i < CORES_MOST_CPUS && n < 2; i++)
        if (may[i])
            cpus[n++] = i;
    cpus[1] = n == 2 ? cpus[1] : cpus[0];
    *out = (struct numa){.n_nodes = 2, .nodes = {{.number = 0, .cores = 1}, {.number = 1, .cores = 1}}};
    for (int i = 0; i < 2; i++)
        out->nodes[i].cpus[cpus[i]] = true;
}

/* Ranks that share weights have them once on each node, and all that a rank loads or takes it does there. */
static void each_node_has_its_own_copy(void **state)
{
    (void)state;
    struct err e = {0};
    struct node n;
    struct numa numa;
    struct model *m = open_gqa();
    int cpus[2], loads[RANKS] = {0}, takes[RANKS] = {0}, n_noted = 0;
    made_nodes(&numa, cpus);
    noted_cpu(-1);
    if (open_it(&n, m, NULL, &numa, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < notes.n_calls; i++) {
        const struct call *c = &notes.calls[i];
        int rank;
        if (sscanf(c->thread, "rank-%d", &rank) != 1)
            continue;
        assert_int_equal(c->cpu, cpus[rank / 2]);
        (c->what == LOADS ? loads : takes)[rank]++;
        n_noted++;
    }
    assert_true(n_noted > 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(loads[r] > 0, r % 2 == 0);
        assert_true(takes[r] > 0);
        assert_int_equal(rank_weight_bytes(n.ranks[r]) > 0, r % 2 == 0);
    }
    assert_int_equal(loads[0], loads[2]);
    const struct layout one = {1, 1, 1};
    const struct weight *of[RANKS];
    for (int r = 0; r < RANKS; r++)
        of[r] = weights_view(rank_weights(n.ranks[r]), one, 0)->embed.w;
    assert_true(of[0] == of[1] && of[2] == of[3] && of[0] != of[2]);
    node_close(&n);
    model_close(m);
    close_notes();
}

/* All that cannot open have an error; the one of the least rank is told, whichever came first. */
static void the_first_rank_that_cannot_open_says_why(void **state)
{
    (void)state;
    struct model *m = open_gqa();
    struct ffn_setup ffn = pool_of(m);
    for (int i = 0; i < 8; i++) {
        struct err e = {0};
        struct node n;
        noted_cpu(1 + i % (RANKS - 1));
        assert_int_equal(open_it(&n, m, &ffn, NULL, &e), E_UNSUPPORTED);
        char says[64];
        snprintf(says, sizeof says, "rank %d has no such weights", 1 + i % (RANKS - 1));
        assert_string_equal(e.text, says);
        close_notes();
    }
    model_close(m);
}

/* Of each layer the lowest blocks have pages when serving begins, as the first request writes these; the rest of what
 * the KV may have is nobody's memory until it is used. */
static void the_first_blocks_are_there(void **state)
{
    (void)state;
    enum { LAYERS = 3, BLOCKS = 1000 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct err e = {0};
    struct device *d;
    struct device_opts o = {.n_threads = 1, .max_rows = 8, .max_logits = 1};
    assert_int_equal(backend_cpu()->open(&d, &o, &e), 0);
    for (int touches = 0; touches < 2; touches++) {
        struct backend_ops ops = *backend_cpu();
        ops.touch = touches ? ops.touch : NULL;
        struct kv_memory_setup s = {.ops = &ops,
                                    .dtype = DT_BF16,
                                    .bits = 16,
                                    .block_size = 32,
                                    .n_layers = LAYERS,
                                    .heads = {.n_q = 8, .n_kv = 8, .head_dim = 64}};
        struct kv_memory m;
        kv_memory_init(&m, &s);
        m.all.n_blocks = BLOCKS;
        assert_int_equal(kv_memory_take(&m, d, &e), 0);
        for (int l = 0; l < LAYERS; l++) {
            char *layer = (char *)m.all.base + (size_t)l * BLOCKS * m.all.block_bytes;
            unsigned char first = 2, last = 2;
            layer -= (uintptr_t)layer % page;
            assert_int_equal(mincore(layer, page, &first), 0);
            assert_int_equal(mincore(layer + (8 << 20), page, &last), 0);
            assert_int_equal(first & 1, touches);
            assert_int_equal(last & 1, 0);
        }
        kv_memory_free(&m, d);
    }
    backend_cpu()->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_touches_its_own_memory_first),
        cmocka_unit_test(each_node_has_its_own_copy),
        cmocka_unit_test(the_first_rank_that_cannot_open_says_why),
        cmocka_unit_test(the_first_blocks_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
