/* What the ranks did, as recorded: steps, copies of KV, of FFN layers and of weights that ended. */
#include <inttypes.h>

#include "engine/lab/reenact_inner.h"

static void fill_results(struct reenactor *r, struct step *s, const struct recorded *x)
{
    for (int k = 0; k < x->n_stops; k++)
        reenact_known(r, x->stops[k]);
    for (int i = 0; i < s->n_items; i++) {
        struct step_item *it = &s->items[i];
        const struct request *q = request_find(&engine_world(r->d.engine)->requests, it->id);
        if (!q || !it->samples)
            continue;
        int at = it->first_result + it->n_given + reenact_drafts_fill(&r->drafts, s, it, x, q->order);
        for (int k = 0; k < x->n_stops; k++)
            if (q->order == (uint64_t)x->stops[k])
                s->results[at].token = STOP_ID;
    }
}

/* The prefix keys that the recorded tokens made. */
static void give_keys(struct reenactor *r, const struct recorded *x)
{
    for (int i = 0; i < x->n_keys && reenact_known(r, x->key_orders[i]); i++) {
        struct request *q = engine_find(r->d.engine, r->tags[x->key_orders[i]]);
        if (q)
            request_give_key(q, recorded_key(x->keys[i]));
    }
}

void reenact_step(struct reenactor *r, const struct recorded *x)
{
    struct step *s = engine_take_step(r->d.engine, x->group);
    int failed = -1;
    if (!s) {
        reenact_differ(r, "a step of group %" PRId64 " ended, which runs none in the replay", x->group);
        return;
    }
    if (s->posted_ns - r->d.start_ns != x->start_ns || !layout_equal(s->layout, x->layout) || s->size.rows != x->rows)
        reenact_differ(
            r, "the step of group %" PRId64 " that ended began at another time, in another layout or with other tokens",
            x->group);
    s->parts[0].time.ns = x->ns;
    s->parts[0].drafting = x->drafting;
    step_part_take_ffn(&s->parts[0], &x->ffn);
    for (int i = 0; i < s->n_ranks; i++)
        failed = s->ranks[i] == x->failed_rank ? i : failed;
    if (failed >= 0) {
        s->parts[failed].rc = E_DEVICE;
        err_set(&s->parts[failed].err, E_DEVICE, "as recorded");
    } else if (x->failed_rank >= 0 && engine_world(r->d.engine)->ffn) { /* it held FFN layers that the step needed */
        s->parts[0].rc = err_set(&s->parts[0].err, E_PEER, "as recorded");
        s->parts[0].lost_owner = (int)x->failed_rank + 1;
    } else if (x->failed_rank >= 0) {
        reenact_differ(r, "rank %" PRId64 " failed in a step that it has no part in", x->failed_rank);
    }
    fill_results(r, s, x);
    give_keys(r, x);
    engine_take(r->d.engine, &(struct engine_message){.kind = IN_STEP_DONE, .payload = s});
}

void reenact_move(struct reenactor *r, const struct recorded *x)
{
    struct move *m = engine_take_move(r->d.engine, x->serial);
    if (!m) {
        reenact_differ(r, "copy %" PRId64 " landed, which is not under way in the replay", (int64_t)x->serial);
        return;
    }
    atomic_store(&m->bytes, x->bytes);
    engine_take(r->d.engine, &(struct engine_message){.kind = IN_MOVE_DONE, .payload = m});
}

void reenact_replica(struct reenactor *r, const struct recorded *x)
{
    struct replica_task *t = engine_take_replica(r->d.engine, x->layer);
    if (!t || t->gives_up != x->gives_up)
        reenact_differ(r,
                       x->gives_up ? "the copies of layer %" PRId64 " are gone, which stay in the replay"
                                   : "layer %" PRId64 " lies on every rank, of which no copies are made in the replay",
                       x->layer);
    if (!t)
        return;
    atomic_store(&t->rc, x->failed ? E_PEER : 0);
    engine_take(r->d.engine, &(struct engine_message){.kind = IN_REPLICA_DONE, .payload = t});
}

void reenact_reshard(struct reenactor *r, const struct recorded *x)
{
    struct reshard_task *t = engine_take_reshard(r->d.engine, x->ranks);
    if (!t) {
        reenact_differ(r, "ranks %" PRId64 " (as a mask) have weights, which get none in the replay",
                       (int64_t)x->ranks);
        return;
    }
    atomic_store(&t->bytes, x->bytes);
    atomic_store(&t->failed, x->failed_rank + 1);
    if (x->failed_rank >= 0)
        err_set(&t->err, E_SYS, "as recorded");
    engine_take(r->d.engine, &(struct engine_message){.kind = IN_RESHARD_DONE, .payload = t});
}
