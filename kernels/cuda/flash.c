/* Attention of the default mode: the step's items, planned once for all its layers that look alike, and the launches of
 * flash.cu. */
#include "engine/base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/flash_plan.h"

static bool same_shape(const struct flash_shape *a, const struct flash_shape *b)
{
    return a->kv_heads == b->kv_heads && a->most_heads == b->most_heads && a->window == b->window &&
           a->n_sms == b->n_sms && a->tile == b->tile;
}

/* Counts and items on their way to the device. Layers of another shape (a window on every other one) take a new place
 * of the mirror. */
static bool send_plan(struct device *d, const struct flash_shape *shape)
{
    struct flash_step *f = &d->flash;
    struct flash_plan *p = &f->plan;
    if (f->planned && same_shape(&f->shape, shape))
        return true;
    flash_plan(p, d->batch, shape, NULL);
    size_t bytes = (size_t)(p->n_wide + p->n_narrow) * sizeof(struct flash_item);
    if (!mirror_room(d, &d->plans, bytes + 64))
        return false;
    size_t counts = mirror_take(&d->plans, 2 * sizeof(int32_t)), items = mirror_take(&d->plans, bytes);
    flash_plan(p, d->batch, shape, (struct flash_item *)(d->plans.host + items));
    ((int32_t *)(d->plans.host + counts))[0] = p->n_wide;
    ((int32_t *)(d->plans.host + counts))[1] = p->n_narrow;
    mirror_push(d, &d->plans, counts);
    f->n_items = (const int32_t *)(d->plans.dev + counts);
    f->items = (const struct flash_item *)(d->plans.dev + items);
    f->shape = *shape;
    f->planned = true;
    return !gpu_failed(d);
}

/* The items of a graph come with the frame. All its layers are divided alike, into as many items as any step may need.
 */
static bool capture_plan(struct device *d, const struct flash_shape *shape)
{
    struct flash_step *f = &d->flash;
    struct graph *g = d->graph;
    if (g->flashes && !same_shape(&g->flash, shape)) {
        gpu_fail(d, E_UNSUPPORTED, "layers that attend in different ways have no graph yet");
        return false;
    }
    g->flashes = f->planned = true;
    g->flash = f->shape = *shape;
    f->n_items = frame_at(&d->frame, d->frame.counts);
    f->items = frame_at(&d->frame, d->frame.items);
    frame_plan(&f->plan, shape, g->rows);
    return true;
}

static bool make_room(struct device *d, const struct flash_shape *shape, int head_dim)
{
    const struct flash_plan *p = &d->flash.plan;
    size_t parts = (size_t)p->n_parts * (size_t)shape->kv_heads * FLASH_ROWS * (size_t)(head_dim + FLASH_SUMS_MORE) *
                   sizeof(float);
    return gpu_grow(d, &d->work->partial, parts) && gpu_counters(d, (size_t)p->n_slots * (size_t)shape->kv_heads);
}

void cuda_flash(struct device *d, struct flash_job *j, int most_heads)
{
    j->hopper = d->hopper && flash_hopper_can(j->kv.type, j->kv.head_dim);
    struct flash_shape shape = {.kv_heads = j->kv.n_heads,
                                .most_heads = most_heads,
                                .window = j->window,
                                .n_sms = d->n_sms,
                                .tile = j->hopper ? FLASH_HOPPER_TILE : FLASH_TILE};
    if (!(d->graph ? capture_plan(d, &shape) : send_plan(d, &shape)) || !make_room(d, &shape, j->kv.head_dim))
        return;
    const struct flash_plan *p = &d->flash.plan;
    if (j->rope && p->n_wide > 0) { /* prompts: several tiles read each new key */
        gpu_launched(d, launch_rope_write(d->stream, &j->rope_write), "rope_write");
        j->rope = false;
    }
    if (!j->rope)
        j->rope_write.q = (struct rope_job){.head_dim = j->kv.head_dim};
    j->partial = d->work->partial.data;
    j->arrived = d->work->arrived.data;
    j->n_sms = d->n_sms;
    j->n_slots = p->n_slots;
    j->n_parts = p->n_parts;
    for (int wide = 1; wide >= 0; wide--) {
        j->wide = wide;
        j->items = d->flash.items + (wide ? 0 : p->n_wide);
        j->n_items = d->flash.n_items + (wide ? 0 : 1);
        j->most_items = wide ? p->n_wide : p->n_narrow;
        j->pdl = gpu_begins_early(d);
        if (j->most_items > 0)
            gpu_launched(d, launch_flash(d->stream, j), "attention");
    }
}
