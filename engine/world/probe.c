#include "engine/world/probe.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/world/world.h"

/* ---- what is said */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_wordy(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (unsigned char)c >= 128;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

bool thinking_set(struct thinking *t, const char *end, const char *text, const int32_t *suffix, int n_suffix)
{
    size_t n = strlen(end);
    t->depth = 0;
    for (const char *c = text; *c && t->depth >= 0; c++)
        t->depth += (*c == '{') - (*c == '}');
    if (!n || n > PROBE_END_BYTES || n_suffix < 1 || n_suffix > PROBE_MOST_SUFFIX || t->depth < 0)
        return false;
    memcpy(t->end, end, n + 1);
    t->n_end = (int)n;
    memcpy(t->suffix, suffix, (size_t)n_suffix * sizeof *suffix);
    t->n_suffix = n_suffix;
    return true;
}

/* The marker need not begin where a token does. */
void probe_hear(const struct thinking *t, struct request *r, int32_t token)
{
    struct probe_book *b = r->probes;
    struct buf text = {0};
    if (b->closed)
        return;
    t->piece(t->ctx, token, &text);
    for (size_t i = 0; i < text.len && !b->closed; i++) {
        if (b->n_tail == t->n_end)
            memmove(b->tail, b->tail + 1, (size_t)--b->n_tail);
        b->tail[b->n_tail++] = text.data[i];
        b->closed = b->n_tail == t->n_end && memcmp(b->tail, t->end, (size_t)t->n_end) == 0;
    }
    buf_free(&text);
}

static bool ends_answer(const struct thinking *t, struct probe_said *s, char c)
{
    if (!t->depth)
        return c == '\n';
    s->depth += (c == '{') - (c == '}');
    return s->depth < t->depth;
}

void probe_say(const struct thinking *t, struct probe_said *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && s->n < PROBE_BYTES; i++) {
        if (!s->complete && ends_answer(t, s, bytes[i])) {
            s->complete = true;
            s->n_answer = s->n;
        }
        s->text[s->n++] = bytes[i];
    }
}

const struct probe_said *probe_last(const struct request *r, int64_t k)
{
    const struct probe_book *b = r->probes;
    if (!b || k < 1 || k > PROBE_WINDOW || k > b->n_said)
        return NULL;
    return &b->said[(b->n_said - k) % PROBE_WINDOW];
}

int probe_answer(const struct probe_said *s, char out[PROBE_BYTES + 1])
{
    int n = 0;
    for (int i = 0; s->complete && i < s->n_answer; i++)
        if (!is_space(s->text[i]))
            out[n++] = s->text[i];
    out[n] = 0;
    return n;
}

/* The bytes of the text from `at` on that these words match; 0: they do not. */
static int match_words(const struct probe_said *s, int at, const char *words, size_t n)
{
    int i = at;
    for (size_t k = 0; k < n; k++) {
        if (i >= s->n)
            return 0;
        if (words[k] != ' ') {
            if (lower(s->text[i++]) != lower(words[k]))
                return 0;
            continue;
        }
        if (!is_space(s->text[i]))
            return 0;
        while (i < s->n && is_space(s->text[i]))
            i++;
    }
    return i - at;
}

bool probe_has_words(const struct probe_said *s, const char *words, size_t n)
{
    for (int at = 0; at < s->n && n; at++) {
        int len = match_words(s, at, words, n);
        bool begins = !at || !is_wordy(s->text[at - 1]) || !is_wordy(words[0]);
        bool ends = at + len == s->n || !is_wordy(s->text[at + len]) || !is_wordy(words[n - 1]);
        if (len && begins && ends)
            return true;
    }
    return false;
}

/* ---- who may be asked */

static const char *no_thinking(const struct world *w, const struct request *r)
{
    if (!w->thinking)
        return "nothing is probed here: the model has no thinking that is known to end, there is no prefix cache, or "
               "steps are simulated or recorded";
    if (!r)
        return "no such request";
    if (!r->probes)
        return "the request did not ask for an early stop";
    if (r->probes->closed)
        return "its thinking is over";
    if (r->state != REQ_RUNNING || r->finishing || !request_output(r))
        return "the request is not running, or has said nothing yet";
    return NULL;
}

const char *probe_refusal(const struct world *w, const struct request *r)
{
    const char *why = no_thinking(w, r);
    if (why)
        return why;
    int n = r->n_tokens + w->thinking->n_suffix + PROBE_TOKENS;
    if (r->probes->under_way)
        return "a probe of the request is under way";
    if (n > w->limits.max_model_len || kv_blocks_for(&w->kv, r->place, n) > w->kv.n_blocks)
        return "the model's length, or the group's KV cache, has no room for a probe";
    if (w->requests.n_live >= MAX_REQUESTS)
        return "the server holds as many requests as it can";
    return NULL;
}

const char *conclude_refusal(const struct world *w, const struct request *r)
{
    const char *why = no_thinking(w, r);
    if (why)
        return why;
    if (request_output(r) + w->thinking->n_suffix >= r->spec->max_tokens)
        return "max_tokens leaves no room for an answer";
    if (r->n_tokens + w->thinking->n_suffix >= w->limits.max_model_len)
        return "the model's length leaves no room for an answer";
    return NULL;
}

/* ---- the side request */

static int32_t *copy_ids(const int32_t *ids, int n)
{
    int32_t *copy = mem_new_array((size_t)(n ? n : 1), sizeof *copy);
    if (n)
        memcpy(copy, ids, (size_t)n * sizeof *ids);
    return copy;
}

/* Drawn as the paper draws, by the parent's seed and where it is: the same each time. */
static struct sampling probe_sampling(const struct request *r)
{
    static const uint64_t APART = 0x50b35eed00000000; /* from the parent's own draws */
    return (struct sampling){.temperature = 0.6f,
                             .top_p = 0.95f,
                             .repetition_penalty = 1,
                             .seed = rng_at(r->spec->sampling.seed ^ APART, (uint64_t)request_output(r)),
                             .n_logprobs = -1,
                             .n_prompt_logprobs = -1};
}

static struct request_spec *probe_spec(struct world *w, const struct request *r)
{
    const struct thinking *t = w->thinking;
    const struct request_spec *of = r->spec;
    struct request_spec *s = request_spec_new();
    s->tag = PROBE_TAG | ++w->n_probes_made;
    snprintf(s->name, sizeof s->name, "%.50s probe", of->name);
    memcpy(s->tenant, of->tenant, sizeof s->tenant);
    memcpy(s->salt, of->salt, sizeof s->salt);
    s->priority = of->priority;
    s->offline = of->offline;
    s->arrival_ns = of->arrival_ns;
    s->n_prompt = r->n_tokens + t->n_suffix;
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof *s->prompt);
    memcpy(s->prompt, r->tokens, (size_t)r->n_tokens * sizeof *s->prompt);
    memcpy(s->prompt + r->n_tokens, t->suffix, (size_t)t->n_suffix * sizeof *s->prompt);
    s->max_tokens = PROBE_TOKENS;
    s->stop_ids = copy_ids(of->stop_ids, of->n_stop_ids);
    s->n_stop_ids = of->n_stop_ids;
    s->sampling = probe_sampling(r);
    return s;
}

struct request *world_probe(struct world *w, struct request *r, int64_t now_ns)
{
    ASSERT(!probe_refusal(w, r));
    struct request *probe = world_add_probe(w, probe_spec(w, r), r, now_ns);
    probe->said = mem_new(sizeof *probe->said);
    probe->said->depth = w->thinking->depth;
    r->probes->under_way = probe->id;
    r->probes->asked_at = request_output(r);
    metrics_add(w->metrics, C_PROBES, 1);
    return probe;
}

bool probe_is_over(const struct world *w, const struct request *probe)
{
    const struct request *r = request_find(&w->requests, probe->parent);
    if (!r || r->finishing || r->state != REQ_RUNNING || !r->probes || r->probes->closed)
        return true;
    if (probe->state == REQ_RUNNING)
        return probe->group != r->group;
    return probe->n_preempted || request_output(r) - r->probes->asked_at > PROBE_LATE;
}

void probe_end(struct world *w, struct request *probe, bool by_itself)
{
    struct request *r = request_find(&w->requests, probe->parent);
    if (!r || !r->probes)
        return;
    ASSERT(r->probes->under_way == probe->id);
    r->probes->under_way = 0;
    if (by_itself)
        r->probes->said[r->probes->n_said++ % PROBE_WINDOW] = *probe->said;
}
