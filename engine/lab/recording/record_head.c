/* The first line of a recording: what the node is, so that the engine can be built again around it. */
#include <inttypes.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/exec/comm.h"
#include "engine/lab/recording/record_inner.h"

static void put_text(struct buf *out, const char *name, const char *text)
{
    buf_printf(out, "\"%s\":", name);
    buf_put_json(out, text, strlen(text));
    buf_putc(out, ',');
}

static void put_limits(struct buf *out, const struct limits *l)
{
    buf_printf(
        out,
        "\"limits\":{\"max_num_seqs\":%d,\"max_num_batched_tokens\":%d,\"max_model_len\":%d,\"max_num_queued_reqs\":%d,"
        "\"max_num_queued_tokens\":%" PRId64 ",\"prefix_caching\":%s,\"starvation_ns\":%" PRId64 ",\"park_ns\":%" PRId64
        ",\"probation_ns\":%" PRId64 "},",
        l->max_num_seqs, l->max_num_batched_tokens, l->max_model_len, l->max_num_queued_reqs, l->max_num_queued_tokens,
        l->prefix_caching ? "true" : "false", l->starvation_ns, l->park_ns, l->probation_ns);
}

/* Rank sets as hexadecimal masks, tokens of a block by ranks, and which layouts cannot run. */
static void put_shape(struct buf *out, const struct node_shape *s)
{
    const char *comma = "";
    buf_puts(out, "\"sets\":[");
    for (int i = 0; i < s->n_sets; i++)
        buf_printf(out, "%s\"%" PRIx64 "\"", i ? "," : "", s->sets[i]);
    buf_puts(out, "],\"tokens_per_block\":[");
    for (int i = 1; i <= s->n_ranks; i++)
        buf_printf(out, "%s%d", i > 1 ? "," : "", s->tokens_per_block[i]);
    buf_puts(out, "],\"refusals\":[");
    for (int n = 1; n <= s->n_ranks; n++)
        for (int tp = 1; tp <= n; tp++)
            if (n % tp == 0 && s->refusals[n][tp]) {
                buf_printf(out, "%s[%d,%d,", comma, n, tp);
                buf_put_json(out, s->refusals[n][tp], strlen(s->refusals[n][tp]));
                buf_putc(out, ']');
                comma = ",";
            }
    buf_puts(out, "],");
}

/* How FFN weights are pooled, where they are. */
static void put_pool(struct buf *out, const struct node_facts *n)
{
    const struct ffn_setup *f = n->ffn;
    if (!f)
        return;
    buf_printf(out,
               "\"ffn\":{\"slots\":%d,\"order\":%d,\"tile_bytes\":%zu,\"link_gbps\":%.17g,\"layer_bytes\":%zu,"
               "\"freed_bytes\":%zu,\"replica_blocks\":%d,\"owners\":",
               f->n_slots, (int)f->order, f->tile_bytes, f->link_gbps, n->ffn_layer_bytes, n->ffn_freed_bytes,
               n->ffn_replica_blocks);
    ffn_put_owners(f, out);
    buf_puts(out, "},");
}

/* A list as [value, how often, value, ...]. */
static void put_runs(struct buf *out, const size_t *v, int n)
{
    buf_putc(out, '[');
    for (int i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && v[i + run] == v[i]; run++)
            ;
        buf_printf(out, "%s%zu,%d", i ? "," : "", v[i], run);
    }
    buf_putc(out, ']');
}

/* How the weights are cut, where they are. */
static void put_cuts(struct buf *out, const struct residency_facts *f)
{
    if (!f)
        return;
    buf_printf(out,
               "\"sharded\":{\"start\":[%d,%d,%d],\"room\":%zu,\"load_ns_per_byte\":%.17g,\"layers\":%d,\"sizes\":[",
               f->start.sp, f->start.tp, f->start.pp, f->room, f->load_ns_per_byte, f->n_layers);
    for (int i = 0; i < f->n_sizes; i++) {
        const struct cut_size *c = &f->sizes[i];
        buf_printf(out, "%s{\"cut\":[%d,%d,%d],\"bytes\":", i ? "," : "", c->sp, c->tp, c->t);
        put_runs(out, c->layers, f->n_layers);
        buf_putc(out, '}');
    }
    buf_puts(out, "]},");
}

static void put_times(struct buf *out, const char *name, const int64_t ns[COMM_SIZES])
{
    buf_printf(out, ",\"%s\":[", name);
    for (int i = 0; i < COMM_SIZES; i++)
        buf_printf(out, "%s%" PRId64, i ? "," : "", ns[i]);
    buf_putc(out, ']');
}

static void put_comms(struct buf *out, const struct comm_pool *p)
{
    buf_puts(out, "\"comms\":[");
    for (int i = 0; p && i < comm_pool_count(p); i++) {
        const struct comm_measure *m = comm_measured(comm_find(p, comm_pool_mask(p, i)));
        int64_t bytes[COMM_SIZES];
        for (int k = 0; k < COMM_SIZES; k++)
            bytes[k] = (int64_t)m->bytes[k];
        buf_printf(out, "%s{\"meet_ns\":%" PRId64, i ? "," : "", m->meet_ns);
        put_times(out, "bytes", bytes);
        put_times(out, "oneshot_ns", m->oneshot_ns);
        put_times(out, "twoshot_ns", m->twoshot_ns);
        if (m->library_bytes)
            buf_printf(out, ",\"library_bytes\":%zu", m->library_bytes);
        buf_putc(out, '}');
    }
    buf_puts(out, "],");
}

/* As a Hugging Face config.json, which is what simulations read. */
static void put_model(struct buf *out, const struct model_config *c)
{
    buf_puts(out, "\"model\":{");
    if (c->kv_layers)
        buf_printf(out, "\"num_key_value_layers\":%d,", c->kv_layers);
    buf_printf(out,
               "\"architectures\":[\"%s\"],\"num_hidden_layers\":%d,\"hidden_size\":%d,\"num_attention_heads\":%d,"
               "\"num_key_value_heads\":%d,\"head_dim\":%d,\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_"
               "embeddings\":%d,"
               "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":%s},",
               c->kv_layers ? "LlamaSwiftKVForCausalLM" : "LlamaForCausalLM", c->n_layers, c->hidden, c->n_heads,
               c->n_kv_heads, c->head_dim, c->intermediate, c->vocab, c->context, c->tied ? "true" : "false");
}

void record_params(struct buf *out, const struct policy *p)
{
    struct buf all = {0};
    const char *comma = "";
    if (p->ops->params_get)
        p->ops->params_get(p->ctx, &all);
    struct json *root = all.len ? json_parse(all.data, all.len, NULL, NULL) : NULL;
    buf_putc(out, '{');
    for (const struct json *j = json_first(root); j; j = json_next(j)) {
        buf_puts(out, comma);
        buf_put_json(out, json_key(j), strlen(json_key(j)));
        buf_putc(out, ':');
        json_write(out, json_find(j, "value"), NULL);
        comma = ",";
    }
    buf_putc(out, '}');
    json_free(root);
    buf_free(&all);
}

/* The sources of draft tokens, in their places; none: nothing is drafted. */
static void put_sources(struct buf *out, const struct draft_sources *s)
{
    buf_puts(out, "\"drafts\":[");
    for (int i = 0; s && i < s->n; i++) {
        buf_puts(out, i ? ",{" : "{");
        put_text(out, "name", s->items[i].name);
        buf_printf(out, "\"by_name\":%s,\"keeps\":%s%s}", s->items[i].by_name ? "true" : "false",
                   s->items[i].evict ? "true" : "false", s->items[i].timed ? ",\"timed\":true" : "");
    }
    buf_puts(out, "],");
}

void record_head_node(struct buf *out, const struct recorder_start *s, const struct engine *engine, int64_t base_ns)
{
    const struct node_facts *n = s->node;
    buf_printf(out, "{\"moonshift_recording\":%d,\"began\":%" PRId64 ",\"clock_ns\":%" PRId64 ",", RECORD_FORMAT,
               clock_wall_seconds(), base_ns);
    put_text(out, "version", s->version);
    put_text(out, "model_name", n->model);
    put_text(out, "device", n->device);
    buf_printf(out,
               "\"ranks\":%d,\"block_size\":%d,\"kv_blocks\":%d,\"host_kv_blocks\":%d,\"kv_bytes\":%zu,\"memory_"
               "bytes\":%zu,\"weight_bytes\":"
               "%zu,\"heads\":[%d,%d,%d],"
               "\"start\":[%d,%d,%d],",
               n->n_ranks, s->block_size, n->kv_blocks, n->host_kv_blocks, n->kv_bytes, n->memory_bytes,
               n->weight_bytes, n->heads.n_q, n->heads.n_kv, n->heads.head_dim, s->start.sp, s->start.tp, s->start.pp);
    put_limits(out, &n->limits);
    put_shape(out, n->shape);
    put_comms(out, n->comms);
    put_pool(out, n);
    put_cuts(out, n->residency);
    put_model(out, s->model);
    put_sources(out, engine_world(engine)->drafts);
}

void record_head_policy(struct buf *out, const struct policy *p)
{
    buf_puts(out, "\"policy\":{");
    put_text(out, "name", p->name);
    put_text(out, "sha256", p->sha256);
    buf_puts(out, "\"params\":");
    record_params(out, p);
    buf_puts(out, "}}\n");
}
