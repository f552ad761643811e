/* Stories as JSON. Times are nanoseconds from the request's arrival on; parts that took no time are left out. */
#include <inttypes.h>
#include <string.h>

#include "engine/story.h"

enum { MOST_FOUND = 64, GIVEN_CHARS = 37, HEX_CHARS = 16 };

/* The i-th story: live ones by slot, then those that ended, the newest first. NULL: none in this slot. */
static const struct story *story_at(const struct stories *s, const struct world *w, int i)
{
    int live = w->requests.n_slots;
    if (i < live)
        return w->requests.slots[i] ? w->requests.slots[i]->story : NULL;
    return s->ended[(s->n_ended - 1 - (uint64_t)(i - live)) % (uint64_t)s->keep];
}

static int n_stories(const struct stories *s, const struct world *w)
{
    int ended = s->n_ended < (uint64_t)s->keep ? (int)s->n_ended : s->keep;
    return s->keep ? w->requests.n_slots + ended : 0;
}

/* Clients' own words come with sixteen digits of the engine's behind them, so that they are unique, and cut. */
static bool is_word(const char *name, const char *word, size_t n)
{
    size_t kept = n < GIVEN_CHARS ? n : GIVEN_CHARS, all = strlen(name);
    return all == kept + 1 + HEX_CHARS && strncmp(name, word, kept) == 0 && name[kept] == '-' &&
           strspn(name + kept + 1, "0123456789abcdef") == HEX_CHARS;
}

/* The answer's id, the name in logs, or what came back as X-Request-Id. */
static bool is_called(const struct story *t, const char *id, size_t n)
{
    const char *dash = strchr(t->name, '-'), *own = dash ? dash + 1 : t->name;
    size_t kind = (size_t)(own - t->name);
    if ((strlen(t->name) == n && strncmp(t->name, id, n) == 0) || (strlen(own) == n && strncmp(own, id, n) == 0))
        return true;
    bool same_kind = n > kind && strncmp(t->name, id, kind) == 0;
    return is_word(own, id, n) || (same_kind && is_word(own, id + kind, n - kind));
}

/* ---- one story */

static void put_layout(struct buf *out, struct layout l)
{
    buf_printf(out, ",\"layout\":{\"sp\":%d,\"tp\":%d,\"pp\":%d}", l.sp, l.tp, l.pp);
}

static void put_behind(const struct stories *s, const struct world *w, const struct story_span *x, struct buf *out)
{
    const struct story *of = x->behind ? stories_find(s, w, x->behind) : NULL;
    if (!x->behind)
        return;
    buf_puts(out, ",\"behind\":");
    if (of)
        buf_put_json(out, of->name, strlen(of->name));
    else
        buf_puts(out, "null"); /* nobody remembers it */
    if (x->others)
        buf_printf(out, ",\"others\":%d", x->others);
}

static void put_span(const struct stories *s, const struct world *w, const struct story *t, const struct story_span *x,
                     struct buf *out)
{
    buf_printf(out, "{\"part\":\"%s\",\"from_ns\":%" PRId64 ",\"to_ns\":%" PRId64, story_part_name(x->part),
               x->from_ns - t->arrival_ns, x->to_ns - t->arrival_ns);
    if (x->step)
        buf_printf(out, ",\"step\":%" PRIu64, x->step);
    if (x->steps) {
        buf_printf(out, ",\"steps\":%d,\"tokens\":%d,\"group\":%d", x->steps, x->tokens, x->group);
        put_layout(out, x->layout);
    }
    if (x->words >= 0) {
        buf_puts(out, ",\"words\":");
        buf_put_json(out, t->words[x->words], strlen(t->words[x->words]));
    }
    put_behind(s, w, x, out);
    if (x->again)
        buf_puts(out, ",\"again\":true");
    if (x->mixed)
        buf_puts(out, ",\"mixed\":true");
    buf_putc(out, '}');
}

static void put_spans(const struct stories *s, const struct world *w, const struct story *t, int64_t now_ns,
                      struct buf *out)
{
    buf_puts(out, ",\"spans\":[");
    for (int i = 0; i < t->n; i++) {
        buf_puts(out, i ? "," : "");
        put_span(s, w, t, &t->spans[i], out);
    }
    struct story_span open = t->now;
    open.to_ns = now_ns;
    if (!t->end_ns) {
        buf_puts(out, t->n ? "," : "");
        put_span(s, w, t, &open, out);
    }
    buf_putc(out, ']');
}

static void put_parts(struct buf *out, const char *name, const int64_t *parts, const struct story_span *open)
{
    bool any = false;
    buf_printf(out, ",\"%s\":{", name);
    for (int i = 0; i < PART_COUNT; i++) {
        int64_t ns = parts[i] + (open && open->part == i ? open->to_ns - open->from_ns : 0);
        if (!ns)
            continue;
        buf_printf(out, "%s\"%s\":%" PRId64, any ? "," : "", story_part_name((enum story_part)i), ns);
        any = true;
    }
    buf_putc(out, '}');
}

static void put_story(const struct world *w, const struct story *t, int64_t now_ns, struct buf *out)
{
    const struct request *r = t->end_ns ? NULL : request_find_tag(&w->requests, t->tag);
    struct story_span open = t->now;
    open.to_ns = now_ns;
    buf_puts(out, "{\"id\":");
    buf_put_json(out, t->name, strlen(t->name));
    buf_printf(out, ",\"choice\":%d,\"state\":\"%s\",\"ending\":", t->choice,
               !r                        ? "ended"
               : r->state == REQ_WAITING ? "waiting"
                                         : "running");
    buf_printf(out, t->end_ns ? "\"%s\"" : "null", story_ending_name(t->how));
    buf_printf(out, ",\"prompt_tokens\":%d,\"cached_tokens\":%d,\"output_tokens\":%d,\"preempted\":%d", t->n_prompt,
               r ? r->n_prefix_first : t->n_cached, r ? request_output(r) : t->n_output,
               r ? r->n_preempted : t->n_preempted);
    buf_puts(out, ",\"ttft_ns\":");
    if (t->first_token_ns)
        buf_printf(out, "%" PRId64, t->first_token_ns - t->arrival_ns);
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"age_ns\":%" PRId64, (t->end_ns ? t->end_ns : now_ns) - t->arrival_ns);
    put_parts(out, "ttft", t->ttft, r && !t->first_token_ns ? &open : NULL);
    put_parts(out, "after", t->after, r && t->first_token_ns ? &open : NULL);
}

bool stories_put_id(const struct stories *s, const struct world *w, const char *id, int64_t now_ns, struct buf *out)
{
    size_t n = strlen(id), stem = n;
    int found = 0, all = n_stories(s, w), choice = -1;
    for (int pass = 0; pass < 2 && !found; pass++) {
        for (int i = 0; i < all && found < MOST_FOUND; i++) {
            const struct story *t = story_at(s, w, i);
            if (!t || !is_called(t, id, stem) || (choice >= 0 && t->choice != choice))
                continue;
            buf_puts(out, found++ ? "," : "{\"requests\":[");
            put_story(w, t, now_ns, out);
            put_spans(s, w, t, now_ns, out);
            buf_putc(out, '}');
        }
        const char *dash = strrchr(id, '-');
        if (!dash || !dash[1] || strspn(dash + 1, "0123456789") != strlen(dash + 1) || strlen(dash) > 5)
            break;
        stem = (size_t)(dash - id);
        choice = 0;
        for (const char *c = dash + 1; *c; c++)
            choice = choice * 10 + (*c - '0');
    }
    if (found)
        buf_puts(out, "]}");
    return found > 0;
}

static int64_t ttft_of(const struct story *t)
{
    return t && t->first_token_ns ? t->first_token_ns - t->arrival_ns : -1;
}

void stories_put_slowest(const struct stories *s, const struct world *w, int n, int64_t now_ns, struct buf *out)
{
    const struct story *best[STORY_ASKED_MOST];
    int k = 0, all = n_stories(s, w);
    n = n < STORY_ASKED_MOST ? n : STORY_ASKED_MOST;
    for (int i = 0; i < all; i++) {
        const struct story *t = story_at(s, w, i);
        if (ttft_of(t) < 0 || n < 1 || (k == n && ttft_of(t) <= ttft_of(best[k - 1])))
            continue;
        int at = k < n ? k++ : n - 1;
        for (; at > 0 && ttft_of(best[at - 1]) < ttft_of(t); at--)
            best[at] = best[at - 1];
        best[at] = t;
    }
    buf_printf(out, "{\"kept\":%d,\"requests\":[", s->keep);
    for (int i = 0; i < k; i++) {
        buf_puts(out, i ? "," : "");
        put_story(w, best[i], now_ns, out);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}
