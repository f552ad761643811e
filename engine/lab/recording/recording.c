#include "engine/lab/recording/recording.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/recording/record.h"
#include "engine/lab/recording/recording_fields.h"
#include "engine/lab/recording/recording_inner.h"
#include "engine/lab/trace/trace.h"

struct recording {
    struct lines lines;
    struct recording_head head;
    int64_t last_ns, n_admitted; /* n_admitted: the order of the last one that was, and one */
    bool complete;
    int64_t *stops, *key_orders;
    struct recorded_drafts *drafts;
    struct ffn_layer_times layers[FFN_MAX_LAYERS]; /* of the line */
    uint64_t *keys;
    size_t cap_stops, cap_key_orders, cap_keys, cap_drafts;
};

static int64_t order(struct fields *f)
{
    return fields_number(f, "order", 0, RECORDING_MAX_ORDER);
}

static double milliseconds(struct fields *f, const char *field)
{
    return fields_real(f, field, 0, 1e12, "milliseconds");
}

static void *grown(void *old, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 64;
    return mem_resize(old, *cap, size);
}

static const char *ending_word(int i)
{
    static const char *const words[] = {[END_NONE] = "none",   [END_STOP] = "stop",   [END_LENGTH] = "length",
                                        [END_ABORT] = "abort", [END_ERROR] = "error", [END_REFUSED] = "refused"};
    return words[i];
}

static const char *hook_word(int i)
{
    return policy_hook_name((enum policy_hook)i);
}

static const char *verdict_word(int i)
{
    return verdict_name((enum verdict)i);
}

static void some_keys(struct recording *r, struct fields *f, struct recorded *out, int most)
{
    for (int i = 0; i < most && !f->rc; i++) {
        r->keys = grown(r->keys, (size_t)out->n_keys, &r->cap_keys, sizeof *r->keys);
        r->keys[out->n_keys++] = fields_key(f);
    }
}

static void end_of_line(struct fields *f)
{
    if (f->at)
        fields_wrong(f, "the line", "at its end", f->at);
}

/* ---- kinds of lines */

/* The keys may go on on lines of their own. *cut: the file ends before they do. */
static void arrival(struct recording *r, struct fields *f, struct recorded *out, bool *cut)
{
    out->order = fields_number_or_none(f, "order", RECORDING_MAX_ORDER);
    if (!f->rc && out->order >= 0 && (r->head.is_window ? out->order < r->n_admitted : out->order != r->n_admitted))
        fields_wrong(f, "order",
                     r->head.is_window ? "after that of the request before" : "that of the request before, and one",
                     "another number");
    out->arrival_ns = fields_number(f, "arrival", -RECORDING_MAX_NS, RECORDING_MAX_NS);
    out->n_prompt = (int)fields_number(f, "prompt", 1, TRACE_MAX_TOKENS);
    out->max_tokens = (int)fields_number(f, "max_tokens", 0, INT32_MAX);
    out->priority = (int)fields_number(f, "priority", INT32_MIN, INT32_MAX);
    out->leader = fields_number_or_none(f, "leader", r->n_admitted - 1);
    int asked = (int)fields_number(f, "asked", 0, (RECORD_MAX_CHOICES << 3) - 1);
    out->logprobs = asked & 1;
    out->open_ended = asked & 2;
    out->offline = asked & 4;
    out->choice = asked >> 3;
    out->slo_ttft_ms = milliseconds(f, "ttft_ms");
    out->slo_tpot_ms = milliseconds(f, "tpot_ms");
    fields_name(f, "name", out->name);
    fields_name(f, "tenant", out->tenant);
    int n = (int)fields_number(f, "n_keys", 0, out->n_prompt / KV_UNIT);
    while (!f->rc) {
        some_keys(r, f, out, n - out->n_keys < RECORD_KEYS_A_LINE ? n - out->n_keys : RECORD_KEYS_A_LINE);
        end_of_line(f);
        if (f->rc || out->n_keys == n)
            break;
        f->rc = lines_next(&r->lines, cut, f->e);
        *cut |= !r->lines.ended;
        if (f->rc || *cut)
            return;
        f->at = r->lines.line.data;
        if (strcmp(fields_word(f), "k") != 0)
            fields_wrong(f, "the line", "more keys of the request above", r->lines.line.data);
    }
    if (!f->rc && out->order >= 0)
        r->n_admitted = out->order + 1;
}

static void step_of_pool(struct recording *r, struct fields *f, struct recorded *out)
{
    const int64_t MOST_BYTES = INT64_C(1) << 60;
    out->cas_layers = (int)fields_number(f, "cas_layers", 0, r->head.ffn.n_layers);
    out->ffn.wait_ns = fields_number(f, "wait", 0, RECORDING_MAX_NS);
    out->ffn.fetch_ns = fields_number(f, "fetch", 0, RECORDING_MAX_NS);
    out->ffn.was_bytes = (uint64_t)fields_number(f, "was_bytes", 0, MOST_BYTES);
    out->ffn.cas_bytes = (uint64_t)fields_number(f, "cas_bytes", 0, MOST_BYTES);
    out->ffn.cas_rows = (uint64_t)fields_number(f, "cas_rows", 0, INT32_MAX);
}

/* "2", or "2x4": tp, and the stages of a pipelined group. */
static void stages(struct fields *f, const char *text, int ranks, struct layout *l)
{
    char tp[16];
    size_t n = strcspn(text, "x");
    snprintf(tp, sizeof tp, "%.*s", (int)n, text);
    l->tp = (int)fields_parse(f, "tp", tp, 1, ranks);
    l->pp = text[n] ? (int)fields_parse(f, "pp", text + n + 1, 2, ranks) : 1;
}

/* A request of the recording. */
static int64_t admitted(const struct recording *r, struct fields *f)
{
    int64_t v = order(f);
    if (!f->rc && v >= r->n_admitted)
        fields_wrong(f, "order", "that of a request above", "a later one");
    return v;
}

static void verified_drafts(struct recording *r, struct fields *f, struct recorded *out)
{
    out->n_drafts = (int)fields_number(f, "n_verified", 0, MAX_REQUESTS);
    for (int i = 0; i < out->n_drafts && !f->rc; i++) {
        r->drafts = grown(r->drafts, (size_t)i, &r->cap_drafts, sizeof *r->drafts);
        struct recorded_drafts *d = &r->drafts[i];
        d->order = admitted(r, f);
        d->source = (int)fields_number(f, "source", 0, r->head.n_sources - 1);
        d->n = (int)fields_number(f, "drafts", 1, MOST_DRAFTS);
        d->right = (int)fields_number(f, "right", 0, d->n);
        d->ended = fields_number(f, "ended", 0, 1);
    }
}

static void guess(const struct recording *r, struct fields *f, struct recorded *out)
{
    if (!r->head.n_sources)
        fields_wrong(f, "the line", "of a server with sources of draft tokens", "another");
    out->call = (uint64_t)fields_number(f, "call", 1, INT64_MAX);
    out->source = (int)fields_number(f, "source", 0, r->head.n_sources - 1);
    out->order = admitted(r, f);
    out->asked = (int)fields_number(f, "asked", 1, MOST_DRAFTS);
    out->n_guessed = (int)fields_number(f, "n", 0, out->asked);
    out->match = (int)fields_number(f, "match", 0, INT32_MAX);
    out->score = (float)fields_real(f, "score", -1e9, 1e9, "a number");
}

/* "24/1": rows, and how many of them gave a token; older recordings have rows alone, so that nobody knows. */
static int rows(struct fields *f, const char *text, int least, int *n_logits)
{
    char tokens[16];
    size_t n = strcspn(text, "/");
    snprintf(tokens, sizeof tokens, "%.*s", (int)n, text);
    int all = (int)fields_parse(f, "tokens", tokens, least, 1 << 20);
    *n_logits = text[n] ? (int)fields_parse(f, "logits", text + n + 1, 0, all) : -1;
    return all;
}

static void drafting(struct fields *f, struct drafter_time *out)
{
    struct drafter_pass *passes[] = {&out->first, &out->last};
    out->ns = fields_number(f, "draft", 0, RECORDING_MAX_NS);
    for (int i = 0; i < 2; i++) {
        passes[i]->size.rows = rows(f, fields_word(f), 0, &passes[i]->size.n_logits);
        if (passes[i]->size.n_logits < 0)
            passes[i]->size.n_logits = 0;
        passes[i]->size.looked_at = (double)fields_number(f, "draft looked_at", 0, INT64_C(1) << 52);
        passes[i]->ns = fields_number(f, "draft ns", 0, RECORDING_MAX_NS);
    }
}

static void step(struct recording *r, struct fields *f, struct recorded *out)
{
    int ranks = r->head.facts.n_ranks;
    out->group = (int)fields_number(f, "group", 1, INT32_MAX);
    out->start_ns = fields_number(f, "start", 0, RECORDING_MAX_NS);
    out->ns = fields_number(f, "ns", 0, RECORDING_MAX_NS);
    out->predicted_ns = fields_number(f, "estimate", 0, INT64_C(1) << 60);
    out->layout.sp = (int)fields_number(f, "sp", 1, ranks);
    stages(f, fields_word(f), ranks, &out->layout);
    out->rows = rows(f, fields_word(f), 1, &out->n_logits);
    out->looked_at = (double)fields_number(f, "looked_at", 1, INT64_C(1) << 52);
    out->failed_rank = (int)fields_number_or_none(f, "failed_rank", ranks - 1);
    out->n_stops = (int)fields_number(f, "n_stops", 0, MAX_REQUESTS);
    for (int i = 0; i < out->n_stops && !f->rc; i++) {
        r->stops = grown(r->stops, (size_t)i, &r->cap_stops, sizeof *r->stops);
        r->stops[i] = order(f);
    }
    int n = (int)fields_number(f, "n_keys", 0, MAX_REQUESTS * (MOST_DRAFTS / KV_UNIT + 1));
    for (int i = 0; i < n && !f->rc; i++) {
        r->key_orders = grown(r->key_orders, (size_t)i, &r->cap_key_orders, sizeof *r->key_orders);
        r->key_orders[i] = order(f);
        some_keys(r, f, out, 1);
    }
    if (r->head.n_sources)
        verified_drafts(r, f, out);
    if (r->head.timed_drafts)
        drafting(f, &out->drafting);
    if (r->head.facts.ffn)
        step_of_pool(r, f, out);
}

static void replica(struct recording *r, struct fields *f, struct recorded *out)
{
    if (!r->head.facts.ffn)
        fields_wrong(f, "the line", "of a node whose FFN weights are pooled", r->lines.line.data);
    out->layer = (int)fields_number(f, "layer", 0, r->head.ffn.n_layers - 1);
    out->start_ns = fields_number(f, "start", 0, RECORDING_MAX_NS);
    out->gives_up = fields_number(f, "gives_up", 0, 1);
    out->failed = fields_number(f, "rc", 0, 1);
}

static void reshard(struct recording *r, struct fields *f, struct recorded *out)
{
    int n = r->head.facts.n_ranks;
    if (!r->head.facts.residency)
        fields_wrong(f, "the line", "of a node whose ranks hold cuts of the weights", r->lines.line.data);
    out->ranks = fields_key(f);
    if (!out->ranks || out->ranks & ~rank_range(0, n))
        fields_wrong(f, "ranks", "a mask of the node's ranks in hexadecimal", r->lines.line.data);
    out->start_ns = fields_number(f, "start", 0, RECORDING_MAX_NS);
    out->bytes = fields_number(f, "bytes", 0, INT64_C(1) << 60);
    out->failed_rank = (int)fields_number_or_none(f, "failed_rank", n - 1);
}

/* A point in the step, in us from its start; never before the last one that was read. Times that are 0 are never, so
 * that is 1 ns. */
static int64_t moment(struct fields *f, const char *field, int64_t *last, int64_t most)
{
    int64_t us = fields_number(f, field, *last, most);
    *last = us;
    return us > 0 ? us * 1000 : 1;
}

static void layer_times(struct fields *f, struct ffn_layer_times *t, int64_t most)
{
    const char *how = fields_word(f);
    int64_t at = 0, fetched = -RECORDING_MAX_NS / 1000;
    *t = (struct ffn_layer_times){0};
    if (!strcmp(how, "-"))
        return;
    if (strlen(how) != 1 || !strchr("lcw", *how)) {
        fields_wrong(f, "a layer", "l, c, w or -", how);
        return;
    }
    t->mode = *how == 'l' ? FFN_LOCAL : *how == 'c' ? FFN_CAS : FFN_WAS;
    t->ready = t->begin = moment(f, "ready", &at, most);
    if (t->mode == FFN_WAS) {
        t->begin = moment(f, "begin", &at, most);
        t->pause = moment(f, "pause", &at, most);
        t->resume = moment(f, "resume", &at, most);
    }
    t->end = moment(f, "end", &at, most);
    if (t->mode == FFN_WAS) {
        t->fetch_begin = fields_number(f, "fetched_from", fetched, most) * 1000;
        t->fetch_end = fields_number(f, "fetched_to", t->fetch_begin / 1000, most) * 1000;
    }
}

static void timeline(struct recording *r, struct fields *f, struct recorded *out)
{
    const struct recording_head *h = &r->head;
    if (!h->facts.ffn) {
        fields_wrong(f, "the line", "of a server with pooled weights", "another");
        return;
    }
    out->group = (int)fields_number(f, "group", 1, INT32_MAX);
    out->rank = (int)fields_number(f, "rank", 0, h->facts.n_ranks - 1);
    out->rows = (int)fields_number(f, "tokens", 1, 1 << 20);
    out->start_ns = fields_number(f, "start", 0, RECORDING_MAX_NS);
    out->ns = fields_number(f, "took", 0, RECORDING_MAX_NS);
    fields_number(f, "n_layers", h->ffn.n_layers, h->ffn.n_layers);
    for (int l = 0; l < h->ffn.n_layers && !f->rc; l++)
        layer_times(f, &r->layers[l], out->ns / 1000);
}

static void live_policy(struct fields *f, struct recorded *out)
{
    fields_name(f, "name", out->name);
    snprintf(out->sha256, sizeof out->sha256, "%s", fields_word(f));
    out->text = fields_rest(f, "params");
}

/* "1,3": at most as many as there can be groups. */
static void canary(const struct recording *r, struct fields *f, struct recorded *out)
{
    fields_name(f, "name", out->name);
    snprintf(out->sha256, sizeof out->sha256, "%s", fields_word(f));
    for (char *rest_of = (char *)fields_word(f), *text; (text = strsep(&rest_of, ",")) && !f->rc;) {
        if (out->n_groups == r->head.facts.n_ranks)
            fields_wrong(f, "groups", "no more than there are ranks", text);
        else
            out->groups[out->n_groups++] = (int)fields_parse(f, "groups", text, 1, INT32_MAX);
    }
    out->ns = fields_number(f, "for", 1, RECORDING_MAX_NS);
    out->text = fields_rest(f, "params");
}

static void prediction(struct fields *f, struct prediction *out)
{
    out->is_strict = fields_number(f, "strict", 0, 1);
    out->is_made = fields_number(f, "made", 0, 1);
    out->ago_s = fields_real(f, "ago", 0, 1e15, "a number");
    out->window_s = fields_real(f, "window", 0, 1e15, "a number");
    out->n_requests = fields_real(f, "requests", 0, 1e15, "a number");
    out->guessed = fields_real(f, "guessed", 0, 1, "a share");
    for (int i = 0; i < PREDICTED_COUNT; i++) {
        struct predicted_change *c = &out->changes[i];
        c->n_stretches = (int)fields_number(f, "n", 0, INT32_MAX);
        c->change = fields_real(f, "change", -1, 1e15, "a number");
        c->least = fields_real(f, "least", -1, 1e15, "a number");
        c->most = fields_real(f, "most", -1, 1e15, "a number");
    }
    out->shadow.n_asked = (uint64_t)fields_number(f, "asked", 0, INT64_MAX);
    out->shadow.n_equal = (uint64_t)fields_number(f, "equal", 0, INT64_MAX);
    out->shadow.n_failed = (uint64_t)fields_number(f, "failed", 0, INT64_MAX);
}

static void new_limits(const struct recording *r, struct fields *f, struct limits_order *out)
{
    for (int i = 0; i < LIMIT_COUNT && !f->rc; i++) {
        int64_t least, most;
        const char *text = fields_word(f);
        limit_range(&r->head.facts.limits, (enum limit)i, &least, &most);
        out->given[i] = strcmp(text, "-") != 0;
        if (out->given[i])
            out->values[i] = fields_parse(f, limit_name((enum limit)i), text, least, most);
    }
}

static void verdict(struct fields *f, struct recorded *out)
{
    out->call = (uint64_t)fields_number(f, "call", 1, INT64_MAX);
    out->hook = (enum policy_hook)fields_choice(f, "hook", hook_word, HOOK_COUNT);
    out->verdict = (enum verdict)fields_choice(f, "verdict", verdict_word, VERDICT_COUNT);
    if (!verdict_by_chance(out->verdict))
        fields_wrong(f, "verdict", "slow, heavy, timeout, oom or crashed", verdict_name(out->verdict));
}

static void timed(struct recording *r, struct fields *f, struct recorded *out, bool *cut)
{
    switch (out->kind) {
    case 'a':
        arrival(r, f, out, cut);
        return;
    case 'c':
    case 'e':
        out->order = order(f);
        out->ending = (enum ending)fields_choice(f, "ending", ending_word, END_REFUSED + 1);
        if (out->kind == 'e') {
            out->n_output = (int)fields_number(f, "n_output", 0, INT32_MAX);
            out->n_cached = (int)fields_number(f, "n_cached", 0, INT32_MAX);
        } else if (out->ending == END_NONE || out->ending == END_REFUSED) {
            fields_wrong(f, "ending", "stop, length, abort or error", ending_word(out->ending));
        }
        break;
    case 's':
        step(r, f, out);
        break;
    case 'f':
        timeline(r, f, out);
        break;
    case 'm':
        out->serial = (uint64_t)fields_number(f, "number", 1, INT64_MAX);
        out->start_ns = fields_number(f, "start", 0, RECORDING_MAX_NS);
        out->bytes = fields_number(f, "bytes", 0, INT64_C(1) << 60);
        break;
    case 'w':
        replica(r, f, out);
        break;
    case 'h':
        reshard(r, f, out);
        break;
    case 'g':
        live_policy(f, out);
        break;
    case 'y':
        canary(r, f, out);
        break;
    case 'o':
        prediction(f, &out->predicted);
        break;
    case 'j':
        out->text = fields_rest(f, "params");
        break;
    case 'l':
        new_limits(r, f, &out->limits);
        break;
    case 'q':
        out->text = fields_rest(f, "plan");
        break;
    case 'b':
    case 'u':
    case 'r':
    case 'd':
    case 'x':
    case 't':
        break;
    case 'z':
        r->complete = true;
        break;
    default:
        fields_wrong(f, "the line", "of a kind that recordings have", r->lines.line.data);
    }
    end_of_line(f);
}

int recording_next(struct recording *r, struct recorded *out, bool *end, struct err *e)
{
    struct recorded x = {.order = -1, .leader = -1, .failed_rank = -1};
    *end = false;
    TRY(lines_next(&r->lines, end, e));
    *end |= !r->lines.ended; /* a line that was being written when the file was cut off */
    if (*end)
        return 0;
    struct fields f = {.lines = &r->lines, .at = r->lines.line.data, .e = e};
    const char *kind = fields_word(&f);
    x.kind = kind[0] && !kind[1] ? kind[0] : '?';
    x.line = r->lines.number;
    if (x.kind == 'v') {
        verdict(&f, &x);
        end_of_line(&f);
    } else if (x.kind == 'p') {
        guess(r, &f, &x);
        end_of_line(&f);
    } else if (x.kind == '?') {
        fields_wrong(&f, "the line", "of a kind that recordings have", kind);
    } else {
        x.t_ns = fields_number(&f, "time", 0, RECORDING_MAX_NS);
        if (!f.rc && x.t_ns < r->last_ns)
            fields_wrong(&f, "time", "not before that of the line above", "earlier");
        r->last_ns = x.t_ns;
        timed(r, &f, &x, end);
    }
    if (f.rc || *end)
        return f.rc;
    x.stops = r->stops;
    x.key_orders = r->key_orders;
    x.layers = r->layers;
    x.keys = r->keys;
    x.drafts = r->drafts;
    *out = x;
    return 0;
}

/* ---- opening and closing */

bool recording_begins(const char *line)
{
    return strncmp(line, "{\"moonshift_recording\"", 22) == 0;
}

bool recording_is_file(const char *path)
{
    char head[32] = {0};
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f)
        fclose(f);
    return n && recording_begins(head);
}

int recording_open_stream(struct recording **out, FILE *f, const char *file_name, struct err *e)
{
    struct recording *r = mem_new(sizeof *r);
    bool end = false;
    lines_start(&r->lines, f, file_name);
    int rc = lines_next(&r->lines, &end, e);
    if (!rc && (end || !r->lines.ended || !recording_begins(r->lines.line.data)))
        rc = lines_bad(&r->lines, e, "this is no recording: its first line is not that of one, or is cut off");
    if (!rc)
        rc = recording_read_head(&r->head, &r->lines, e);
    r->n_admitted = r->head.first_order;
    r->last_ns = r->head.from_ns;
    if (rc) {
        recording_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

int recording_open(struct recording **out, const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(e, errno == ENOENT ? E_NOTFOUND : E_SYS, "cannot open %.200s: %s", path, strerror(errno));
    return recording_open_stream(out, f, slash ? slash + 1 : path, e);
}

void recording_close(struct recording *r)
{
    if (!r)
        return;
    lines_stop(&r->lines);
    recording_free_head(&r->head);
    mem_free(r->stops);
    mem_free(r->key_orders);
    mem_free(r->keys);
    mem_free(r->drafts);
    mem_free(r);
}

const struct recording_head *recording_head(const struct recording *r)
{
    return &r->head;
}

int recording_check_whole(const struct recording *r, struct err *e)
{
    return r->head.is_window
               ? err_set(e, E_INPUT,
                         "%s is a window of what a server did, which begins in the middle: its decisions cannot be "
                         "taken again. Give --what-if, or record from the start (serve --record)",
                         r->lines.name)
               : 0;
}

bool recording_complete(const struct recording *r)
{
    return r->complete;
}
