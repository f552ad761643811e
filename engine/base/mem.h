/* Memory. mem_new is for sizes this program chose: it never returns NULL (it ASSERTs). mem_try is for sizes that came
 * from outside: NULL means E_FULL. An arena is for what dies together (a step, a parse): never freed piecewise.
 * Allocation is thread-safe; an arena belongs to one thread at a time. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *mem_new(size_t bytes);                          /* zeroed; ASSERTs on failure */
void *mem_new_array(size_t count, size_t size);       /* zeroed, overflow checked */
void *mem_try(size_t bytes);                          /* zeroed; NULL on failure */
void *mem_try_array(size_t count, size_t size);       /* zeroed; NULL on failure or overflow */
void *mem_resize(void *p, size_t count, size_t size); /* contents kept, new part NOT zeroed; ASSERTs */
void *mem_try_resize(void *p, size_t count,
                     size_t size); /* the same; NULL on failure or overflow, and p is as it was */
void mem_free(void *p);            /* NULL is fine */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n); /* copies n bytes and adds a NUL */
/* Aligned to `align` (a power of two), zeroed; big blocks ask for transparent huge pages. NULL on failure.
 * Free with mem_free. */
void *mem_try_aligned(size_t bytes, size_t align);

struct arena_chunk;
struct arena {
    struct arena_chunk *head; /* newest first */
    size_t used, total;       /* bytes handed out; bytes held */
    bool seen;                /* processes of policies see it (seen.h); set before the first use */
};

void arena_init(struct arena *a);
void *arena_new(struct arena *a, size_t bytes); /* zeroed, 16-byte aligned; ASSERTs on failure */
void *arena_copy(struct arena *a, const void *src, size_t bytes);
void arena_reset(struct arena *a); /* forgets everything, keeps the largest chunk for reuse */
void arena_free(struct arena *a);

#endif
