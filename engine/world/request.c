#include "engine/world/request.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"
#include "engine/base/shared.h"

struct request_spec *request_spec_new(void)
{
    return seen_new(sizeof(struct request_spec));
}

void request_spec_free(struct request_spec *s)
{
    if (!s)
        return;
    mem_free(s->prompt);
    mem_free(s->stop_ids);
    shared_drop(s->sampling.bias);
    shared_drop(s->sampling.allowed);
    shared_drop(s->grammar);
    mem_free(s->given_keys);
    mem_free(s);
}

void request_table_init(struct request_table *t)
{
    memset(t, 0, sizeof *t);
    map_init(&t->by_tag);
}

void request_table_free(struct request_table *t)
{
    ASSERT(t->n_live == 0);
    mem_free(t->slots);
    mem_free(t->generations);
    mem_free(t->free_slots);
    map_free(&t->by_tag);
    memset(t, 0, sizeof *t);
}

static void grow(struct request_table *t)
{
    int n = t->n_slots ? t->n_slots * 2 : 64;
    t->slots = seen_resize(t->slots, (size_t)n, sizeof *t->slots);
    t->generations = seen_resize(t->generations, (size_t)n, sizeof *t->generations);
    t->free_slots = mem_resize(t->free_slots, (size_t)n, sizeof *t->free_slots);
    for (int i = n - 1; i >= t->n_slots; i--) {
        t->slots[i] = NULL;
        t->generations[i] = 1;
        t->free_slots[t->n_free++] = (uint32_t)i;
    }
    t->n_slots = n;
}

void request_give_key(struct request *r, struct kv_key key)
{
    if (r->n_keys == r->cap_keys) {
        r->cap_keys = r->cap_keys ? r->cap_keys * 2 : 16;
        r->keys = mem_resize(r->keys, (size_t)r->cap_keys, sizeof *r->keys);
    }
    r->keys[r->n_keys++] = key;
}

struct request *request_add(struct request_table *t, struct request_spec *s)
{
    if (t->n_live >= MAX_REQUESTS)
        return NULL;
    if (!t->n_free)
        grow(t);
    uint32_t slot = t->free_slots[--t->n_free];
    struct request *r = seen_new(sizeof *r);
    r->id = (uint64_t)t->generations[slot] << 32 | slot;
    r->spec = s;
    r->n_tokens = s->n_prompt;
    r->cap_tokens = s->n_prompt;
    r->tokens = s->prompt;
    s->prompt = NULL;
    if (s->probe_every)
        r->probes = seen_new(sizeof *r->probes);
    for (int i = 0; i < s->n_given_keys; i++)
        request_give_key(r, s->given_keys[i]);
    t->slots[slot] = r;
    t->n_live++;
    map_set(&t->by_tag, s->tag, r->id);
    return r;
}

struct request *request_find(const struct request_table *t, req_id id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= (uint32_t)t->n_slots || t->generations[slot] != id >> 32)
        return NULL;
    return t->slots[slot];
}

struct request *request_find_tag(const struct request_table *t, uint64_t tag)
{
    uint64_t id;
    return map_find(&t->by_tag, tag, &id) ? request_find(t, id) : NULL;
}

void request_remove(struct request_table *t, struct request *r)
{
    uint32_t slot = (uint32_t)r->id;
    ASSERT(t->slots[slot] == r && r->n_blocks == 0);
    map_remove(&t->by_tag, r->spec->tag);
    t->slots[slot] = NULL;
    if (++t->generations[slot] == 0)
        t->generations[slot] = 1; /* 0 would make a handle that reads as "none" */
    t->free_slots[t->n_free++] = slot;
    t->n_live--;
    request_spec_free(r->spec);
    mem_free(r->said);
    mem_free(r->probes);
    mem_free(r->prompt_lp);
    mem_free(r->untold_lp);
    mem_free(r->tokens);
    mem_free(r->blocks);
    mem_free(r->keys);
    mem_free(r->seen);
    mem_free(r);
}

const char *hold_refusal(const struct request *r, int64_t until_ns, int64_t now_ns)
{
    int64_t first = r->held_first_ns ? r->held_first_ns : now_ns;
    if (until_ns <= now_ns)
        return "the hold would end in the past: until is a time like view.now, in seconds";
    if (until_ns > first + HOLD_MAX_NS)
        return "a request can be held for an hour in all";
    return NULL;
}

void request_append(struct request *r, int32_t token)
{
    if (r->n_tokens == r->cap_tokens) {
        r->cap_tokens += r->cap_tokens < 256 ? 64 : r->cap_tokens / 4;
        r->tokens = mem_resize(r->tokens, (size_t)r->cap_tokens, sizeof *r->tokens);
    }
    r->tokens[r->n_tokens++] = token;
}
