/* Pooled FFN weights after a rank has failed: its layers have gone with it, and no step can end without them. As soon
 * as nothing is under way they are loaded again from the model file, each onto the living rank that has most memory to
 * spare; requests wait meanwhile, and none is lost. Where no rank has room, everything is answered with 503. Engine
 * thread; the ranks' threads are idle then, and do what is asked of them, as at start. */
#include "engine/base/log.h"
#include "engine/engine_state.h"
#include "engine/holdings.h"

static bool is_under_way(const struct engine *engine)
{
    const struct partition *p = &engine->world.partition;
    for (int i = 0; i < p->n_groups; i++)
        if (!partition_group(p, i)->idle)
            return true;
    return engine->n_moving > 0 || engine->n_replicating > 0;
}

/* Ranks that steps of others have found failed are dropped once nothing is under way, if they have not been by then. */
static void drop_failing(struct engine *engine)
{
    for (int i = 0; i < engine->node.n_ranks; i++)
        if (engine->failing_ranks >> i & 1)
            engine_lose_rank(engine, i, "steps of other ranks found that its device has failed");
    engine->failing_ranks = 0;
}

/* The living rank with most memory to spare. */
static int roomiest(const struct engine *engine, size_t *spare)
{
    uint64_t dead = engine->world.partition.dead_ranks;
    int found = -1;
    *spare = 0;
    for (int i = 0; i < engine->node.n_ranks; i++) {
        size_t bytes = holdings_spare(&engine->node, &engine->setup, i);
        if (dead >> i & 1 || (found >= 0 && bytes <= *spare))
            continue;
        found = i;
        *spare = bytes;
    }
    return found;
}

/* A layer, or a share of one, on its way to another rank, whose own thread loads it. */
struct adoption {
    struct weights *weights;
    const struct model *model;
    struct ffn_hold hold;
};

static int adopt(void *ctx, struct err *e)
{
    const struct adoption *a = ctx;
    return weights_adopt(a->weights, a->model, &a->hold, e);
}

/* A machine that only says what things cost has nothing to load: the layer is another's from now on. */
static int move_share(struct engine *engine, int layer, int share, struct err *e)
{
    size_t spare;
    int to = roomiest(engine, &spare);
    struct node *n = &engine->node;
    if (to < 0)
        return err_set(e, E_FULL, "every rank of the node has failed");
    if (n->pool) {
        int shares = ffn_shares(&engine->ffn, layer);
        size_t bytes = shares > 1 ? ffn_pool_share_bytes(n->pool, layer, share) : ffn_pool_layer_bytes(n->pool);
        if (bytes > spare)
            return err_set(
                e, E_FULL,
                "layer %d takes up to %zu bytes, and no living rank has more than %zu to spare: give ranks more "
                "than they use with --rank-memory and --kv-cache-memory-bytes",
                layer, bytes, spare);
        struct adoption a = {rank_weights(n->ranks[to]), engine->setup.model, {layer, share, shares}};
        struct rank_job j = {.run = adopt, .ctx = &a};
        rank_do(n->ranks[to], &j);
        TRY(rank_await(n->ranks[to], &j, e));
        ffn_pool_give(n->pool, layer, share, to);
    }
    ffn_give(&engine->ffn, layer, share, to);
    return 0;
}

/* Of one layer, what lay on ranks that are lost; counts the shares. */
static int move_lost(struct engine *engine, uint64_t lost, int layer, int *n, struct err *e)
{
    for (int i = 0; i < ffn_shares(&engine->ffn, layer); i++)
        if (lost >> ffn_owner(&engine->ffn, layer, i) & 1) {
            TRY(move_share(engine, layer, i, e));
            ++*n;
        }
    return 0;
}

static void end_all(struct engine *engine, const char *why)
{
    for (int i = 0; i < engine->world.requests.n_slots; i++) {
        struct request *r = engine->world.requests.slots[i];
        if (r)
            engine_end_request(
                engine, r,
                &(struct request_end){.how = END_ERROR, .http_status = 503, .retry_after_s = -1, .why = why});
    }
}

static void give_up(struct engine *engine, const struct err *e)
{
    engine->beyond_mending = "a rank that held FFN weights has failed, and no other has room for them";
    log_error("engine", "%s: %s", engine->beyond_mending, e->text);
    engine_tell_down(engine, engine->beyond_mending);
    end_all(engine, engine->beyond_mending);
}

static bool is_due(const struct engine *engine)
{
    uint64_t gone = engine->world.partition.dead_ranks | engine->failing_ranks;
    return engine->world.ffn && gone & ~engine->mended_ranks;
}

bool engine_waits_to_mend(const struct engine *engine)
{
    return is_due(engine) && is_under_way(engine);
}

bool engine_mend(struct engine *engine)
{
    struct err e = {0};
    int n = 0, rc = 0;
    if (!is_due(engine))
        return true;
    world_pool(&engine->world, 0, engine->ffn.n_layers); /* copies go: their memory may be needed */
    engine_post_replicas(engine);
    if (is_under_way(engine))
        return false;
    drop_failing(engine);
    uint64_t lost = engine->world.partition.dead_ranks & ~engine->mended_ranks;
    engine->mended_ranks |= lost;
    for (int l = 0; l < engine->ffn.n_layers && !rc; l++)
        rc = move_lost(engine, lost, l, &n, &e);
    if (rc)
        give_up(engine, &e);
    else if (!engine->setup.quiet)
        log_info("engine", "The FFN weights of %d layers or shares of layers were loaded again, onto ranks that live",
                 n);
    engine->changed = true;
    return true;
}
