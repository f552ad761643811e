#include "engine/lab/recording/record_window.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"

/* Of whole lines. What is there does not change; more may be put behind it. */
struct block {
    _Atomic int holders; /* the window, and who writes one */
    size_t cap, n;
    int64_t from_ns, to_ns;
    int n_arrived;
    char text[];
};

struct record_window {
    struct monitor *lock;
    size_t most, bytes;    /* of all blocks */
    char *head;            /* NULL: it has not begun */
    struct block **blocks; /* oldest first */
    int n, cap;
};

struct record_window *record_window_new(size_t most)
{
    struct record_window *w = mem_new(sizeof *w);
    w->lock = monitor_new();
    w->most = most > RECORD_WINDOW_LEAST ? most : RECORD_WINDOW_LEAST;
    return w;
}

static void let_go(struct block *b)
{
    if (atomic_fetch_sub(&b->holders, 1) == 1)
        mem_free(b);
}

void record_window_free(struct record_window *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n; i++)
        let_go(w->blocks[i]);
    mem_free(w->blocks);
    mem_free(w->head);
    monitor_free(w->lock);
    mem_free(w);
}

/* ---- the recorder's thread, which alone changes what blocks there are */

void record_window_begin(struct record_window *w, char *head)
{
    monitor_lock(w->lock);
    mem_free(w->head);
    w->head = head;
    monitor_unlock(w->lock);
}

static struct block *block_new(size_t least, int64_t from_ns)
{
    size_t cap = least > RECORD_BLOCK_BYTES ? least : RECORD_BLOCK_BYTES;
    struct block *b = mem_new(sizeof *b + cap);
    atomic_init(&b->holders, 1);
    b->cap = cap;
    b->from_ns = from_ns;
    return b;
}

static size_t size_of(const struct block *b)
{
    return sizeof *b + b->cap;
}

/* With the lock. The newest stays in any case. */
static void drop_oldest(struct record_window *w)
{
    int n = 0;
    for (; n + 1 < w->n && w->bytes > w->most; n++) {
        w->bytes -= size_of(w->blocks[n]);
        let_go(w->blocks[n]);
    }
    w->n -= n;
    if (n)
        memmove(w->blocks, w->blocks + n, (size_t)w->n * sizeof *w->blocks);
}

/* With the lock. */
static void push(struct record_window *w, struct block *b)
{
    if (w->n == w->cap) {
        w->cap = w->cap ? w->cap * 2 : 64;
        w->blocks = mem_resize(w->blocks, (size_t)w->cap, sizeof(struct block *));
    }
    w->blocks[w->n++] = b;
    w->bytes += size_of(b);
    drop_oldest(w);
}

/* Of these lines, as many whole ones as there is room for. */
static size_t whole_lines(const char *text, size_t n, size_t room)
{
    const char *end = n > room ? memrchr(text, '\n', room) : NULL;
    return n <= room ? n : end ? (size_t)(end - text) + 1 : 0;
}

/* Where a chunk goes on in another block, both have its times: then they say a little more than what is there. */
void record_window_add(struct record_window *w, const struct record_chunk *c)
{
    size_t at = 0;
    while (at < c->n) {
        struct block *b = w->n ? w->blocks[w->n - 1] : NULL;
        size_t n = b ? whole_lines(c->text + at, c->n - at, b->cap - b->n) : 0;
        bool is_new = !n;
        if (is_new) {
            const char *end = memchr(c->text + at, '\n', c->n - at);
            b = block_new(end ? (size_t)(end - c->text) + 1 - at : c->n - at, c->from_ns);
            n = whole_lines(c->text + at, c->n - at, b->cap);
            n = n ? n : c->n - at;
        }
        memcpy(b->text + b->n, c->text + at, n); /* nobody looks there yet */
        monitor_lock(w->lock);
        b->n += n;
        b->to_ns = c->to_ns;
        b->n_arrived += at ? 0 : c->n_arrived;
        if (is_new)
            push(w, b);
        monitor_unlock(w->lock);
        at += n;
    }
}

/* ---- any thread */

void record_window_look(struct record_window *w, struct record_window_facts *out)
{
    *out = (struct record_window_facts){.most = w->most};
    monitor_lock(w->lock);
    out->bytes = w->bytes;
    out->from_ns = w->n ? w->blocks[0]->from_ns : 0;
    out->to_ns = w->n ? w->blocks[w->n - 1]->to_ns : 0;
    for (int i = 0; i < w->n; i++)
        out->n_arrived += (uint64_t)w->blocks[i]->n_arrived;
    monitor_unlock(w->lock);
}

/* Blocks that are held, and how much of each was there, up to which time. */
struct held {
    struct block **blocks;
    struct part {
        size_t n;
        int64_t to_ns;
    } * parts;
    int count;
    char *head; /* a copy; NULL: nothing has begun */
    int64_t to_ns;
};

static void hold(struct record_window *w, struct held *h)
{
    monitor_lock(w->lock);
    *h = (struct held){.count = w->n, .head = w->head ? mem_strdup(w->head) : NULL};
    h->blocks = mem_new_array((size_t)w->n + 1, sizeof(struct block *));
    h->parts = mem_new_array((size_t)w->n + 1, sizeof *h->parts);
    for (int i = 0; i < w->n; i++) {
        h->blocks[i] = w->blocks[i];
        h->parts[i] = (struct part){w->blocks[i]->n, w->blocks[i]->to_ns};
        h->to_ns = w->blocks[i]->to_ns;
        atomic_fetch_add(&w->blocks[i]->holders, 1);
    }
    monitor_unlock(w->lock);
}

static void let_go_all(struct held *h)
{
    for (int i = 0; i < h->count; i++)
        let_go(h->blocks[i]);
    mem_free(h->blocks);
    mem_free(h->parts);
    mem_free(h->head);
}

/* A line of a block: every one has its end. */
struct line {
    const char *text;
    size_t n;          /* its end included */
    int64_t t_ns;      /* -1: its kind has no time */
    const char *order; /* what stands behind the time */
};

struct walk {
    const struct held *held;
    int block;
    size_t at;
};

static bool next_line(struct walk *k, struct line *out)
{
    while (k->block < k->held->count && k->at == k->held->parts[k->block].n) {
        k->block++;
        k->at = 0;
    }
    if (k->block == k->held->count)
        return false;
    const char *text = k->held->blocks[k->block]->text + k->at;
    size_t left = k->held->parts[k->block].n - k->at;
    const char *end = memchr(text, '\n', left);
    *out = (struct line){.text = text, .n = end ? (size_t)(end - text) + 1 : left, .t_ns = -1};
    k->at += out->n;
    if (!strchr("kvp", *text)) {
        char *behind;
        out->t_ns = strtoll(text + 1, &behind, 10);
        out->order = behind + strspn(behind, " ");
    }
    return true;
}

/* Keys of a request, and calls, belong to a line with a time: a window begins with one. False: there is none. */
static bool find_start(const struct held *h, int64_t from_ns, struct walk *start, struct line *l)
{
    struct walk k = {.held = h};
    while (k.block < h->count && h->parts[k.block].to_ns < from_ns)
        k.block++;
    do
        *start = k;
    while (next_line(&k, l) && l->t_ns < from_ns);
    return l->text && l->t_ns >= from_ns;
}

static bool is_admitted(const struct line *l)
{
    return *l->text == 'a' && *l->order != '-';
}

static void count(struct record_window_facts *f, const struct line *l, int64_t first_order)
{
    f->to_ns = l->t_ns > f->to_ns ? l->t_ns : f->to_ns;
    f->bytes += l->n;
    f->n_arrived += is_admitted(l);
    f->n_steps += *l->text == 's';
    if (*l->text != 'e')
        return;
    char *behind;
    int64_t order = strtoll(l->order, &behind, 10);
    f->n_before += order < first_order;
    f->n_ended += order >= first_order && (!strncmp(behind, " stop ", 6) || !strncmp(behind, " length ", 8));
}

static void put_head(const struct held *h, const struct record_window_ask *ask, int64_t from_ns, int64_t order,
                     struct buf *out)
{
    buf_printf(out, "%s\"window\":{\"from_ns\":%" PRId64 ",\"order\":%" PRId64 "},\"policy\":{\"name\":", h->head,
               from_ns, order);
    buf_put_json(out, ask->policy, strlen(ask->policy));
    buf_puts(out, ",\"sha256\":");
    buf_put_json(out, ask->sha256, strlen(ask->sha256));
    buf_printf(out, ",\"params\":%s}}\n", ask->params ? ask->params : "{}");
}

static int write_held(const struct held *h, const struct record_window_ask *ask, FILE *to,
                      struct record_window_facts *out, struct err *e)
{
    int64_t from_ns = ask->last_ns && ask->last_ns < h->to_ns ? h->to_ns - ask->last_ns : 0, order = -1;
    struct walk start = {0}, k;
    struct line first = {0}, l;
    struct buf head = {0};
    bool any = h->head && find_start(h, from_ns, &start, &first);
    k = start;
    while (any && order < 0 && next_line(&k, &l))
        order = is_admitted(&l) ? strtoll(l.order, NULL, 10) : -1;
    if (order < 0)
        return err_set(e, E_NOTFOUND,
                       "no request has come in the time that the window is of: there is nothing to try a policy on");
    put_head(h, ask, first.t_ns, order, &head);
    fwrite(head.data, 1, head.len, to);
    *out = (struct record_window_facts){.from_ns = first.t_ns, .bytes = head.len};
    buf_free(&head);
    for (k = start; next_line(&k, &l);)
        if (*l.text != 'f' && *l.text != 'v') { /* what only pictures, and only replays, are made of */
            fwrite(l.text, 1, l.n, to);
            count(out, &l, order);
        }
    return fflush(to) || ferror(to)
               ? err_set(e, E_SYS, "the window of recorded traffic cannot be written: %s", strerror(errno))
               : 0;
}

int record_window_write(struct record_window *w, const struct record_window_ask *ask, FILE *to,
                        struct record_window_facts *out, struct err *e)
{
    struct held h;
    *out = (struct record_window_facts){0};
    hold(w, &h);
    int rc = write_held(&h, ask, to, out, e);
    let_go_all(&h);
    return rc;
}
