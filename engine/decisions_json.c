/* Decisions as JSON. Names of requests are as stories know them; a request that nobody knows any more is null. */
#include <inttypes.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/decisions.h"

struct writer {
    const struct decisions *d;
    struct map names; /* tag -> const struct story * */
    int64_t began_ns;
    struct buf *out;
};

static void gather_names(struct writer *k, const struct stories *s, const struct world *w)
{
    map_init(&k->names);
    for (int i = 0; i < s->keep && (uint64_t)i < s->n_ended; i++)
        map_set(&k->names, s->ended[i]->tag, (uintptr_t)s->ended[i]);
    for (int i = 0; i < w->requests.n_slots; i++)
        if (w->requests.slots[i] && w->requests.slots[i]->story)
            map_set(&k->names, w->requests.slots[i]->spec->tag, (uintptr_t)w->requests.slots[i]->story);
}

static void put_name(struct writer *k, uint64_t tag)
{
    uint64_t at = 0;
    if (!map_find(&k->names, tag, &at)) {
        buf_puts(k->out, "null");
        return;
    }
    const char *name = ((const struct story *)(uintptr_t)at)->name;
    buf_put_json(k->out, name, strlen(name));
}

static void put_groups(struct writer *k, const struct decision_group *g, int n)
{
    buf_puts(k->out, ",\"groups\":[");
    for (int i = 0; i < n; i++) {
        buf_printf(k->out,
                   "%s{\"id\":%d,\"layout\":{\"sp\":%d,\"tp\":%d,\"pp\":%d},\"rows\":%d,\"decodes\":%d,\"starts\":%d,"
                   "\"drafts\":%d",
                   i ? "," : "", g[i].id, g[i].sp, g[i].tp, g[i].pp, g[i].rows, g[i].decodes, g[i].starts, g[i].drafts);
        if (g[i].steps)
            buf_printf(k->out, ",\"steps\":%d,\"predicted_ns\":%" PRId64 ",\"measured_ns\":%" PRId64, g[i].steps,
                       g[i].predicted_ns, g[i].measured_ns);
        buf_putc(k->out, '}');
    }
    buf_putc(k->out, ']');
}

static void put_chunks(struct writer *k, const struct decision_chunk *c, int n, const struct decision_group *g)
{
    buf_puts(k->out, ",\"chunks\":[");
    for (int i = 0; i < n; i++) {
        buf_printf(k->out, "%s{\"request\":", i ? "," : "");
        put_name(k, c[i].tag);
        buf_printf(k->out, ",\"group\":%d,\"tokens\":%d%s}", g[c[i].group].id, c[i].tokens,
                   c[i].starts ? ",\"starts\":true" : "");
    }
    buf_putc(k->out, ']');
}

static void put_verbs(struct writer *k, const struct decision_verb *v, int n)
{
    buf_puts(k->out, ",\"verbs\":[");
    for (int i = 0; i < n; i++) {
        buf_printf(k->out, "%s{\"verb\":\"%s\"", i ? "," : "", plan_verb_name((enum plan_verb_kind)v[i].kind));
        if (v[i].tag) {
            buf_puts(k->out, ",\"request\":");
            put_name(k, v[i].tag);
        }
        if (v[i].group)
            buf_printf(k->out, ",\"group\":%d", v[i].group);
        if (v[i].ranks)
            buf_printf(k->out, ",\"ranks\":\"0x%" PRIx64 "\"", v[i].ranks);
        if (v[i].code)
            buf_printf(k->out, ",\"status\":%d", v[i].code);
        if (v[i].until_ns)
            buf_printf(k->out, ",\"until_ns\":%" PRId64, v[i].until_ns - k->began_ns);
        if (*v[i].words) {
            buf_puts(k->out, ",\"words\":");
            buf_put_json(k->out, v[i].words, strlen(v[i].words));
        }
        buf_putc(k->out, '}');
    }
    buf_putc(k->out, ']');
}

static void put_policy(struct writer *k, const struct decision *x)
{
    const char *name = k->d->policies[x->generation % DECISIONS_POLICIES].name;
    bool known = k->d->policies[x->generation % DECISIONS_POLICIES].generation == x->generation;
    buf_puts(k->out, ",\"policy\":{\"name\":");
    if (known)
        buf_put_json(k->out, name, strlen(name));
    else
        buf_puts(k->out, "null");
    buf_printf(k->out, ",\"generation\":%" PRIu64 ",\"verdict\":\"%s\",\"native\":%s,\"call_ns\":%" PRId64 "}",
               x->generation, verdict_name((enum verdict)x->verdict), x->native ? "true" : "false", x->call_ns);
}

static void put_decision(struct writer *k, const struct decision *x)
{
    const struct decision_group *g = (const void *)(x + 1);
    const struct decision_chunk *c = (const void *)(g + x->n_groups);
    buf_printf(k->out, "{\"step\":%" PRIu64 ",\"t_ns\":%" PRId64, x->step, x->now_ns - k->began_ns);
    put_policy(k, x);
    buf_printf(k->out,
               ",\"facts\":{\"waiting\":%d,\"running\":%d,\"held\":%d,\"parked\":%d,\"orders\":%d,\"free_seats\":%d,"
               "\"free_blocks\":%d,\"blocks\":%d,\"came\":%d,\"refused\":%d}",
               x->waiting, x->running, x->held, x->parked, x->pending, x->seats, x->blocks_free, x->blocks, x->came,
               x->refused);
    if (x->wake_ns)
        buf_printf(k->out, ",\"wake_ns\":%" PRId64, x->wake_ns - k->began_ns);
    put_groups(k, g, x->n_groups);
    put_chunks(k, c, x->n_chunks, g);
    put_verbs(k, (const void *)(c + x->n_chunks), x->n_verbs);
    buf_putc(k->out, '}');
}

void decisions_put(const struct decisions *d, const struct decisions_ask *ask, const struct stories *s,
                   const struct world *w, int64_t began_ns, struct buf *out)
{
    struct writer k = {.d = d, .began_ns = began_ns, .out = out};
    int most = ask->n < DECISIONS_ASKED_MOST ? ask->n : DECISIONS_ASKED_MOST, n = 0, kept = 0;
    for (uint64_t at = d->oldest; at < d->next; kept++) {
        const struct decision *x = decisions_at(d, &at);
        at += x->size;
    }
    gather_names(&k, s, w);
    buf_printf(out, "{\"kept\":%d,\"newest\":%" PRIu64 ",\"decisions\":[", kept, w->step);
    int skip = ask->from ? 0 : kept - most;
    for (uint64_t at = d->oldest; at < d->next && n < most;) {
        const struct decision *x = decisions_at(d, &at);
        at += x->size;
        if (x->step < ask->from || skip-- > 0)
            continue;
        buf_puts(out, n++ ? "," : "");
        put_decision(&k, x);
    }
    buf_puts(out, "]}");
    map_free(&k.names);
}
