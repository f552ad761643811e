/* The lines after the first one (which record_head.c writes): a letter, the time in ns since the engine's start where
 * it has one, and fields with a blank between them. A request is named by the order in which it was admitted (0, 1,
 * ...); '-' stands for none.
 *
 * - a time order arrival prompt max_tokens priority leader asked ttft_ms tpot_ms name tenant n_keys key...: a request
 * is handed in; order '-': turned away; asked: 1 for logprobs of the prompt, 2 when the client gave no max_tokens (then
 *   it is all that fits), 4 for a line of a batch, and 8 times which choice of its order it is
 * - k key...: more keys of the request above (at most RECORD_KEYS_A_LINE a line)
 * - c time order ending: ends early: the client left (abort), a stop string was found (stop)
 * - s time group start ns estimate sp tp tokens/logits looked_at failed_rank n_stops order... n_keys order key ...
 *   [n_verified order source n right ended ...] [draft rows/logits looked_at ns rows/logits looked_at ns]
 *   [cas_layers wait fetch was_bytes cas_bytes cas_rows]: a step is absorbed: when it was posted, how long its ranks
 *   took, what the estimator had said; how many of its rows gave a token (not in formats 1 and 2); tp of a pipelined
 *   group with its stages, as 2x4; where there are sources of draft tokens, whose were verified: n of them, how many
 *   were right, and 1 where the request ended and nothing was said about the one behind them; where one takes time of
 *   its own, how long the slowest rank guessed, and its first and last forward; the last six where FFN weights are
 *   pooled
 * - f time group rank rows start took n_layers layer...: of few steps with pooled FFN weights, what one of its ranks
 *   did, after the line of the step: start and duration in ns, then each layer in whole us from the start: "l ready
 * end" (its own), "c ready end" (its rows were sent), "w ready begin pause resume end fetched_from fetched_to" (engine/
 *   world/ffn_timeline.h), or '-': it was not reached
 * - m time number start bytes: a copy of KV has landed, posted at start
 * - h time ranks start bytes failed_rank: weights have come to these ranks (a mask, as 16 hexadecimal digits), beside
 *   their steps or for a group that waits; or what had come was dropped
 * - w time layer start gives_up rc: the copies of a pooled FFN layer are whole, could not be made, or are gone
 * - g time name sha256 params: another policy goes live
 * - y time name sha256 groups for params: a canary begins: the ids of its groups with commas between, ns that it has
 * - u time: an order ends it
 * - o time strict made ago window requests guessed, then of TTFT, TPOT and throughput each n change least most, then
 *   asked equal failed: what was predicted of the policy of the line behind it (engine/prediction.h)
 * - j time params: its params change
 * - l time max_num_seqs max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens park starvation: an operator
 *   sets limits, the last two in ns; '-': one that stays
 * - b time: rollback
 * - r time: the prefix cache is reset
 * - d time: drain
 * - x time: stop
 * - t time: a turn of the engine in which nothing was decided
 * - q time plan: a decision (record_plan.h)
 * - v call hook verdict: the policy's call of this number was slow, heavy, cut off or out of memory; stands before the
 *   line that it belongs to
 * - p call source order asked n match score: in the policy's call of this number this source of draft tokens was asked
 *   for so many and had n of them, on so much of the text and with this score (engine/world/draft.h); as v
 * - e time order ending n_output n_cached: a request has ended
 * - z time: the recording ended in good order
 *
 * Keys are 16 hexadecimal digits, one for each whole unit of KV_UNIT tokens. */
#include "engine/lab/recording/record.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/mem.h"
#include "engine/canary_order.h"
#include "engine/lab/recording/record_file.h"
#include "engine/lab/recording/record_inner.h"
#include "engine/lab/recording/record_plan.h"

static const int64_t HAND_OVER_NS =
    250000000; /* a line is not kept from the file or the window for longer while the engine is at work */

/* The engine's thread. */
struct recorder {
    struct witness witness;
    struct record_file *file;                      /* NULL: none */
    struct record_window *window;                  /* borrowed; NULL: none */
    struct buf text;                               /* lines not handed over */
    int64_t base_ns, first_ns, last_ns, handed_ns; /* first: of the lines in text */
    uint64_t n_bytes, n_calls, secret[2];
    int n_arrived; /* in text */
    bool with_keys;
    struct buf stops, keys, verified; /* of the step that is being taken in */
    int n_stops, n_keys, n_verified;
    const struct world *world;
};

/* ---- lines */

static void put_i64(struct buf *out, int64_t v)
{
    buf_putc(out, ' ');
    if (v < 0)
        buf_putc(out, '-');
    buf_put_u64(out, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

static void put_number(struct buf *out, double v)
{
    if (v == 0)
        buf_puts(out, " 0");
    else
        buf_printf(out, " %.17g", v);
}

static void put_key(struct recorder *r, struct buf *out, const struct kv_key *key)
{
    static const char hex[] = "0123456789abcdef";
    uint64_t v = record_hash(r->secret, key->h);
    char text[17] = " ";
    for (int i = 0; i < 16; i++)
        text[16 - i] = hex[v >> 4 * i & 15];
    buf_put(out, text, 17);
}

void record_name(struct buf *out, const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (!*name)
        buf_putc(out, '-');
    else if (!strcmp(name, "-"))
        buf_puts(out, "%2d");
    else
        for (; *name; name++) {
            if (strchr(plain, *name))
                buf_putc(out, *name);
            else
                buf_printf(out, "%%%02x", (unsigned char)*name);
        }
}

/* Nobody takes lines any more. */
static bool is_over(const struct recorder *r)
{
    return !r->window && (!r->file || record_file_over(r->file));
}

static void hand_over(struct recorder *r)
{
    size_t n = r->text.len;
    if (!n)
        return;
    r->n_bytes += n;
    r->handed_ns = r->last_ns;
    if (r->window)
        record_window_add(r->window, &(struct record_chunk){.text = r->text.data,
                                                            .n = n,
                                                            .from_ns = r->first_ns - r->base_ns,
                                                            .to_ns = r->last_ns - r->base_ns,
                                                            .n_arrived = r->n_arrived});
    r->n_arrived = 0;
    r->first_ns = r->last_ns;
    if (r->file && !record_file_over(r->file))
        record_file_give(r->file, buf_take(&r->text), n);
    else
        buf_clear(&r->text);
}

/* Begins a line. NULL: nothing is written any more. */
static struct buf *line(struct recorder *r, char kind, int64_t now_ns)
{
    if (is_over(r))
        return NULL;
    if (!r->text.len)
        r->first_ns = now_ns;
    r->last_ns = now_ns;
    buf_putc(&r->text, kind);
    put_i64(&r->text, now_ns - r->base_ns);
    return &r->text;
}

static void end_line(struct recorder *r)
{
    buf_putc(&r->text, '\n');
    if (r->text.len >= RECORD_CHUNK_BYTES)
        hand_over(r);
}

/* ---- what the engine tells */

static void put_leader(struct recorder *r, struct buf *out, const struct request_spec *s)
{
    const struct request *leader =
        s->leader && s->leader != s->tag ? request_find_tag(&r->world->requests, s->leader) : NULL;
    if (leader)
        put_i64(out, (int64_t)leader->order);
    else
        buf_puts(out, " -");
}

static void put_keys(struct recorder *r, struct buf *out, struct request *q)
{
    int n = r->with_keys && q ? q->n_tokens / KV_UNIT : 0;
    const struct kv_key *keys = n ? world_keys(r->world, q) : NULL;
    put_i64(out, n);
    for (int i = 0; i < n; i++) {
        if (i && i % RECORD_KEYS_A_LINE == 0) {
            end_line(r);
            buf_putc(out, 'k');
        }
        put_key(r, out, &keys[i]);
    }
}

static void submitted(void *ctx, int64_t now, const struct request_spec *s, struct request *q)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 'a', now);
    if (!out)
        return;
    r->n_arrived++;
    if (q)
        put_i64(out, (int64_t)q->order);
    else
        buf_puts(out, " -");
    put_i64(out, s->arrival_ns - r->base_ns);
    put_i64(out, s->n_prompt);
    put_i64(out, s->max_tokens);
    put_i64(out, s->priority);
    put_leader(r, out, s);
    put_i64(out, (s->sampling.n_prompt_logprobs >= 0) | s->open_ended << 1 | s->offline << 2 |
                     (s->choice < RECORD_MAX_CHOICES ? s->choice : 0) << 3);
    put_number(out, s->slo_ttft_ms);
    put_number(out, s->slo_tpot_ms);
    buf_putc(out, ' ');
    record_name(out, s->name);
    buf_putc(out, ' ');
    record_name(out, s->tenant);
    put_keys(r, out, q);
    end_line(r);
}

static const char *ending_word(enum ending how)
{
    static const char *const words[] = {[END_NONE] = "none",   [END_STOP] = "stop",   [END_LENGTH] = "length",
                                        [END_ABORT] = "abort", [END_ERROR] = "error", [END_REFUSED] = "refused"};
    return words[how];
}

static void cancelled(void *ctx, int64_t now, const struct request *q, enum ending how)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 'c', now);
    if (!out)
        return;
    put_i64(out, (int64_t)q->order);
    buf_putc(out, ' ');
    buf_puts(out, ending_word(how));
    end_line(r);
}

/* JSON on one line: its line ends are blanks between its parts. */
static void put_json_line(struct buf *out, const char *text, size_t n)
{
    buf_putc(out, ' ');
    for (size_t i = 0; i < n; i++)
        buf_putc(out, text[i] == '\n' || text[i] == '\r' || !text[i] ? ' ' : text[i]);
}

static void put_limits(struct buf *out, const struct limits_order *o)
{
    for (int i = 0; i < LIMIT_COUNT; i++)
        if (o->given[i])
            put_i64(out, o->values[i]);
        else
            buf_puts(out, " -");
}

static void put_policy(struct buf *out, const struct policy *p)
{
    buf_putc(out, ' ');
    record_name(out, p->name);
    buf_printf(out, " %s ", p->sha256);
}

static void put_canary(struct buf *out, const struct canary_order *o)
{
    put_policy(out, &o->policy);
    for (int i = 0; i < o->n_groups; i++)
        buf_printf(out, "%s%d", i ? "," : "", o->groups[i]);
    put_i64(out, o->for_ns);
    buf_putc(out, ' ');
    record_params(out, &o->policy);
}

static void put_prediction(struct recorder *r, int64_t now, const struct prediction *p)
{
    struct buf *out = p->is_made || p->shadow.n_asked ? line(r, 'o', now) : NULL;
    if (!out)
        return;
    buf_printf(out, " %d %d %.17g %.17g %.17g %.17g", p->is_strict, p->is_made, p->ago_s, p->window_s, p->n_requests,
               p->guessed);
    for (int i = 0; i < PREDICTED_COUNT; i++) {
        const struct predicted_change *c = &p->changes[i];
        buf_printf(out, " %d %.17g %.17g %.17g", c->n_stretches, c->change, c->least, c->most);
    }
    buf_printf(out, " %" PRIu64 " %" PRIu64 " %" PRIu64, p->shadow.n_asked, p->shadow.n_equal, p->shadow.n_failed);
    end_line(r);
}

static void ordered(void *ctx, int64_t now, const struct engine_message *m)
{
    static const char kinds[] = {
        [IN_POLICY] = 'g', [IN_PARAMS] = 'j', [IN_ROLLBACK] = 'b', [IN_RESET_PREFIX_CACHE] = 'r', [IN_DRAIN] = 'd',
        [IN_STOP] = 'x',   [IN_LIMITS] = 'l', [IN_CANARY] = 'y',   [IN_CANARY_END] = 'u'};
    struct recorder *r = ctx;
    if (m->kind == IN_POLICY)
        put_prediction(r, now, &((const struct policy *)m->payload)->predicted);
    struct buf *out = line(r, kinds[m->kind], now);
    if (!out)
        return;
    if (m->kind == IN_POLICY) {
        put_policy(out, m->payload);
        record_params(out, m->payload);
    } else if (m->kind == IN_CANARY) {
        put_canary(out, m->payload);
    } else if (m->kind == IN_PARAMS) {
        put_json_line(out, m->payload, m->n);
    } else if (m->kind == IN_LIMITS) {
        put_limits(out, m->payload);
    }
    end_line(r);
}

static void sampled(void *ctx, struct request *q, bool is_stop)
{
    struct recorder *r = ctx;
    if (is_stop) {
        put_i64(&r->stops, (int64_t)q->order);
        r->n_stops++;
    }
    if (r->with_keys && r->file &&
        q->n_tokens % KV_UNIT == 0) { /* a window is for other decisions, with other answers */
        put_i64(&r->keys, (int64_t)q->order);
        put_key(r, &r->keys, &world_keys(r->world, q)[q->n_tokens / KV_UNIT - 1]);
        r->n_keys++;
    }
}

static void verified(void *ctx, const struct request *q, const struct step_item *it, int right, bool has_ended)
{
    struct recorder *r = ctx;
    const int64_t fields[] = {(int64_t)q->order, it->source, it->drafts.n, right, has_ended};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_i64(&r->verified, fields[i]);
    r->n_verified++;
}

static void put_drafting(struct buf *out, const struct step *s)
{
    const struct drafter_time *t = step_drafting(s);
    put_i64(out, t->ns);
    for (const struct drafter_pass *p = &t->first; p; p = p == &t->first ? &t->last : NULL)
        buf_printf(out, " %d/%d %.0f %" PRId64, p->size.rows, p->size.n_logits, p->size.looked_at, p->ns);
}

static void put_ffn(struct buf *out, const struct step *s)
{
    struct ffn_cost c = step_ffn(s);
    const int64_t fields[] = {s->size.cas_layers,   c.wait_ns,          c.fetch_ns, (int64_t)c.was_bytes,
                              (int64_t)c.cas_bytes, (int64_t)c.cas_rows};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_i64(out, fields[i]);
}

static void put_layer(struct buf *out, const struct ffn_layer_times *t, int64_t from)
{
    const int64_t local[] = {t->ready, t->end};
    const int64_t was[] = {t->ready, t->begin, t->pause, t->resume, t->end, t->fetch_begin, t->fetch_end};
    const int64_t *times = t->mode == FFN_WAS ? was : local;
    int n = t->mode == FFN_WAS ? 7 : 2;
    buf_puts(out, !t->end ? " -" : t->mode == FFN_WAS ? " w" : t->mode == FFN_CAS ? " c" : " l");
    for (int i = 0; i < n && t->end; i++)
        put_i64(out, (times[i] - from) / 1000);
}

/* A line for each rank of a step that was watched. */
static void put_timelines(struct recorder *r, int64_t now, const struct step *s)
{
    struct buf *out;
    for (int i = 0; i < s->n_ranks; i++) {
        const struct ffn_timeline *t = s->parts[i].timeline;
        if (!t || !(out = line(r, 'f', now)))
            return;
        const int64_t fields[] = {
            s->group, s->ranks[i], s->size.rows, t->begin - r->base_ns, t->end - t->begin, r->world->ffn->n_layers};
        for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
            put_i64(out, fields[k]);
        for (int l = 0; l < r->world->ffn->n_layers; l++)
            put_layer(out, &t->layers[l], t->begin);
        end_line(r);
    }
}

static void stepped(void *ctx, int64_t now, const struct step *s, double predicted_ns, int failed_rank)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 's', now);
    if (out) {
        const int64_t fields[] = {
            s->group, s->posted_ns - r->base_ns, step_ns(s), (int64_t)predicted_ns, s->layout.sp, s->layout.tp};
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            put_i64(out, fields[i]);
        if (s->layout.pp > 1)
            buf_printf(out, "x%d", s->layout.pp);
        buf_printf(out, " %d/%d", s->size.rows, s->size.n_logits);
        put_i64(out, (int64_t)s->size.looked_at);
        if (failed_rank >= 0)
            put_i64(out, failed_rank);
        else
            buf_puts(out, " -");
        put_i64(out, r->n_stops);
        buf_put(out, r->stops.data, r->stops.len);
        put_i64(out, r->n_keys);
        buf_put(out, r->keys.data, r->keys.len);
        if (r->world->drafts) {
            put_i64(out, r->n_verified);
            buf_put(out, r->verified.data, r->verified.len);
            if (draft_takes_time(r->world->drafts))
                put_drafting(out, s);
        }
        if (r->world->ffn)
            put_ffn(out, s);
        end_line(r);
        if (failed_rank < 0)
            put_timelines(r, now, s);
    }
    buf_clear(&r->stops);
    buf_clear(&r->keys);
    buf_clear(&r->verified);
    r->n_stops = r->n_keys = r->n_verified = 0;
}

static void moved(void *ctx, int64_t now, const struct move *m)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 'm', now);
    if (!out)
        return;
    put_i64(out, (int64_t)m->serial);
    put_i64(out, m->posted_ns - r->base_ns);
    put_i64(out, atomic_load(&m->bytes));
    end_line(r);
}

static void replicated(void *ctx, int64_t now, const struct replica_task *t)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 'w', now);
    if (!out)
        return;
    put_i64(out, t->layer);
    put_i64(out, t->posted_ns - r->base_ns);
    put_i64(out, t->gives_up);
    put_i64(out, atomic_load(&t->rc) != 0);
    end_line(r);
}

static void resharded(void *ctx, int64_t now, const struct reshard_task *t)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 'h', now);
    if (!out)
        return;
    buf_putc(out, ' ');
    buf_printf(out, "%016" PRIx64, t->ranks);
    put_i64(out, t->posted_ns - r->base_ns);
    put_i64(out, atomic_load(&t->bytes));
    if (atomic_load(&t->failed))
        put_i64(out, atomic_load(&t->failed) - 1);
    else
        buf_puts(out, " -");
    end_line(r);
}

static void ended(void *ctx, int64_t now, const struct request *q, enum ending how)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, 'e', now);
    if (!out)
        return;
    put_i64(out, (int64_t)q->order);
    buf_putc(out, ' ');
    buf_puts(out, ending_word(how));
    put_i64(out, request_output(q));
    put_i64(out, q->n_prefix_first);
    end_line(r);
}

static void turned(void *ctx, int64_t now, const struct plan *p)
{
    struct recorder *r = ctx;
    struct buf *out = line(r, p ? 'q' : 't', now);
    if (!out)
        return;
    if (p) {
        buf_putc(out, ' ');
        record_plan(out, p);
    }
    end_line(r);
    if (now - r->handed_ns > HAND_OVER_NS)
        hand_over(r);
}

static void rests(void *ctx)
{
    hand_over(ctx);
}

static void judged(void *ctx, enum policy_hook h, enum verdict *v)
{
    struct recorder *r = ctx;
    r->n_calls++;
    if (!verdict_by_chance(*v))
        return; /* these depend on the machine; any other comes out again by itself */
    if (is_over(r))
        return;
    buf_putc(&r->text, 'v');
    put_i64(&r->text, (int64_t)r->n_calls);
    buf_printf(&r->text, " %s %s", policy_hook_name(h), verdict_name(*v));
    end_line(r);
}

static void guessed(void *ctx, const struct request *q, int most, const struct draft_guess *g)
{
    struct recorder *r = ctx;
    const int64_t fields[] = {(int64_t)r->n_calls + 1, g->source, (int64_t)q->order, most, g->n, g->match};
    if (is_over(r))
        return;
    buf_putc(&r->text, 'p');
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_i64(&r->text, fields[i]);
    if (g->score == 0)
        buf_puts(&r->text, " 0");
    else
        buf_printf(&r->text, " %.9g", (double)g->score);
    end_line(r);
}

/* ---- opening and closing */

int recorder_open(struct recorder **out, const char *path, struct record_window *window, struct err *e)
{
    struct recorder *r = mem_new(sizeof *r);
    r->window = window;
    r->witness = (struct witness){.ctx = r,
                                  .submitted = submitted,
                                  .cancelled = cancelled,
                                  .ordered = ordered,
                                  .sampled = sampled,
                                  .verified = verified,
                                  .stepped = stepped,
                                  .moved = moved,
                                  .replicated = replicated,
                                  .resharded = resharded,
                                  .ended = ended,
                                  .turned = turned,
                                  .rests = rests,
                                  .guessed = guessed,
                                  .judged = judged,
                                  .only_watches = !path};
    int rc = getrandom(r->secret, sizeof r->secret, 0) == sizeof r->secret
                 ? 0
                 : err_set(e, E_SYS, "--record: no random bytes: %s", strerror(errno));
    if (!rc && path)
        rc = record_file_open(&r->file, path, e);
    if (rc) {
        recorder_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

const struct witness *recorder_witness(struct recorder *r)
{
    return &r->witness;
}

void recorder_begin(struct recorder *r, const struct recorder_start *s, const struct engine *engine)
{
    if (!r)
        return;
    struct buf early = r->text; /* of the policy's start */
    r->text = (struct buf){0};
    r->world = engine_world(engine);
    r->base_ns = r->first_ns = r->last_ns = engine_started_ns(engine);
    r->with_keys = s->node->limits.prefix_caching;
    if (r->window) {
        record_head_node(&r->text, s, engine, r->base_ns);
        record_window_begin(r->window, buf_take(&r->text));
    }
    if (r->file) {
        record_head_node(&r->text, s, engine, r->base_ns);
        record_head_policy(&r->text, engine_policy(engine));
        size_t n = r->text.len;
        r->n_bytes += n;
        record_file_give(r->file, buf_take(&r->text), n);
    }
    buf_put(&r->text, early.data, early.len);
    buf_free(&early);
    hand_over(r);
}

void recorder_close(struct recorder *r)
{
    if (!r)
        return;
    if (r->world && line(r, 'z', r->last_ns))
        end_line(r);
    hand_over(r);
    record_file_close(r->file);
    buf_free(&r->text);
    buf_free(&r->stops);
    buf_free(&r->keys);
    buf_free(&r->verified);
    mem_free(r);
}

uint64_t recorder_bytes(const struct recorder *r)
{
    return r->n_bytes;
}
