#include "kernels/sim/machine.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "kernels/sim/cost.h"
#include "kernels/sim/describe.h"
#include "kernels/sim/stages.h"

enum { MAX_FILE = 4 << 20, MAX_TABLE_FILE = 16 << 20 };

/* ---- hardware: every constant is {"v": number, "origin": "text"} */

struct constant {
    const char *name;
    size_t at;
    int n; /* 1, or SIM_GROUPS values for groups of 2, 4 and 8 */
    double min, max;
};

#define AT(field) offsetof(struct sim_hardware, field)
static const struct constant constants[] = {
    {"devices", AT(devices), 1, 1, 64},
    {"memory_bytes", AT(memory_bytes), 1, 1 << 20, 1e15},
    {"memory_bytes_per_s", AT(memory_rate), 1, 1e6, 1e16},
    {"reserve_bytes", AT(reserve_bytes), 1, 0, 1e15},
    {"bf16_flop_per_s", AT(bf16_peak), 1, 1e9, 1e18},
    {"bf16_share", AT(bf16_share), 1, 0.01, 1},
    {"fp8_flop_per_s", AT(fp8_peak), 1, 0, 1e18},
    {"fp8_share", AT(fp8_share), 1, 0.01, 1},
    {"gemm_memory_share", AT(gemm_memory_share), 1, 0.01, 1},
    {"gemm_fixed_ns", AT(gemm_fixed), 1, 0, 1e9},
    {"elementwise_share", AT(elementwise_share), 1, 0.01, 1},
    {"elementwise_fixed_ns", AT(elementwise_fixed), 1, 0, 1e9},
    {"prefill_attention_share", AT(prefill_share), 1, 0.01, 1},
    {"kv_read_share", AT(kv_read_share), 1, 0.01, 1},
    {"attention_fixed_ns", AT(attention_fixed), 1, 0, 1e9},
    {"all_reduce_fixed_ns", AT(reduce_alpha), 1, 0, 1e9},
    {"all_reduce_bytes_per_s", AT(reduce_rate), SIM_GROUPS, 1e6, 1e15},
    {"small_all_reduce_bytes", AT(small_bytes), 1, 0, 1e12},
    {"small_all_reduce_fixed_ns", AT(small_alpha), SIM_GROUPS, 0, 1e9},
    {"small_all_reduce_bytes_per_s", AT(small_rate), SIM_GROUPS, 1e6, 1e15},
    {"all_to_all_fixed_ns", AT(exchange_alpha), 1, 0, 1e9},
    {"all_to_all_bytes_per_s", AT(exchange_rate), 1, 1e6, 1e15},
    {"link_bytes_per_s", AT(link_rate), 1, 1e6, 1e15},
    {"link_share", AT(link_share), 1, 0.01, 1},
    {"host_link_bytes_per_s", AT(host_link_rate), 1, 1e6, 1e15},
    {"switch_ns", AT(switch_fixed), 1, 0, 1e13},
    {"host_step_ns", AT(host_step), 1, 0, 1e10},
    {"host_ranks_ns", AT(host_ranks), 1, 0, 1e10},
    {"host_sequence_ns", AT(host_sequence), 1, 0, 1e9},
    {"host_prefill_row_ns", AT(host_prefill_row), 1, 0, 1e9},
    {"host_overlaps", AT(host_overlaps), 1, 0, 1},
    {"front_ns", AT(front), 1, 0, 1e12},
    {"sampler_fixed_ns", AT(sampler), 1, 0, 1e9},
    {"graph_rows", AT(graph_rows), 1, 0, 1e9},
    {"eager_layer_ns", AT(eager_layer), 1, 0, 1e9},
    {"eager_exchange_ns", AT(eager_exchange), 1, 0, 1e9},
    {"head_on_base", AT(head_on_base), 1, 0, 1},
};
#undef AT

static bool in_range(const struct constant *c, const struct json *v)
{
    return json_type(v) == JSON_NUMBER && json_number(v) >= c->min && json_number(v) <= c->max;
}

static int read_constant(struct sim_hardware *h, const struct constant *c, const struct json *o, const char *name,
                         struct err *e)
{
    const struct json *v = json_find(o, "v");
    double *to = (double *)((char *)h + c->at);
    if (!json_text(json_find(o, "origin")) || json_count(o) != 2)
        return err_set(e, E_INPUT, "%s: \"%s\" must be {\"v\": ..., \"origin\": \"...\"} and nothing else", name,
                       c->name);
    if (c->n == 1 && !in_range(c, v))
        return err_set(e, E_INPUT, "%s: \"%s\": \"v\" must be a number from %g to %g", name, c->name, c->min, c->max);
    if (c->n == 1) {
        *to = json_number(v);
        return 0;
    }
    int n = 0;
    for (const struct json *x = json_type(v) == JSON_ARRAY ? json_first(v) : NULL; x && n < c->n;
         x = json_next(x), n++) {
        if (!in_range(c, x))
            break;
        to[n] = json_number(x);
    }
    if (n != c->n || json_count(v) != (size_t)n)
        return err_set(e, E_INPUT, "%s: \"%s\": \"v\" must list %d numbers from %g to %g, for 2, 4 and 8 devices", name,
                       c->name, c->n, c->min, c->max);
    return 0;
}

static int known_constant(const char *key)
{
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (!strcmp(constants[i].name, key))
            return 1;
    return !strcmp(key, "name") || !strcmp(key, "doc") || !strcmp(key, "tables") || !strcmp(key, "residuals") ||
           !strcmp(key, "twin");
}

static int read_hardware(struct sim_machine *m, const struct json *o, const char *name, struct err *e)
{
    if (json_type(o) != JSON_OBJECT)
        return err_set(e, E_INPUT, "%s must be an object, not %s", name, json_type_name(o));
    for (const struct json *f = json_first(o); f; f = json_next(f))
        if (!known_constant(json_key(f)))
            return err_set(e, E_INPUT, "%s: unknown field \"%.60s\"", name, json_key(f));
    const char *text = json_text(json_find(o, "name"));
    if (!text || strlen(text) >= sizeof m->name)
        return err_set(e, E_INPUT, "%s: \"name\" must be a string of at most %zu bytes", name, sizeof m->name - 1);
    if (json_find(o, "doc") && !json_text(json_find(o, "doc")))
        return err_set(e, E_INPUT, "%s: \"doc\" must be a string", name);
    memcpy(m->name, text, strlen(text) + 1);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        TRY(read_constant(&m->hardware, &constants[i], json_find(o, constants[i].name), name, e));
    if (m->hardware.devices != (double)(int)m->hardware.devices)
        return err_set(e, E_INPUT, "%s: \"devices\" must be a whole number", name);
    return 0;
}

/* Both are optional. */
static int read_doubts(struct sim_machine *m, const struct json *o, const char *name, struct err *e)
{
    const struct json *twin = json_find(o, "twin"), *residuals = json_find(o, "residuals");
    const char *text = json_text(twin);
    if (twin && (!text || !*text || strlen(text) >= sizeof m->twin || !strcmp(text, m->name)))
        return err_set(e, E_INPUT, "%s: \"twin\" must name another description of the same machine", name);
    if (text)
        memcpy(m->twin, text, strlen(text) + 1);
    if (!residuals)
        return 0;
    m->residuals = mem_new(sizeof *m->residuals);
    return sim_residuals_read(m->residuals, residuals, name, e);
}

/* "tables" names a file beside the description. */
static int read_tables(struct sim_machine *m, const char *file, const char *beside, struct err *e)
{
    const char *slash = strrchr(beside, '/');
    struct buf path = {0}, text = {0};
    static const struct json_limits limits = {.bytes = MAX_TABLE_FILE, .depth = 8, .nodes = 2000000};
    buf_printf(&path, "%.*s%s", slash ? (int)(slash + 1 - beside) : 0, beside, file);
    int rc = file_read(&text, path.data, MAX_TABLE_FILE, e);
    struct json *root = rc ? NULL : json_parse(text.data ? text.data : "", text.len, &limits, e);
    if (root)
        rc = sim_tables_read(&m->tables, root, path.data, e);
    else if (!rc)
        rc = err_prefix(e, E_INPUT, "%s", path.data);
    json_free(root);
    buf_free(&text);
    buf_free(&path);
    return rc;
}

int sim_hardware_read(struct sim_machine *m, const char *text, size_t n, const char *name, struct err *e)
{
    static const struct json_limits limits = {.bytes = MAX_FILE, .depth = 8, .nodes = 10000};
    struct json *root = json_parse(text, n, &limits, e);
    if (!root)
        return err_prefix(e, E_INPUT, "%s", name);
    int rc = read_hardware(m, root, name, e);
    if (!rc)
        rc = read_doubts(m, root, name, e);
    const struct json *tables = json_find(root, "tables");
    const char *file = json_text(tables);
    if (!rc && tables && (!file || !*file || strchr(file, '/')))
        rc = err_set(e, E_INPUT, "%s: \"tables\" must name a file beside it", name);
    if (!rc && file)
        rc = read_tables(m, file, name, e);
    json_free(root);
    return rc;
}

/* ---- model: a config.json of Hugging Face with a "simulation" object; the engine reads the former, this file what a
 * cost needs */

struct whole {
    const char *name;
    size_t at;
    int min, max;
};

#define AT(field) offsetof(struct sim_model, field)
static const struct whole sizes[] = {
    {"num_hidden_layers", AT(n_layers), 1, 1024},
    {"hidden_size", AT(hidden), 1, 1 << 16},
    {"num_attention_heads", AT(n_heads), 1, 1024},
    {"num_key_value_heads", AT(n_kv_heads), 1, 1024},
    {"head_dim", AT(head_dim), 1, 256},
    {"intermediate_size", AT(intermediate), 1, 1 << 20},
    {"vocab_size", AT(vocab), 1, 1 << 22},
};
static const struct whole bits[] = {
    {"linear_bits", AT(linear_bits), 8, 16},
    {"head_bits", AT(head_bits), 8, 16},
    {"kv_bits", AT(kv_bits), 8, 16},
};
#undef AT

static int read_whole(struct sim_model *m, const struct whole *w, const struct json *o, const char *name, struct err *e)
{
    int64_t v;
    if (!json_i64(json_find(o, w->name), &v) || v < w->min || v > w->max)
        return err_set(e, E_INPUT, "%s: \"%s\" must be a whole number from %d to %d", name, w->name, w->min, w->max);
    *(int *)((char *)m + w->at) = (int)v;
    return 0;
}

static bool listed(const char *const *list, const char *key)
{
    for (; *list; list++)
        if (!strcmp(*list, key))
            return true;
    return false;
}

static bool is_size(const char *key)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, key))
            return true;
    return false;
}

static int read_bits(struct sim_model *m, const struct json *o, const char *name, struct err *e)
{
    static const char *const known[] = {"linear_bits", "head_bits", "kv_bits", "origin", NULL};
    for (const struct json *f = json_first(o); f; f = json_next(f))
        if (!listed(known, json_key(f)))
            return err_set(e, E_INPUT, "%s: \"simulation\": unknown field \"%.60s\"", name, json_key(f));
    if (!json_text(json_find(o, "origin")))
        return err_set(e, E_INPUT, "%s: \"simulation\" must say \"origin\": where the sizes come from", name);
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        TRY(read_whole(m, &bits[i], o, name, e));
    if (m->linear_bits % 8 || m->head_bits % 8 || m->kv_bits % 8)
        return err_set(e, E_UNSUPPORTED, "%s: \"simulation\": 8 and 16 bits are simulated", name);
    return 0;
}

/* num_key_value_layers, as models/load/config.c reads it. */
static int read_swiftkv(struct sim_model *m, const struct json *o, const char *arch, const char *name, struct err *e)
{
    const struct json *n = json_find(o, "num_key_value_layers");
    int64_t v = m->n_layers;
    if (n && (!json_i64(n, &v) || v < 1 || v > m->n_layers))
        return err_set(e, E_INPUT, "%s: \"num_key_value_layers\" must be a whole number from 1 to %d", name,
                       m->n_layers);
    if (v < m->n_layers && (!arch || strcmp(arch, "LlamaSwiftKVForCausalLM") != 0))
        return err_set(e, E_UNSUPPORTED, "%s: \"num_key_value_layers\" is for a LlamaSwiftKVForCausalLM", name);
    m->kv_layers = v < m->n_layers ? (int)v : 0;
    return 0;
}

static int read_model(struct sim_model *m, const struct json *o, const char *name, struct err *e)
{
    static const char *const known[] = {"architectures",
                                        "model_type",
                                        "max_position_embeddings",
                                        "rms_norm_eps",
                                        "rope_theta",
                                        "tie_word_embeddings",
                                        "hidden_act",
                                        "_name_or_path",
                                        "simulation",
                                        "num_key_value_layers",
                                        NULL};
    if (json_type(o) != JSON_OBJECT)
        return err_set(e, E_INPUT, "%s must be an object, not %s", name, json_type_name(o));
    for (const struct json *f = json_first(o); f; f = json_next(f))
        if (!listed(known, json_key(f)) && !is_size(json_key(f)))
            return err_set(e, E_UNSUPPORTED,
                           "%s: the simulation does not know \"%.60s\" (dense models without windows are simulated)",
                           name, json_key(f));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        TRY(read_whole(m, &sizes[i], o, name, e));
    if (m->n_heads % m->n_kv_heads)
        return err_set(e, E_INPUT, "%s: %d heads cannot share %d kv heads evenly", name, m->n_heads, m->n_kv_heads);
    const struct json *family = json_find(o, "architectures");
    const char *arch = json_type(family) == JSON_ARRAY ? json_text(json_first(family)) : NULL;
    m->qk_norm = arch && !strcmp(arch, "Qwen3ForCausalLM");
    TRY(read_swiftkv(m, o, arch, name, e));
    m->tied = json_true(json_find(o, "tie_word_embeddings"));
    if (json_type(json_find(o, "simulation")) != JSON_OBJECT)
        return err_set(e, E_INPUT, "%s: \"simulation\" must be an object: linear_bits, head_bits, kv_bits, origin",
                       name);
    return read_bits(m, json_find(o, "simulation"), name, e);
}

int sim_model_read(struct sim_machine *m, const char *text, size_t n, const char *name, struct err *e)
{
    static const struct json_limits limits = {.bytes = 1 << 20, .depth = 8, .nodes = 1000};
    struct json *root = json_parse(text, n, &limits, e);
    if (!root)
        return err_prefix(e, E_INPUT, "%s", name);
    int rc = read_model(&m->model, root, name, e);
    json_free(root);
    return rc;
}

/* ---- both */

typedef int reader(struct sim_machine *m, const char *text, size_t n, const char *name, struct err *e);

static int read_file(struct sim_machine *m, const char *path, reader *read, struct err *e)
{
    struct buf text = {0};
    int rc = file_read(&text, path, MAX_FILE, e);
    if (!rc)
        rc = read(m, text.data ? text.data : "", text.len, path, e);
    buf_free(&text);
    return rc;
}

int sim_machine_open(struct sim_machine **out, const char *hardware_path, const char *model_path, struct err *e)
{
    struct sim_machine *m = mem_new(sizeof *m);
    m->config_path = mem_strdup(model_path);
    m->link_scale = 1;
    int rc = read_file(m, hardware_path, sim_hardware_read, e);
    if (!rc)
        rc = read_file(m, model_path, sim_model_read, e);
    if (!rc && m->model.linear_bits == 8 && m->hardware.fp8_peak == 0)
        rc =
            err_set(e, E_UNSUPPORTED, "%s has no FP8 arithmetic: take a model with \"linear_bits\": 16", hardware_path);
    if (rc) {
        sim_machine_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void sim_machine_close(struct sim_machine *m)
{
    if (!m)
        return;
    sim_tables_free(&m->tables);
    mem_free(m->residuals);
    mem_free(m->config_path);
    mem_free(m);
}

void sim_machine_scale_links(struct sim_machine *m, double times)
{
    m->link_scale = times;
}

void sim_machine_draw(struct sim_machine *m, uint64_t seed)
{
    m->drawn = m->residuals != NULL;
    m->seed = seed;
}

const char *sim_machine_twin(const struct sim_machine *m)
{
    return *m->twin ? m->twin : NULL;
}

void sim_machine_doubts(const struct sim_machine *m, struct buf *out)
{
    struct buf lack = {0};
    if (m->residuals)
        sim_residuals_lack(m->residuals, &lack);
    if (!m->residuals)
        buf_printf(out, "no band of kernels, as %s has no residuals", m->name);
    else if (lack.len)
        buf_printf(out, "kernels by the residuals of %s (none of %s)", m->name, lack.data);
    else
        buf_printf(out, "kernels by the residuals of %s", m->name);
    buf_free(&lack);
}

int sim_machine_check_twin(const struct sim_machine *m, const struct sim_machine *twin, struct err *e)
{
    const struct sim_hardware *a = &m->hardware, *b = &twin->hardware;
    if (a->devices != b->devices || a->memory_bytes != b->memory_bytes || a->reserve_bytes != b->reserve_bytes)
        return err_set(e, E_INPUT, "%s is no twin of %s: devices, memory_bytes or reserve_bytes differ", twin->name,
                       m->name);
    return 0;
}

const char *sim_machine_config(const struct sim_machine *m)
{
    return m->config_path;
}

int sim_machine_ranks(const struct sim_machine *m)
{
    return (int)m->hardware.devices;
}

int sim_machine_pool(const struct sim_machine *m, const struct sim_step *step,
                     struct sim_pool_layer layers[FFN_MAX_LAYERS])
{
    return cost_pool(m, step->layout, step->weights, &step->size, layers);
}

void sim_machine_facts(const struct sim_machine *m, struct sim_facts *out)
{
    const struct sim_model *c = &m->model;
    *out = (struct sim_facts){.n_layers = c->n_layers,
                              .heads = {.n_q = c->n_heads, .n_kv = c->n_kv_heads, .head_dim = c->head_dim},
                              .memory = m->hardware.memory_bytes,
                              .reserve = m->hardware.reserve_bytes,
                              .layers = cost_layers_bytes(c)};
}

double sim_machine_weight_bytes(const struct sim_machine *m, struct sim_weights w)
{
    return cost_weight_bytes(&m->model, w);
}

double sim_machine_token_bytes(const struct sim_machine *m, struct layout l)
{
    const struct sim_model *c = &m->model;
    const struct heads heads = {.n_q = c->n_heads, .n_kv = c->n_kv_heads, .head_dim = c->head_dim};
    return 2.0 * head_max_kv(&heads, l.sp * l.tp) * c->head_dim * (c->kv_bits / 8) * stages_share(c->n_layers, l.pp, 0);
}

int sim_machine_layers(const struct sim_machine *m)
{
    return m->model.n_layers;
}

int64_t sim_machine_front_ns(const struct sim_machine *m)
{
    return cost_front(m);
}

static int check_step(const struct sim_machine *m, const struct sim_step *step, struct err *e)
{
    struct layout l = step->layout;
    if (l.pp > m->model.n_layers)
        return err_set(e, E_INPUT, "%d layers cannot be cut into %d stages", m->model.n_layers, l.pp);
    if (l.pp > 1 && step->weights.pool)
        return err_set(e, E_UNSUPPORTED, "pooled weights are not simulated in stages: take pp 1");
    if (layout_size(l) > sim_machine_ranks(m) || step->size.rows < 1)
        return err_set(e, E_INPUT, "a step of {sp=%d, tp=%d, pp=%d} over %d rows does not fit %d devices", l.sp, l.tp,
                       l.pp, step->size.rows, sim_machine_ranks(m));
    return 0;
}

int sim_machine_step(const struct sim_machine *m, const struct sim_step *step, const char *part, double *ns,
                     struct err *e)
{
    static const char *const names[] = {"linear", "attention", "reduce", "exchange", "elementwise", "head",  "launch",
                                        "wait",   "service",   "send",   "bubble",   "host",        "total", "ffn"};
    enum { N = sizeof names / sizeof *names };
    TRY(check_step(m, step, e));
    struct step_cost c = cost_parts(m, step->layout, step->weights, &step->size);
    const double values[N] = {c.linear, c.attention, c.reduce, c.exchange, c.elementwise, c.head,  c.launch,
                              c.wait,   c.service,   c.send,   c.bubble,   c.host,        c.total, c.ffn};
    for (int i = 0; i < N; i++)
        if (!strcmp(part, names[i])) {
            *ns = values[i];
            return 0;
        }
    return err_set(e, E_NOTFOUND,
                   "a step has no part '%.40s' (there are: linear, attention, reduce, exchange, elementwise, head, "
                   "launch, wait, service, send, bubble, host, total, ffn)",
                   part);
}
