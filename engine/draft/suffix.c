#include "engine/draft/suffix.h"

#include <string.h>

#include "engine/base/latch.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"
#include "engine/world/request.h"

enum {
    SUFFIXES_A_TOKEN = 3,   /* that go into a running request's tree for each of its new tokens */
    INLINE_TOKENS = 64,     /* a tree of so many is made at once */
    STALE_ARRIVALS = 256,   /* nobody has asked for guesses while so many requests came: none are made any more */
    MOST_PENDING = 1 << 20, /* tokens on their way into the tenants' trees; what is more is left out */
    BYTES_A_TOKEN = 128,
};

/* What a request has: its own text. With the thread while it is being made. */
struct own {
    struct suffix_tree *tree;
    uint32_t root;
    int n_tokens;            /* of the request that are in it */
    int n_charged;           /* of the bound */
    int32_t *text;           /* to begin with */
    int matched, matched_at; /* how long a match others had, and of how many of its tokens that was the end */
    bool made, left;         /* left: its request has ended */
    bool asked;              /* a guess was asked for since the request said something */
};

/* One kind of message for both ways. */
enum errand { MAKE, DROP, REMEMBER, EVICT, SAVE, LOAD, STOP };

/* What became of a SAVE or LOAD, to who waits for it. */
struct outcome {
    struct suffix_file_count count;
    struct err err; /* code 0: done */
};

struct message {
    enum errand what;
    struct own *own;
    char *tenant;    /* REMEMBER */
    int32_t *tokens; /* the same */
    bool asked;      /* SAVE, LOAD: somebody waits for an outcome */
    int n;
};

struct suffix {
    struct suffix_opts opts;
    struct thread *thread;
    struct queue *to, *back, *outcomes;
    struct monitor *asking; /* one at a time */
    /* the engine's */
    int64_t n_own, n_pending; /* tokens */
    int n_out;                /* messages that come back */
    int64_t unasked;          /* requests that came since a policy asked */
    /* shared */
    struct latch lock;
    struct suffix_cache *cache;
};

/* ---- the thread */

struct loading {
    struct suffix *s;
    struct suffix_file_count count;
};

static void drop_own(struct own *o)
{
    suffix_tree_free(o->tree);
    mem_free(o->text);
    mem_free(o);
}

static void make(struct own *o)
{
    o->tree = suffix_tree_new();
    o->root = suffix_tree_root(o->tree);
    suffix_tree_begin(o->tree, o->root);
    suffix_tree_append(o->tree, o->text, o->n_tokens);
    mem_free(o->text);
    o->text = NULL;
}

static bool next_slice(struct suffix *s)
{
    latch_wait(&s->lock);
    bool more = suffix_cache_work(s->cache);
    latch_release(&s->lock);
    return more;
}

static void take(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    struct suffix *s = ctx;
    latch_wait(&s->lock);
    suffix_cache_add(s->cache, tenant, tokens, n);
    latch_release(&s->lock);
    while (next_slice(s))
        ;
}

static void remember(struct suffix *s, const struct message *m)
{
    take(s, m->tenant, m->tokens, m->n);
    mem_free(m->tenant);
    mem_free(m->tokens);
}

static void empty(struct suffix *s)
{
    latch_wait(&s->lock);
    suffix_cache_empty(s->cache);
    latch_release(&s->lock);
    while (next_slice(s))
        ;
}

static void count_and_take(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    struct loading *l = ctx;
    l->count.sequences++;
    l->count.tokens += n;
    take(l->s, tenant, tokens, n);
}

static int load(struct suffix *s, struct suffix_file_count *count, struct err *e)
{
    TRY(suffix_file_read(s->opts.file, &s->opts.vocabulary, NULL, e));
    struct loading l = {.s = s};
    empty(s);
    int rc = suffix_file_read(s->opts.file, &s->opts.vocabulary, &(struct suffix_reader){count_and_take, &l}, e);
    *count = l.count;
    return rc;
}

/* This thread alone changes the cache, so it may read it without the lock. */
static void move_file(struct suffix *s, const struct message *m)
{
    struct outcome o = {0};
    if (m->what == SAVE)
        suffix_file_write(s->opts.file, &s->opts.vocabulary, s->cache, &o.count, &o.err);
    else
        load(s, &o.count, &o.err);
    if (m->asked)
        queue_post(s->outcomes, &o);
    else if (o.err.code)
        log_error("draft", "%s", o.err.text);
}

static void set_rule(struct suffix *s, enum draft_evict rule)
{
    latch_wait(&s->lock);
    suffix_cache_set_rule(s->cache, rule);
    latch_release(&s->lock);
}

static void work(void *arg)
{
    struct suffix *s = arg;
    struct message m;
    for (m.what = MAKE; m.what != STOP;) {
        queue_wait(s->to, -1);
        if (!queue_take(s->to, &m))
            continue;
        if (m.what == MAKE)
            make(m.own);
        else if (m.what == DROP)
            drop_own(m.own);
        else if (m.what == REMEMBER)
            remember(s, &m);
        else if (m.what == EVICT)
            set_rule(s, (enum draft_evict)m.n);
        else if (m.what == SAVE || m.what == LOAD)
            move_file(s, &m);
        if (m.what == MAKE || m.what == REMEMBER || m.what == EVICT)
            queue_post(s->back, &m);
    }
}

/* ---- the engine's side */

static void post(struct suffix *s, struct message m)
{
    s->n_out += m.what != DROP;
    queue_post(s->to, &m);
}

static void begin_own(struct suffix *s, const struct request *r, void **note)
{
    struct own *o = *note = mem_new(sizeof *o);
    if ((s->n_own + r->n_tokens) * BYTES_A_TOKEN > (int64_t)s->opts.bytes)
        return; /* it does without */
    o->n_tokens = o->n_charged = r->n_tokens;
    s->n_own += o->n_charged;
    o->text = mem_new_array((size_t)r->n_tokens, sizeof *o->text);
    memcpy(o->text, r->tokens, (size_t)r->n_tokens * sizeof *o->text);
    if (r->n_tokens > INLINE_TOKENS) {
        post(s, (struct message){.what = MAKE, .own = o});
        return;
    }
    make(o);
    o->made = true;
}

static void let_go(struct suffix *s, struct own *o)
{
    s->n_own -= o->n_charged;
    post(s, (struct message){.what = DROP, .own = o});
}

static void take_back(struct suffix *s)
{
    struct message m;
    while (queue_take(s->back, &m)) {
        s->n_out--;
        if (m.what == REMEMBER)
            s->n_pending -= m.n;
        if (m.what != MAKE)
            continue;
        m.own->made = true;
        if (m.own->left)
            let_go(s, m.own);
    }
}

static void begin(void *ctx, const struct request *r, void **note)
{
    struct suffix *s = ctx;
    take_back(s);
    if (s->unasked++ < STALE_ARRIVALS)
        begin_own(s, r, note);
}

static void send_text(struct suffix *s, const struct request *r)
{
    int from = s->opts.prompts ? 0 : r->spec->n_prompt, to = s->opts.no_outputs ? r->spec->n_prompt : r->n_tokens;
    struct message m = {.what = REMEMBER, .n = to - from};
    if (m.n < 2 || s->n_pending + m.n > MOST_PENDING)
        return;
    m.tenant = mem_strdup(r->spec->tenant);
    m.tokens = mem_new_array((size_t)m.n, sizeof *m.tokens);
    memcpy(m.tokens, r->tokens + from, (size_t)m.n * sizeof *m.tokens);
    s->n_pending += m.n;
    post(s, m);
}

static void end(void *ctx, const struct request *r, void *note)
{
    struct suffix *s = ctx;
    struct own *o = note;
    if (!o)
        return;
    take_back(s);
    send_text(s, r);
    o->left = true;
    if (o->made)
        let_go(s, o);
    else if (!o->n_charged)
        mem_free(o);
}

/* Tokens that came since, into its own tree. */
static void catch_up(struct suffix *s, struct own *o, const struct request *r)
{
    int n = r->n_tokens - o->n_tokens;
    suffix_tree_append_some(o->tree, r->tokens + o->n_tokens, n, SUFFIXES_A_TOKEN * n);
    o->n_tokens += n;
    o->n_charged += n;
    s->n_own += n;
}

/* Who was asked about in the last step will be in the next one. */
static void said(void *ctx, const struct request *r, void *note)
{
    struct own *o = note;
    if (o->made && o->asked)
        catch_up(ctx, o, r);
    o->asked = false;
}

static void guess_by_others(struct suffix *s, const struct request *r, struct suffix_want want, struct suffix_guess *g)
{
    if (!latch_try(&s->lock))
        return;
    suffix_cache_guess(s->cache, r->spec->tenant, r->tokens, r->n_tokens, want, g);
    latch_release(&s->lock);
}

static void guess_shape(struct suffix *s, const struct request *r, void **note, struct suffix_want want,
                        struct draft_guess *out)
{
    struct suffix_guess mine, others;
    mine.n = others.n = 0;
    s->unasked = 0;
    take_back(s);
    if (!*note)
        begin_own(s, r, note);
    struct own *o = *note;
    o->asked = true;
    if (o->made) {
        catch_up(s, o, r);
        suffix_tree_guess_own(o->tree, &want, &mine);
    }
    want.hint = o->matched + r->n_tokens - o->matched_at; /* as long as it was, and what came since */
    guess_by_others(s, r, want, &others);
    o->matched = others.n ? others.match : 0;
    o->matched_at = r->n_tokens;
    const struct suffix_guess *best = others.n && (!mine.n || others.score > mine.score) ? &others : &mine;
    out->n = best->n;
    if (!best->n)
        return;
    out->match = best->match;
    out->score = best->score;
    out->tree = want.tree;
    memcpy(out->tokens, best->tokens, (size_t)best->n * sizeof *out->tokens);
    memcpy(out->parents, best->parents, (size_t)best->n * sizeof *out->parents);
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *out)
{
    struct suffix *s = ctx;
    guess_shape(s, r, note, (struct suffix_want){.most = most, .min_share = s->opts.min_share}, out);
}

static void guess_tree(void *ctx, const struct request *r, void **note, int most, struct draft_guess *out)
{
    struct suffix *s = ctx;
    guess_shape(s, r, note, (struct suffix_want){.most = most, .min_share = s->opts.min_share, .tree = true}, out);
}

static void evict(void *ctx, enum draft_evict rule)
{
    post(ctx, (struct message){.what = EVICT, .n = (int)rule});
}

void suffix_source(struct suffix *s, struct draft_source *to)
{
    *to = (struct draft_source){.name = "suffix",
                                .guess = guess,
                                .guess_tree = guess_tree,
                                .begin = begin,
                                .said = said,
                                .end = end,
                                .evict = evict,
                                .ctx = s};
}

/* A wrong file, or one that could not be written at the end, is told at once; the trees are made beside. */
static int look_at_file(struct suffix *s, struct err *e)
{
    struct err why = {0};
    if (!s->opts.file)
        return 0;
    int rc = suffix_file_read(s->opts.file, &s->opts.vocabulary, NULL, &why);
    if (rc == E_NOTFOUND)
        return suffix_file_write(s->opts.file, &s->opts.vocabulary, s->cache, &(struct suffix_file_count){0}, e);
    if (rc)
        return err_set(e, rc, "%s", why.text);
    queue_post(s->to, &(struct message){.what = LOAD});
    return 0;
}

int suffix_open(struct suffix **out, const struct suffix_opts *o, struct err *e)
{
    struct suffix *s = mem_new(sizeof *s);
    s->opts = *o;
    s->opts.min_share = o->min_share > 0 ? o->min_share : 0.1f;
    s->unasked = STALE_ARRIVALS;
    s->to = queue_create(sizeof(struct message), 0, false);
    s->back = queue_create(sizeof(struct message), 0, false);
    s->outcomes = queue_create(sizeof(struct outcome), 0, false);
    s->asking = monitor_new();
    s->cache = suffix_cache_new(o->bytes);
    int rc = look_at_file(s, e);
    if (!rc)
        rc = thread_start(&s->thread, "suffix", work, s, e);
    if (rc)
        suffix_close(s);
    else
        *out = s;
    return rc;
}

static int ask(struct suffix *s, enum errand what, struct suffix_file_count *count, struct err *e)
{
    struct outcome o;
    if (!s->opts.file)
        return err_set(e, E_UNSUPPORTED, "there is no file for it: --draft-file names one");
    monitor_lock(s->asking);
    queue_post(s->to, &(struct message){.what = what, .asked = true});
    queue_wait(s->outcomes, -1);
    queue_take(s->outcomes, &o);
    monitor_unlock(s->asking);
    *count = o.count;
    return o.err.code ? err_set(e, o.err.code, "%s", o.err.text) : 0;
}

int suffix_save(struct suffix *s, struct suffix_file_count *count, struct err *e)
{
    return ask(s, SAVE, count, e);
}

int suffix_load(struct suffix *s, struct suffix_file_count *count, struct err *e)
{
    return ask(s, LOAD, count, e);
}

void suffix_close(struct suffix *s)
{
    struct message m = {.what = STOP};
    if (!s)
        return;
    if (s->thread) {
        queue_post(s->to, &m);
        thread_join(s->thread);
    }
    while (queue_take(s->back, &m))
        if (m.what == MAKE)
            drop_own(m.own);
    queue_destroy(s->to);
    queue_destroy(s->back);
    queue_destroy(s->outcomes);
    suffix_cache_free(s->cache);
    monitor_free(s->asking);
    mem_free(s);
}

void suffix_settle(struct suffix *s)
{
    while (s->n_out) {
        queue_wait(s->back, 1);
        take_back(s);
    }
}

struct suffix_cache_stats suffix_stats(struct suffix *s)
{
    latch_wait(&s->lock);
    struct suffix_cache_stats x = suffix_cache_stats(s->cache);
    latch_release(&s->lock);
    return x;
}
