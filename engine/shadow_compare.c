/* Two plans for the same moment beside each other. Requests are the same objects in both, so they are compared by their
 * order of admission. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/shadow.h"

static uint64_t mixed(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* Words of a difference, as far as there is room. */
struct words {
    char *text; /* [SHADOW_WORDS] */
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void say(struct words *w, const char *fmt, ...)
{
    va_list args;
    size_t room = SHADOW_WORDS - w->n;
    if (w->n && room > 2) {
        memcpy(w->text + w->n, "; ", 3);
        w->n += 2;
        room -= 2;
    }
    va_start(args, fmt);
    int n = vsnprintf(w->text + w->n, room, fmt, args);
    va_end(args);
    w->n += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* ---- batches */

/* The same for the same rows of the same requests, in whatever order. */
static uint64_t rows_of(const struct plan_batch *b)
{
    uint64_t sum = 0;
    for (int i = 0; i < b->n_items; i++) {
        const struct plan_item *it = &b->items[i];
        sum += mixed(mixed(1, it->request->order), (uint64_t)it->n_tokens << 1 | it->starts);
    }
    return sum;
}

static int n_rows(const struct plan_batch *b) /* without draft tokens */
{
    int n = 0;
    for (int i = 0; i < b->n_items; i++)
        n += b->items[i].n_tokens;
    return n;
}

static int n_starts(const struct plan_batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n_items; i++)
        n += b->items[i].starts;
    return n;
}

static const struct plan_batch *batch_of(const struct plan *p, int group)
{
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded && p->batches[i]->group_id == group)
            return p->batches[i];
    return NULL;
}

static void say_batch(struct words *w, int group, const struct plan_batch *b)
{
    char stages[16] = "";
    if (!b) {
        say(w, "group %d: nothing", group);
        return;
    }
    if (b->layout.pp > 1)
        snprintf(stages, sizeof stages, " pp %d", b->layout.pp);
    say(w, "group %d: sp %d tp %d%s, %d rows of %d requests, %d of them new", group, b->layout.sp, b->layout.tp, stages,
        n_rows(b), b->n_items, n_starts(b));
}

struct sides {
    const struct plan *live;
    struct plan *shadow; /* its arena has the keys; it is dropped after this */
    struct shadow_book *book;
    struct words of_live, of_shadow;
    bool equal;
};

static void compare_group(struct sides *s, const struct plan_batch *l, const struct plan_batch *m)
{
    struct shadow_batches *n = &s->book->batches;
    uint64_t *which = !m                                    ? &n->live
                      : !l                                  ? &n->shadow
                      : !layout_equal(l->layout, m->layout) ? &n->layout
                      : rows_of(l) != rows_of(m)            ? &n->requests
                                                            : &n->equal;
    ++*which;
    if (which == &n->equal)
        return;
    int group = l ? l->group_id : m->group_id;
    s->equal = false;
    say_batch(&s->of_live, group, l);
    say_batch(&s->of_shadow, group, m);
}

static void compare_batches(struct sides *s)
{
    for (int i = 0; i < s->live->n_batches; i++) {
        const struct plan_batch *b = s->live->batches[i];
        if (!b->forwarded)
            continue;
        s->book->tokens.live += (uint64_t)n_rows(b);
        compare_group(s, b, batch_of(s->shadow, b->group_id));
    }
    for (int i = 0; i < s->shadow->n_batches; i++) {
        const struct plan_batch *b = s->shadow->batches[i];
        if (!b->forwarded)
            continue;
        s->book->tokens.shadow += (uint64_t)n_rows(b);
        if (!batch_of(s->live, b->group_id))
            compare_group(s, NULL, b);
    }
}

/* ---- requests that start, and verbs: sets of keys */

struct key {
    uint64_t key;
    const struct request *request; /* NULL: it is about none */
};

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct key *)a)->key, y = ((const struct key *)b)->key;
    return (x > y) - (x < y);
}

/* How many are in both, and only in one; *first: one that only this side has. */
static void count_keys(struct shadow_count *c, struct key *live, int n_live, struct key *mine, int n_mine,
                       const struct key *first[2])
{
    int i = 0, k = 0;
    first[0] = first[1] = NULL;
    qsort(live, (size_t)n_live, sizeof *live, by_key);
    qsort(mine, (size_t)n_mine, sizeof *mine, by_key);
    while (i < n_live || k < n_mine) {
        bool l = i < n_live && (k == n_mine || live[i].key <= mine[k].key);
        bool m = k < n_mine && (i == n_live || mine[k].key <= live[i].key);
        c->both += l && m;
        c->live += l && !m;
        c->shadow += m && !l;
        if (l && !m && !first[0])
            first[0] = &live[i];
        if (m && !l && !first[1])
            first[1] = &mine[k];
        i += l;
        k += m;
    }
}

static uint64_t key_of_verb(const struct plan_verb *v)
{
    const struct switch_order *o = v->order;
    uint64_t h = mixed((uint64_t)v->kind + 1, v->request ? v->request->order + 1 : 0);
    h = mixed(h, (uint64_t)v->how << 1 | v->closed);
    h = mixed(h, (uint64_t)(uint32_t)v->group << 32 | (uint32_t)v->fate);
    h = mixed(h, v->kind == PLAN_HOLD ? v->until_ns != 0 : 0);
    h = mixed(mixed(h, v->ranks), (uint64_t)(uint32_t)v->algorithm);
    h = mixed(h, (uint64_t)(uint32_t)v->from << 32 | (uint32_t)v->to);
    h = mixed(h, (uint64_t)v->mode << 8 | (uint64_t)v->evict << 1 | v->replicated);
    if (v->kind == PLAN_EMBED)
        h = mixed(h, embed_rule_pack(v->embed));
    if (o)
        h = mixed(mixed(h, o->mask), (uint64_t)o->release << 48 | (uint64_t)o->base.sp << 32 |
                                         (uint64_t)o->base.tp << 16 | (uint64_t)o->base.pp);
    return h;
}

/* The verbs of a kind, or (kind PLAN_VERB_KINDS) the requests that start, in the arena. */
static int gather(struct arena *arena, const struct plan *p, int kind, struct key **out)
{
    int n = 0, most = kind < PLAN_VERB_KINDS ? p->n_verbs : 0;
    for (int i = 0; kind == PLAN_VERB_KINDS && i < p->n_batches; i++)
        most += p->batches[i]->n_items;
    struct key *keys = arena_new(arena, ((size_t)most + 1) * sizeof *keys);
    for (int i = 0; kind < PLAN_VERB_KINDS && i < p->n_verbs; i++)
        if ((int)p->verbs[i].kind == kind)
            keys[n++] = (struct key){key_of_verb(&p->verbs[i]), p->verbs[i].request};
    for (int i = 0; kind == PLAN_VERB_KINDS && i < p->n_batches; i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++)
            if (p->batches[i]->items[k].starts) {
                const struct request *r = p->batches[i]->items[k].request;
                keys[n++] = (struct key){r->order, r};
            }
    *out = keys;
    return n;
}

static void say_keys(struct words *w, const char *verb, uint64_t n, const struct key *first)
{
    if (!n)
        return;
    if (first && first->request)
        say(w, "%s %.40s%s", verb, first->request->spec->name, n > 1 ? " and others" : "");
    else
        say(w, "%s", verb);
}

static void compare_kind(struct sides *s, int kind, struct shadow_count *c)
{
    struct arena *arena = &s->shadow->arena;
    struct key *live, *mine;
    const struct key *first[2];
    const struct shadow_count before = *c;
    int n_live = gather(arena, s->live, kind, &live), n_mine = gather(arena, s->shadow, kind, &mine);
    if (!n_live && !n_mine)
        return;
    count_keys(c, live, n_live, mine, n_mine, first);
    const char *name = kind < PLAN_VERB_KINDS ? plan_verb_name((enum plan_verb_kind)kind) : "start";
    s->equal &= c->live == before.live && c->shadow == before.shadow;
    say_keys(&s->of_live, name, c->live - before.live, first[0]);
    say_keys(&s->of_shadow, name, c->shadow - before.shadow, first[1]);
}

bool shadow_count_plans(struct shadow_book *b, const struct plan *live, struct plan *shadow,
                        struct shadow_difference *d)
{
    struct sides s = {live, shadow, b, {d->live, 0}, {d->shadow, 0}, true};
    uint64_t kinds = 0;
    d->live[0] = d->shadow[0] = 0;
    compare_batches(&s);
    for (int i = 0; i < live->n_verbs; i++)
        kinds |= 1ull << live->verbs[i].kind;
    for (int i = 0; i < shadow->n_verbs; i++)
        kinds |= 1ull << shadow->verbs[i].kind;
    for (int kind = 0; kind < PLAN_VERB_KINDS; kind++)
        if (kinds >> kind & 1 && kind != PLAN_LOG)
            compare_kind(&s, kind, &b->verbs[kind]);
    compare_kind(&s, PLAN_VERB_KINDS, &b->starts);
    return s.equal;
}
