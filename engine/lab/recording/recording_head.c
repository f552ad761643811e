/* The first line of a recording: JSON from outside becomes a node that an engine can be built for, or an error that
 * names the field. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/lab/recording/recording_inner.h"

struct reader {
    const struct lines *lines;
    struct err *e;
    int rc; /* of the first field that was wrong */
};

static void wrong(struct reader *r, const char *field, const char *must, const struct json *is)
{
    if (!r->rc)
        r->rc = lines_bad_field(r->lines, field, must, is ? json_type_name(is) : "nothing", r->e);
}

static int64_t whole(struct reader *r, const struct json *j, const char *field, int64_t min, int64_t max)
{
    int64_t v = 0;
    if (!json_i64(j, &v) || v < min || v > max) {
        char must[80];
        snprintf(must, sizeof must, "a whole number from %lld to %lld", (long long)min, (long long)max);
        wrong(r, field, must, j);
        return min;
    }
    return v;
}

static int64_t member(struct reader *r, const struct json *o, const char *field, int64_t min, int64_t max)
{
    return whole(r, json_find(o, field), field, min, max);
}

static void text_member(struct reader *r, const struct json *o, const char *field, char *out, size_t cap)
{
    const struct json *j = json_find(o, field);
    const char *text = json_text(j);
    if (!text || strlen(text) >= cap)
        wrong(r, field, "a short text", j);
    else
        snprintf(out, cap, "%s", text);
}

static char *object_member(struct reader *r, const struct json *o, const char *field)
{
    const struct json *j = json_find(o, field);
    struct buf out = {0};
    if (json_type(j) != JSON_OBJECT)
        wrong(r, field, "an object", j);
    else
        json_write(&out, j, NULL);
    return buf_take(&out);
}

static void read_limits(struct reader *r, const struct json *o, struct limits *l)
{
    l->max_num_seqs = (int)member(r, o, "max_num_seqs", 1, MAX_REQUESTS);
    l->max_num_batched_tokens = (int)member(r, o, "max_num_batched_tokens", 1, 1 << 20);
    l->max_model_len = (int)member(r, o, "max_model_len", 16, 1 << 30);
    l->max_num_queued_reqs = (int)member(r, o, "max_num_queued_reqs", 0, MAX_REQUESTS);
    l->max_num_queued_tokens = member(r, o, "max_num_queued_tokens", 0, INT64_C(1) << 50);
    l->starvation_ns = member(r, o, "starvation_ns", 0, INT64_C(1) << 60);
    l->park_ns = member(r, o, "park_ns", 0, INT64_C(1) << 60);
    if (json_find(o, "probation_ns")) /* not in recordings of versions without it */
        l->probation_ns = member(r, o, "probation_ns", 0, INT64_C(1) << 60);
    const struct json *caching = json_find(o, "prefix_caching");
    if (json_type(caching) != JSON_BOOL)
        wrong(r, "prefix_caching", "true or false", caching);
    l->prefix_caching = json_true(caching);
}

static void read_sets(struct reader *r, const struct json *list, struct node_shape *s)
{
    uint64_t all = rank_range(0, s->n_ranks);
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        const char *text = json_text(j);
        char *end = NULL;
        uint64_t mask = text ? strtoull(text, &end, 16) : 0;
        bool known = false;
        for (int i = 0; i < s->n_sets; i++)
            known |= s->sets[i] == mask;
        if (!mask || mask & ~all || *end || known || s->n_sets == MAX_SETS) {
            wrong(r, "sets", "different masks of ranks in hexadecimal", j);
            return;
        }
        s->sets[s->n_sets++] = mask;
    }
    for (int i = 0; i < s->n_ranks; i++)
        if (i >= s->n_sets || s->sets[i] != 1ull << i)
            wrong(r, "sets", "first each rank alone", list);
}

static void read_blocks(struct reader *r, const struct json *list, struct node_shape *s)
{
    int n = 0;
    for (const struct json *j = json_first(list); j && n < s->n_ranks; j = json_next(j)) {
        s->tokens_per_block[++n] = (int)whole(r, j, "tokens_per_block", 16, 1 << 20);
        if (s->tokens_per_block[n] % KV_UNIT)
            wrong(r, "tokens_per_block", "a multiple of 16", j);
    }
    if (n != s->n_ranks || json_count(list) != (size_t)n)
        wrong(r, "tokens_per_block", "a list with a number for each count of ranks", list);
}

/* Why a layout cannot run lives as long as the head: the shape points to it. */
static void read_refusals(struct reader *r, const struct json *list, struct node_shape *s)
{
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        const struct json *n = json_first(j), *tp = n ? json_next(n) : NULL, *why = tp ? json_next(tp) : NULL;
        int64_t size = whole(r, n, "refusals", 1, s->n_ranks), width = whole(r, tp, "refusals", 1, size);
        if (!json_text(why) || strlen(json_text(why)) > 200)
            wrong(r, "refusals", "a list of ranks, tp and a reason", j);
        else if (!s->refusals[size][width])
            s->refusals[size][width] = mem_strdup(json_text(why));
    }
}

static void read_times(struct reader *r, const struct json *o, const char *field, int64_t out[COMM_SIZES])
{
    int n = 0;
    for (const struct json *j = json_first(json_find(o, field)); j && n < COMM_SIZES; j = json_next(j))
        out[n++] = whole(r, j, field, 0, INT64_C(1) << 50);
    if (n < COMM_SIZES)
        wrong(r, field, "a list of four whole numbers", json_find(o, field));
}

static void read_comms(struct reader *r, const struct json *list, struct recording_head *h)
{
    int wanted = h->shape.n_sets - h->shape.n_ranks;
    for (const struct json *j = json_first(list); j && h->n_comms < wanted; j = json_next(j)) {
        struct comm_measure *m = &h->comms[h->n_comms++];
        int64_t bytes[COMM_SIZES] = {0};
        m->meet_ns = member(r, j, "meet_ns", 0, INT64_C(1) << 50);
        read_times(r, j, "bytes", bytes);
        read_times(r, j, "oneshot_ns", m->oneshot_ns);
        read_times(r, j, "twoshot_ns", m->twoshot_ns);
        if (json_find(j, "library_bytes"))
            m->library_bytes = (size_t)member(r, j, "library_bytes", 0, (int64_t)COMM_NEVER);
        for (int i = 0; i < COMM_SIZES; i++)
            m->bytes[i] = (size_t)bytes[i];
    }
    if (h->n_comms != wanted || json_count(list) != (size_t)wanted)
        wrong(r, "comms", "a list with what each set of several ranks measured", list);
}

/* A list of whole numbers from min to max. */
static void read_few(struct reader *r, const struct json *root, const char *field, int *const out[], int n, int max)
{
    const struct json *list = json_find(root, field), *j = json_first(list);
    for (int i = 0; i < n; i++, j = j ? json_next(j) : NULL)
        *out[i] = (int)whole(r, j, field, 0, max);
    if (json_count(list) != (size_t)n)
        wrong(r, field, "a short list of whole numbers", list);
}

/* A rank, or the list of those that have the layer's shares. */
static void read_owner(struct reader *r, const struct json *j, struct ffn_setup *f)
{
    int l = f->n_layers++, n = 0;
    if (json_type(j) != JSON_ARRAY) {
        ffn_give(f, l, 0, (int)whole(r, j, "owners", 0, f->n_ranks - 1));
        return;
    }
    for (const struct json *k = json_first(j); k && n < FFN_MAX_SHARES; k = json_next(k))
        ffn_give(f, l, n++, (int)whole(r, k, "owners", 0, f->n_ranks - 1));
    if (n < 2 || json_count(j) != (size_t)n)
        wrong(r, "owners", "a rank, or 2 to 8 ranks that have the shares of a layer", j);
    else
        f->n_more[l] = (uint8_t)(n - 1);
}

/* Not there: every rank has all weights. */
static void read_pool(struct reader *r, const struct json *root, struct recording_head *h)
{
    const struct json *o = json_find(root, "ffn"), *link = json_find(o, "link_gbps"), *list = json_find(o, "owners");
    struct ffn_setup *f = &h->ffn;
    if (!o)
        return;
    f->n_ranks = h->facts.n_ranks;
    f->n_slots = (int)member(r, o, "slots", 0, FFN_MAX_LAYERS);
    f->order = (enum ffn_order)member(r, o, "order", FFN_SHIFTED, FFN_PLAIN);
    f->tile_bytes = (size_t)member(r, o, "tile_bytes", 0, INT64_C(1) << 60);
    h->facts.ffn_layer_bytes = (size_t)member(r, o, "layer_bytes", 0, INT64_C(1) << 60);
    h->facts.ffn_freed_bytes = (size_t)member(r, o, "freed_bytes", 0, INT64_C(1) << 60);
    h->facts.ffn_replica_blocks = (int)member(r, o, "replica_blocks", 0, 1 << 24);
    f->link_gbps = json_number(link);
    if (json_type(link) != JSON_NUMBER || !(f->link_gbps >= 0 && f->link_gbps <= 1e9))
        wrong(r, "link_gbps", "a number from 0 to 1e9", link);
    for (const struct json *j = json_first(list); j && f->n_layers < FFN_MAX_LAYERS; j = json_next(j))
        read_owner(r, j, f);
    if (f->n_layers < 1 || json_count(list) != (size_t)f->n_layers)
        wrong(r, "owners", "a list of the rank of each layer, at most 512", list);
    h->facts.ffn = f;
}

/* [value, how often, value, ...] as a list of n. */
static size_t *read_runs(struct reader *r, const struct json *list, int n)
{
    size_t *out = mem_new_array((size_t)n, sizeof *out);
    int at = 0;
    for (const struct json *j = json_first(list); j && !r->rc; j = json_next(j)) {
        int64_t value = whole(r, j, "bytes", 0, INT64_C(1) << 50);
        j = json_next(j);
        int64_t run = whole(r, j, "bytes", 1, n - at);
        for (int64_t i = 0; i < run && !r->rc; i++)
            out[at++] = (size_t)value;
        if (!j)
            break;
    }
    if (at != n)
        wrong(r, "bytes", "sizes and how many layers have them, one after the other", list);
    return out;
}

static void read_cut(struct reader *r, const struct json *j, struct residency_facts *f)
{
    struct cut_size *c = &f->sizes[f->n_sizes++];
    int *const cut[] = {&c->sp, &c->tp, &c->t};
    read_few(r, j, "cut", cut, 3, MAX_RANKS);
    if (c->sp < 1 || c->tp < 1 || c->t >= c->tp)
        wrong(r, "cut", "sp, tp and the place of a share in tp", json_find(j, "cut"));
    c->layers = read_runs(r, json_find(j, "bytes"), f->n_layers);
}

/* Not there: every rank has all weights, or they are pooled. */
static void read_cuts(struct reader *r, const struct json *root, struct recording_head *h)
{
    const struct json *o = json_find(root, "sharded"), *list = json_find(o, "sizes"), *rate;
    struct residency_facts *f = &h->residency;
    int *const start[] = {&f->start.sp, &f->start.tp, &f->start.pp};
    if (!o)
        return;
    read_few(r, o, "start", start, 3, MAX_RANKS);
    f->n_layers = (int)member(r, o, "layers", 1, 1 << 12);
    f->room = (size_t)member(r, o, "room", 1, INT64_C(1) << 60);
    rate = json_find(o, "load_ns_per_byte");
    f->load_ns_per_byte = json_number(rate);
    if (json_type(rate) != JSON_NUMBER || !(f->load_ns_per_byte >= 0 && f->load_ns_per_byte <= 1e9))
        wrong(r, "load_ns_per_byte", "a number from 0 to 1e9", rate);
    if (f->start.sp < 1 || f->start.tp < 1 || f->start.pp < 1 || f->start.pp > f->n_layers ||
        layout_size(f->start) > h->facts.n_ranks)
        wrong(r, "start", "sp, tp and pp of a group of the node", json_find(o, "start"));
    if (r->rc)
        return;
    f->sizes = mem_new_array(json_count(list) + 1, sizeof *f->sizes);
    for (const struct json *j = json_first(list); j && !r->rc; j = json_next(j))
        read_cut(r, j, f);
    h->facts.residency = f;
}

static void read_node(struct reader *r, const struct json *root, struct recording_head *h)
{
    struct node_facts *f = &h->facts;
    int *const heads[] = {&f->heads.n_q, &f->heads.n_kv, &f->heads.head_dim}, *const start[] = {&h->start.sp,
                                                                                                &h->start.tp,
                                                                                                &h->start.pp};
    f->n_ranks = h->shape.n_ranks = (int)member(r, root, "ranks", 1, MAX_RANKS);
    h->block_size = f->tokens_per_block = (int)member(r, root, "block_size", 16, 256);
    if (h->block_size % 16)
        wrong(r, "block_size", "a multiple of 16", json_find(root, "block_size"));
    f->kv_blocks = (int)member(r, root, "kv_blocks", 1, 1 << 24);
    if (json_find(root, "host_kv_blocks")) /* the version before had no such memory */
        f->host_kv_blocks = (int)member(r, root, "host_kv_blocks", 0, 1 << 24);
    f->kv_bytes = (size_t)member(r, root, "kv_bytes", 0, INT64_C(1) << 60);
    f->memory_bytes = (size_t)member(r, root, "memory_bytes", 0, INT64_C(1) << 60);
    f->weight_bytes = (size_t)member(r, root, "weight_bytes", 0, INT64_C(1) << 60);
    text_member(r, root, "model_name", f->model, sizeof f->model);
    text_member(r, root, "device", f->device, sizeof f->device);
    text_member(r, root, "version", h->version, sizeof h->version);
    read_few(r, root, "heads", heads, 3, 1 << 16);
    bool staged = json_count(json_find(root, "start")) == 3; /* the version before had no stages */
    read_few(r, root, "start", start, staged ? 3 : 2, MAX_RANKS);
    h->start.pp = !h->start.sp ? 0 : staged ? h->start.pp : 1;
    if (!h->start.sp != !h->start.tp || (h->start.sp && h->start.pp < 1) || layout_size(h->start) > f->n_ranks)
        wrong(r, "start", "sp, tp and pp of a group of the node", json_find(root, "start"));
    read_limits(r, json_find(root, "limits"), &f->limits);
    read_sets(r, json_find(root, "sets"), &h->shape);
    read_blocks(r, json_find(root, "tokens_per_block"), &h->shape);
    read_refusals(r, json_find(root, "refusals"), &h->shape);
    read_comms(r, json_find(root, "comms"), h);
    read_pool(r, root, h);
    read_cuts(r, root, h);
    f->shape = &h->shape;
}

static bool flag(struct reader *r, const struct json *o, const char *field)
{
    const struct json *j = json_find(o, field);
    if (json_type(j) != JSON_BOOL)
        wrong(r, field, "true or false", j);
    return json_true(j);
}

static void read_sources(struct reader *r, const struct json *root, struct recording_head *h)
{
    const struct json *list = json_find(root, "drafts");
    if (json_type(list) != JSON_ARRAY || json_count(list) > MOST_SOURCES) {
        wrong(r, "drafts", "a list of up to 4 sources of draft tokens", list);
        return;
    }
    for (const struct json *j = json_first(list); j && !r->rc; j = json_next(j)) {
        struct recorded_source *s = &h->sources[h->n_sources++];
        text_member(r, j, "name", s->name, sizeof s->name);
        s->by_name = flag(r, j, "by_name");
        s->keeps = flag(r, j, "keeps");
        s->timed = json_find(j, "timed") && flag(r, j, "timed");
        h->timed_drafts |= s->timed;
    }
}

/* Not there: it begins with the server. */
static void read_window(struct reader *r, const struct json *root, struct recording_head *h)
{
    const struct json *o = json_find(root, "window");
    if (!o)
        return;
    h->is_window = true;
    h->from_ns = member(r, o, "from_ns", 0, RECORDING_MAX_NS);
    h->first_order = member(r, o, "order", 0, RECORDING_MAX_ORDER);
}

static void read_policy(struct reader *r, const struct json *root, struct recording_head *h)
{
    const struct json *p = json_find(root, "policy");
    text_member(r, p, "name", h->policy, sizeof h->policy);
    text_member(r, p, "sha256", h->sha256, sizeof h->sha256);
    h->params = object_member(r, p, "params");
}

int recording_read_head(struct recording_head *h, const struct lines *l, struct err *e)
{
    static const struct json_limits limits = {.bytes = LINES_MAX_BYTES, .depth = 8, .nodes = 1 << 15};
    struct err why = {0};
    struct json *root = json_parse(l->line.data, l->line.len, &limits, &why);
    if (!root)
        return err_set(e, E_INPUT, "%s:%llu: %.200s", l->name, (unsigned long long)l->number, why.text);
    struct reader r = {.lines = l, .e = e};
    int64_t format = 0;
    if (!json_i64(json_find(root, "moonshift_recording"), &format) || format < OLDEST_FORMAT ||
        format > RECORDING_FORMAT) {
        r.rc = err_set(e, E_INPUT, "%s:%llu: moonshift_recording: this program reads formats %d to %d, not %lld",
                       l->name, (unsigned long long)l->number, OLDEST_FORMAT, RECORDING_FORMAT, (long long)format);
    } else {
        h->clock_ns = member(&r, root, "clock_ns", 1, INT64_C(1) << 61);
        h->began = member(&r, root, "began", 0, INT64_C(1) << 40);
        read_node(&r, root, h);
        read_policy(&r, root, h);
        read_window(&r, root, h);
        if (format > OLDEST_FORMAT) /* nothing was drafted while a server recorded */
            read_sources(&r, root, h);
        h->config = object_member(&r, root, "model");
    }
    json_free(root);
    return r.rc;
}

void recording_free_head(struct recording_head *h)
{
    for (int n = 1; n <= MAX_RANKS; n++)
        for (int tp = 1; tp <= MAX_RANKS; tp++)
            mem_free((char *)(uintptr_t)h->shape.refusals[n][tp]);
    for (int i = 0; i < h->residency.n_sizes; i++)
        mem_free(h->residency.sizes[i].layers);
    mem_free(h->residency.sizes);
    mem_free(h->params);
    mem_free(h->config);
}
