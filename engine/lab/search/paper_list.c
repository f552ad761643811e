#include "engine/lab/search/paper_list.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/search/formula.h"
#include "engine/base/places.h"
#include "kernels/sim/machine.h"

enum { MAX_LIST = 4 << 20 };

static char *own(struct paper_list *l, char *text)
{
    l->owned = mem_resize(l->owned, (size_t)l->n_owned + 1, sizeof *l->owned);
    l->owned[l->n_owned++] = text;
    return text;
}

/* ---- runs: the words of their command lines */

/* A copy of text with {here} and {hardware} replaced. */
static char *filled(struct paper_list *l, const char *text, const char *here, const char *hardware)
{
    struct buf b = {0};
    buf_puts(&b, "");
    while (*text) {
        if (!strncmp(text, "{here}", 6)) {
            buf_puts(&b, here);
            text += 6;
        } else if (!strncmp(text, "{hardware}", 10)) {
            buf_puts(&b, hardware);
            text += 10;
        } else {
            buf_putc(&b, *text++);
        }
    }
    return own(l, buf_take(&b));
}

static void add_words(struct job *x, char *text)
{
    for (char *at = text; *at;) {
        at += strspn(at, " \n");
        size_t n = strcspn(at, " \n");
        if (n == 0)
            break;
        x->args = mem_resize(x->args, (size_t)x->n_args + 1, sizeof *x->args);
        x->args[x->n_args++] = at;
        at += n;
        if (*at)
            *at++ = 0;
    }
}

struct source {
    const char *path, *here, *hardware, *settings;
};

static void make_job(struct paper_list *l, struct paper_run *r, const struct source *s)
{
    const struct json *run = json_find(json_find(l->root, "runs"), r->name);
    const char *policy = json_text(json_find(json_find(run, "policies"), r->policy));
    struct jobs *j = &l->jobs;
    j->items = mem_resize(j->items, (size_t)j->n + 1, sizeof *j->items);
    struct job *x = &j->items[j->n];
    *x = (struct job){0};
    add_words(x, filled(l, "simulate", s->here, s->hardware));
    add_words(x, filled(l, s->settings, s->here, s->hardware));
    add_words(x, filled(l, json_text(json_find(run, "args")), s->here, s->hardware));
    add_words(x, filled(l, "--policy", s->here, s->hardware));
    add_words(x, filled(l, policy, s->here, s->hardware));
    r->job = j->n++;
}

static int read_runs(struct paper_list *l, const char *path, struct err *e)
{
    for (const struct json *run = json_first(json_find(l->root, "runs")); run; run = json_next(run)) {
        const struct json *policies = json_find(run, "policies");
        if (!json_text(json_find(run, "args")) || !json_count(policies))
            return err_set(e, E_INPUT, "%s: run \"%.60s\" must have \"args\" and \"policies\"", path, json_key(run));
        for (const struct json *p = json_first(policies); p; p = json_next(p)) {
            if (!json_text(p))
                return err_set(e, E_INPUT, "%s: run \"%.60s\": policy \"%.60s\" must be a string", path, json_key(run),
                               json_key(p));
            l->runs = mem_resize(l->runs, (size_t)l->n_runs + 1, sizeof *l->runs);
            l->runs[l->n_runs++] = (struct paper_run){json_key(run), json_key(p), -1};
        }
    }
    return 0;
}

/* "llama.shift.ttft_ms.p50": the run, and where its metric begins; NULL: there is none. */
static struct paper_run *run_of(const struct paper_list *l, const char *name, const char **metric)
{
    for (int i = 0; i < l->n_runs; i++) {
        size_t a = strlen(l->runs[i].name), b = strlen(l->runs[i].policy);
        if (!strncmp(name, l->runs[i].name, a) && name[a] == '.' && !strncmp(name + a + 1, l->runs[i].policy, b) &&
            name[a + 1 + b] == '.') {
            *metric = name + a + b + 2;
            return &l->runs[i];
        }
    }
    return NULL;
}

/* ---- numbers */

static int read_values(struct paper_number *x, const struct json *o, struct err *e)
{
    const struct json *is = json_find(o, "is"), *published = json_find(o, "published"),
                      *f = json_type(is) == JSON_ARRAY ? json_first(is) : is;
    const struct json *p = json_type(published) == JSON_ARRAY ? json_first(published) : published;
    x->claim = json_text(published);
    for (; f && x->n < PAPER_VALUES; f = json_type(is) == JSON_ARRAY ? json_next(f) : NULL) {
        x->formula[x->n] = json_text(f);
        if (!x->formula[x->n] || (!x->claim && json_type(p) != JSON_NUMBER))
            return err_set(e, E_INPUT, "\"is\" must be a formula for a number in \"published\", or an array of both");
        x->published[x->n++] = json_number(p);
        p = p && json_type(published) == JSON_ARRAY ? json_next(p) : NULL;
    }
    return 0;
}

static int read_number(struct paper_number *x, const struct json *o, struct err *e)
{
    const char **texts[] = {&x->id, &x->paper, &x->where, &x->what, &x->unit, &x->why, &x->note, &x->fitted, &x->given};
    static const char *const keys[] = {"id", "paper", "where", "what", "unit", "why", "note", "fitted", "given"};
    const struct json *bar = json_find(o, "bar");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        *texts[i] = json_text(json_find(o, keys[i]));
    x->id = x->id ? x->id : "";
    x->unit = x->unit ? x->unit : "";
    if (!x->paper || !x->where || !x->what)
        return err_set(e, E_INPUT, "\"paper\", \"where\" and \"what\" must be strings");
    TRY(read_values(x, o, e));
    if ((x->n > 0) == (x->why != NULL))
        return err_set(e, E_INPUT, "it must have \"is\", a formula, or \"why\" there is none");
    x->low = 1;
    if (json_type(bar) == JSON_ARRAY && json_count(bar) == 2) {
        x->low = json_number(json_first(bar));
        x->high = json_number(json_next(json_first(bar)));
    } else if (json_true(bar) && x->claim) {
        x->high = 1;
    } else if (bar) {
        return err_set(e, E_INPUT, "\"bar\" must be [low, high], or true for a claim in words");
    }
    return 0;
}

static bool says(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (; *text; text++) {
        size_t i = 0;
        while (i < n && text[i] && tolower((unsigned char)text[i]) == tolower((unsigned char)word[i]))
            i++;
        if (i == n)
            return true;
    }
    return false;
}

static bool is_wanted(const struct paper_number *x, const struct paper_choice *c)
{
    bool named = c->n_only == 0;
    for (int i = 0; i < c->n_only; i++) {
        const char *texts[] = {x->id, x->paper, x->where, x->what, x->formula[0] ? x->formula[0] : ""};
        for (int k = 0; k < 5; k++)
            named = named || says(texts[k], c->only[i]);
    }
    return named && (!c->bars || x->high >= x->low);
}

/* ---- steps: what the parts of one forward take */

static const struct json *step_of(const struct paper_list *l, const char *name, const char **part)
{
    for (const struct json *s = json_first(json_find(l->root, "steps")); s; s = json_next(s)) {
        size_t n = strlen(json_key(s));
        if (!strncmp(name, "step.", 5) && !strncmp(name + 5, json_key(s), n) && name[5 + n] == '.') {
            *part = name + 6 + n;
            return s;
        }
    }
    return NULL;
}

static int whole_of(const struct json *o, const char *key, int otherwise)
{
    int64_t v;
    return json_i64(json_find(o, key), &v) && v >= 0 && v <= 1 << 24 ? (int)v : otherwise;
}

/* pool_devices: over how many the FFN weights are pooled; 0: not. pool_ranks: of them, those with work. */
static int read_pool(const struct json *o, const struct sim_machine *m, struct ffn_setup *pool, struct sim_step *s,
                     struct err *e)
{
    const char *order = json_text(json_find(o, "pool_order"));
    double gbps = json_member_number(o, "link_gbps");
    int n = whole_of(o, "pool_devices", 0), shares = s->weights.shares > 1 ? s->weights.shares : 1;
    if (!n)
        return 0;
    if (n > MAX_RANKS || n % shares || sim_machine_layers(m) > FFN_MAX_LAYERS)
        return err_set(e, E_INPUT, "\"pool_devices\": %d devices that hold %d shares each of %d layers", n, shares,
                       sim_machine_layers(m));
    *pool = (struct ffn_setup){.n_ranks = n,
                               .n_layers = sim_machine_layers(m),
                               .n_slots = whole_of(o, "pool_slots", n / shares),
                               .order = order && !strcmp(order, "plain") ? FFN_PLAIN : FFN_SHIFTED,
                               .link_gbps = gbps > 0 ? gbps : 0};
    s->weights.pool = pool;
    s->size.pool_ranks = whole_of(o, "pool_ranks", n);
    s->size.cas_layers = whole_of(o, "cas_layers", 0);
    return ffn_parse_owners(pool, "layer-mod", e);
}

static int step_part(const struct paper_list *l, const struct json *o, const char *part, double *ns, struct err *e)
{
    const char *hardware = json_text(json_find(o, "hardware")), *model = json_text(json_find(o, "model"));
    char paths[2][PATH_MAX];
    struct sim_machine *m = NULL;
    struct sim_step s = {.layout = {whole_of(o, "sp", 1), whole_of(o, "tp", 1), whole_of(o, "pp", 1)},
                         .weights = {.shares = whole_of(o, "weight_shares", 1)},
                         .size = {.n_micro = whole_of(o, "micro_batches", 0)}};
    if (s.layout.sp < 1 || s.layout.tp < 1 || s.layout.pp < 1)
        return err_set(e, E_INPUT, "\"sp\", \"tp\" and \"pp\" are at least 1");
    TRY(places_description(hardware ? hardware : l->hardware, "models/hardware", paths[0], e));
    TRY(places_description(model ? model : "", "models/catalog", paths[1], e));
    TRY(sim_machine_open(&m, paths[0], paths[1], e));
    int rows = whole_of(o, "rows", 0), decodes = whole_of(o, "decodes", 0);
    if (rows)
        step_size_add(&s.size, rows, whole_of(o, "before", 0));
    for (int i = 0; i < decodes; i++)
        step_size_add(&s.size, 1, whole_of(o, "context", 0));
    s.size.n_logits = decodes + (rows > 0);
    struct ffn_setup pool;
    int rc = read_pool(o, m, &pool, &s, e);
    rc = rc ? rc : sim_machine_step(m, &s, part, ns, e);
    sim_machine_close(m);
    return rc;
}

struct tracing {
    struct paper_list *list;
    const struct source *source;
    int n;
};

/* Any value does for a name here, as long as two names differ. */
static int trace_name(void *ctx, const char *name, double *out, struct err *e)
{
    struct tracing *t = ctx;
    const char *metric;
    struct paper_run *r = run_of(t->list, name, &metric);
    if (!r && !step_of(t->list, name, &metric))
        return err_set(e, E_INPUT, "'%.80s' is not RUN.POLICY.METRIC of a run in the list, nor step.NAME.PART", name);
    if (r && t->source && r->job < 0)
        make_job(t->list, r, t->source);
    *out = 1 + 0.37 * ++t->n;
    return 0;
}

static int read_numbers(struct paper_list *l, const struct source *s, const struct paper_choice *c, struct err *e)
{
    const struct json *all = json_find(l->root, "numbers");
    l->numbers = mem_new_array(json_count(all) + 1, sizeof *l->numbers);
    for (const struct json *o = json_first(all); o; o = json_next(o)) {
        struct paper_number *x = &l->numbers[l->n_numbers++];
        int rc = read_number(x, o, e);
        x->wanted = !rc && is_wanted(x, c);
        struct tracing t = {l, x->wanted ? s : NULL, 0};
        double any;
        for (int i = 0; i < x->n && !rc; i++)
            rc = formula_value(x->formula[i], trace_name, &t, &any, e);
        if (rc)
            return err_prefix(e, rc, "%s: number %d (%.40s, %.60s)", s->path, l->n_numbers, x->where ? x->where : "",
                              x->what ? x->what : "");
    }
    return 0;
}

int paper_list_read(struct paper_list *l, const char *text, size_t n, const char *path,
                    const struct paper_choice *choice, struct err *e)
{
    const char *slash = strrchr(path, '/');
    *l = (struct paper_list){.root = json_parse(text, n, NULL, e), .hardware = choice->hardware};
    if (!l->root)
        return err_prefix(e, E_INPUT, "%s", path);
    const char *settings = json_text(json_find(l->root, "settings"));
    char *here = own(l, slash ? mem_strndup(path, (size_t)(slash - path)) : mem_strdup("."));
    if (!settings || json_type(json_find(l->root, "runs")) != JSON_OBJECT ||
        json_type(json_find(l->root, "numbers")) != JSON_ARRAY)
        return err_set(e, E_INPUT, "%s must be an object with \"settings\", \"runs\" and \"numbers\"", path);
    TRY(read_runs(l, path, e));
    return read_numbers(l, &(struct source){path, here, choice->hardware, settings}, choice, e);
}

int paper_list_open(struct paper_list *l, const char *path, const struct paper_choice *choice, struct err *e)
{
    struct buf text = {0};
    *l = (struct paper_list){0};
    int rc = file_read(&text, path, MAX_LIST, e);
    if (!rc)
        rc = paper_list_read(l, text.data ? text.data : "", text.len, path, choice, e);
    buf_free(&text);
    return rc;
}

void paper_list_close(struct paper_list *l)
{
    jobs_clear(&l->jobs);
    for (int i = 0; i < l->jobs.n; i++)
        mem_free(l->jobs.items[i].args);
    mem_free(l->jobs.items);
    for (int i = 0; i < l->n_owned; i++)
        mem_free(l->owned[i]);
    mem_free(l->owned);
    mem_free(l->runs);
    mem_free(l->numbers);
    json_free(l->root);
    *l = (struct paper_list){0};
}

/* ---- results */

/* "ttft_ms.p50" of a run, or of the whole answer; a number between dots counts in a list. */
static const struct json *metric_of(const struct json *from, const char *path)
{
    char part[FORMULA_NAME];
    while (from && *path) {
        size_t n = strcspn(path, ".");
        memcpy(part, path, n);
        part[n] = 0;
        path += n + (path[n] == '.');
        if (json_type(from) == JSON_ARRAY) {
            from = json_first(from);
            for (long i = strtol(part, NULL, 10); from && i > 0; i--)
                from = json_next(from);
        } else {
            from = json_find(from, part);
        }
    }
    return from;
}

static int look_up(void *ctx, const char *name, double *out, struct err *e)
{
    const char *metric = "";
    const struct paper_list *l = ctx;
    const struct paper_run *r = run_of(l, name, &metric);
    if (!r) {
        const struct json *step = step_of(l, name, &metric);
        return step_part(l, step, metric, out, e);
    }
    const struct job *x = &l->jobs.items[r->job];
    if (!x->result)
        return err_set(e, x->failure ? E_INPUT : E_GONE, "%s.%s: %s", r->name, r->policy,
                       x->failure ? x->failure : "was not run");
    const struct json *run = json_first(json_find(x->result, "runs"));
    if (json_member_number(json_find(run, "policy"), "withdrawn") > 0)
        return err_set(e, E_POLICY, "%s.%s: the policy was withdrawn for its strikes, so this is another one's",
                       r->name, r->policy);
    const struct json *found = metric_of(run, metric);
    found = found ? found : metric_of(x->result, metric);
    if (json_type(found) != JSON_NUMBER && json_type(found) != JSON_BOOL)
        return err_set(e, E_INPUT, "%s.%s has no '%.60s' in its result", r->name, r->policy, metric);
    *out = json_type(found) == JSON_BOOL ? json_true(found) : json_number(found);
    return 0;
}

int paper_list_value(const struct paper_list *l, const struct paper_number *x, int i, double *out, struct err *e)
{
    return formula_value(x->formula[i], look_up, (void *)l, out, e);
}
