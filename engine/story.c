#include "engine/story.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { DETAILED = 16 }; /* from so many spans on, chunks of a prompt share one */

void stories_init(struct stories *s, int keep)
{
    memset(s, 0, sizeof *s);
    s->keep = keep;
    if (keep)
        s->ended = mem_new_array((size_t)keep, sizeof(struct story *));
}

static void free_story(struct story *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_words; i++)
        mem_free(t->words[i]);
    mem_free(t->spans);
    mem_free(t);
}

void stories_free(struct stories *s)
{
    for (int i = 0; i < s->keep && s->ended; i++)
        free_story(s->ended[i]);
    mem_free(s->ended);
    memset(s, 0, sizeof *s);
}

/* Once there are as many different words as are kept, the last ones stand for all others. */
static int8_t keep_words(struct story *t, const char *words)
{
    for (int i = 0; i < t->n_words; i++)
        if (words && strcmp(t->words[i], words) == 0)
            return (int8_t)i;
    if (!words || !*words)
        return -1;
    if (t->n_words == STORY_WORDS)
        return STORY_WORDS - 1;
    t->words[t->n_words] = mem_strdup(words);
    return (int8_t)t->n_words++;
}

/* Its time counts. */
static void count(struct story *t, const struct story_span *x, int sign)
{
    int64_t *parts = t->first_token_ns ? t->after : t->ttft;
    parts[x->part] += sign * (x->to_ns - x->from_ns);
}

static bool runs(const struct story_span *x)
{
    return x->part == PART_PREFILL || x->part == PART_DECODE;
}

static void put_span(struct story *t, const struct story_span *x)
{
    if (t->n == STORY_SPANS) {
        t->spans[t->n - 1].to_ns = x->to_ns;
        t->spans[t->n - 1].mixed = true;
        return;
    }
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 8;
        t->spans = mem_resize(t->spans, (size_t)t->cap, sizeof *t->spans);
    }
    t->spans[t->n++] = *x;
}

/* The open span ends here; one that took no time was none. */
static void close_span(struct story *t, int64_t now_ns)
{
    t->now.to_ns = now_ns;
    if (now_ns == t->now.from_ns && !runs(&t->now))
        return;
    count(t, &t->now, 1);
    put_span(t, &t->now);
}

/* Steps one behind the other are one span: decodes, and chunks of a prompt once there are many. */
static bool joins(const struct story_span *x, const struct story_now *is)
{
    return x->part == is->part && x->again == is->again && x->group == is->group && layout_equal(x->layout, is->layout);
}

/* It was between two steps of decodes, and this comes: true: the next of them. */
static bool decodes_on(struct story *t, const struct story_now *is)
{
    int64_t since = t->between_ns;
    if (!since)
        return false;
    t->between_ns = 0;
    if (joins(&t->now, is)) {
        t->now.steps++;
        t->now.tokens += is->tokens;
        return true;
    }
    bool again = t->now.again;
    close_span(t, since);
    t->now = (struct story_span){.from_ns = since, .part = PART_ENGINE, .words = -1, .again = again};
    return false;
}

/* The same with a chunk behind another. */
static bool prefills_on(struct story *t, const struct story_now *is)
{
    struct story_span *x = t->n ? &t->spans[t->n - 1] : NULL;
    if (is->part != PART_PREFILL || t->n < DETAILED || t->n == STORY_SPANS || t->now.part != PART_ENGINE ||
        !joins(x, is) || x->to_ns != t->now.from_ns || x->from_ns < t->first_token_ns)
        return false;
    t->n--;
    count(t, x, -1);
    t->now = *x;
    t->now.steps++;
    t->now.tokens += is->tokens;
    return true;
}

void story_turn(struct stories *s, struct story *t, const struct story_now *is, int64_t now_ns)
{
    bool was_between = t->now.part == PART_ENGINE || t->between_ns;
    s->n_between += (is->part == PART_ENGINE) - was_between;
    if (decodes_on(t, is) || prefills_on(t, is))
        return;
    int8_t words = keep_words(t, is->words);
    if (t->now.part == is->part && t->now.again == is->again && t->now.words == words &&
        (!runs(&t->now) || is->part == PART_DECODE)) {
        bool other = is->behind && is->behind != t->now.behind;
        t->now.others += other && t->now.behind && t->now.others < UINT16_MAX;
        t->now.behind = t->now.behind ? t->now.behind : is->behind;
        return;
    }
    close_span(t, now_ns);
    t->now = (struct story_span){.from_ns = now_ns,
                                 .part = (uint8_t)is->part,
                                 .behind = is->behind,
                                 .step = is->step,
                                 .tokens = is->tokens,
                                 .steps = is->part == PART_PREFILL || is->part == PART_DECODE,
                                 .group = is->group,
                                 .layout = is->layout,
                                 .words = words,
                                 .again = is->again};
}

/* ---- what happens to a request */

void story_begin(struct stories *s, struct request *r, enum story_part first, int64_t now_ns)
{
    const struct request_spec *spec = r->spec;
    if (!s->keep || r->parent)
        return;
    struct story *t = r->story = mem_new(sizeof *t);
    t->tag = spec->tag;
    snprintf(t->name, sizeof t->name, "%s", spec->name);
    t->choice = spec->choice;
    t->n_prompt = spec->n_prompt;
    t->arrival_ns = spec->arrival_ns < now_ns ? spec->arrival_ns : now_ns;
    t->now = (struct story_span){.from_ns = t->arrival_ns, .part = PART_FRONT, .words = -1};
    s->n_open++;
    story_turn(s, t, &(struct story_now){.part = first, .behind = first == PART_SIBLING ? spec->leader : 0}, now_ns);
}

void story_hold(struct stories *s, struct request *r, int64_t now_ns)
{
    if (r->story)
        story_turn(s, r->story, &(struct story_now){.part = PART_HELD, .words = r->held_why}, now_ns);
}

void story_step_over(struct stories *s, struct request *r, int n_tokens, bool stays, int64_t now_ns)
{
    struct story *t = r->story;
    if (!t)
        return;
    if (stays) { /* only decodes follow one another unasked */
        t->now.steps++;
        t->now.tokens += n_tokens;
        return;
    }
    if (t->now.part == PART_DECODE) {
        t->between_ns = now_ns;
        s->n_between++;
        return;
    }
    story_turn(s, t, &(struct story_now){.part = PART_ENGINE, .again = r->n_preempted > 0}, now_ns);
}

/* What comes is counted apart: the open span, which begins now, is of it. */
void story_first_token(struct stories *s, struct request *r, int64_t now_ns)
{
    struct story *t = r->story;
    if (!t)
        return;
    if (t->now.from_ns < now_ns) { /* it takes part in the step behind this one */
        struct story_span rest = t->now;
        close_span(t, now_ns);
        rest.from_ns = now_ns;
        rest.part = PART_DECODE;
        rest.steps = rest.tokens = 0;
        t->now = rest;
    }
    t->first_token_ns = now_ns;
    s->n_first++;
    for (int i = 0; i < PART_COUNT; i++)
        s->ttft[i] += t->ttft[i];
}

void story_end(struct stories *s, struct request *r, enum ending how, int64_t now_ns)
{
    struct story *t = r->story;
    if (!t)
        return;
    r->story = NULL;
    s->n_open--;
    story_turn(s, t, &(struct story_now){.part = PART_ENGINE}, now_ns); /* from the last step on */
    s->n_between--;
    close_span(t, now_ns);
    t->how = how;
    t->end_ns = now_ns;
    t->n_output = request_output(r);
    t->n_cached = r->n_prefix_first;
    t->n_preempted = r->n_preempted;
    if (t->n)
        t->spans = mem_resize(t->spans, (size_t)t->n, sizeof *t->spans);
    t->cap = t->n;
    struct story **place = &s->ended[s->n_ended++ % (uint64_t)s->keep];
    free_story(*place);
    *place = t;
}

const struct story *stories_find(const struct stories *s, const struct world *w, uint64_t tag)
{
    const struct request *r = request_find_tag(&w->requests, tag);
    if (r)
        return r->story;
    for (uint64_t i = s->n_ended; i > 0 && s->n_ended - i < (uint64_t)s->keep; i--)
        if (s->ended[(i - 1) % (uint64_t)s->keep]->tag == tag)
            return s->ended[(i - 1) % (uint64_t)s->keep];
    return NULL;
}

const char *story_part_name(enum story_part p)
{
    static const char *const names[PART_COUNT] = {
        [PART_FRONT] = "front",        [PART_ENGINE] = "engine",       [PART_PREFILL] = "prefill",
        [PART_DECODE] = "decode",      [PART_STEP] = "step_under_way", [PART_SEAT] = "no_seat",
        [PART_KV] = "no_kv",           [PART_BUDGET] = "no_budget",    [PART_SWITCH] = "switch",
        [PART_CLOSED] = "closed",      [PART_NO_GROUP] = "no_group",   [PART_MOVE] = "move",
        [PART_SWAP] = "swap",          [PART_HELD] = "held",           [PART_SIBLING] = "sibling",
        [PART_PASSED] = "passed_over", [PART_BEHIND] = "behind",       [PART_ROUTED] = "routed",
        [PART_IDLE] = "policy_idle",   [PART_PREEMPTED] = "preempted", [PART_UNEXPLAINED] = "unexplained"};
    return p < PART_COUNT ? names[p] : "unknown";
}

const char *story_ending_name(enum ending how)
{
    static const char *const names[] = {[END_NONE] = "none",   [END_STOP] = "stop",   [END_LENGTH] = "length",
                                        [END_ABORT] = "abort", [END_ERROR] = "error", [END_REFUSED] = "refused"};
    return names[how];
}
