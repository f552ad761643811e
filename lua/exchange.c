#include "lua/exchange.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { LOOKS = 64 /* at the turn, from one look at the clock to the next */, MISSES = 4, BLIND = 16 };
static const int64_t SPIN_NS = 50000; /* what a call takes, and a bit more: who sleeps takes as long to wake up */

int exchange_make(struct exchange_page **out, int *file, struct err *e)
{
    *file = memfd_create("exchange", MFD_CLOEXEC);
    struct exchange_page *x = NULL;
    if (*file >= 0 && ftruncate(*file, sizeof *x) == 0)
        x = exchange_map(*file);
    if (!x) {
        int why = errno;
        if (*file >= 0)
            close(*file);
        return err_set(e, E_SYS, "no memory to talk with a policy's process: %s", strerror(why));
    }
    *out = x;
    return 0;
}

struct exchange_page *exchange_map(int file)
{
    void *p = mmap(NULL, sizeof(struct exchange_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return p == MAP_FAILED ? NULL : p;
}

void exchange_unmap(struct exchange_page *x)
{
    if (x)
        munmap(x, sizeof *x);
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *wait)
{
    return syscall(SYS_futex, word, op, value, wait, NULL, 0);
}

int64_t exchange_say(struct exchange_page *x, enum exchange_turn to, enum exchange_word w)
{
    x->word = w;
    atomic_store(&x->turn, (uint32_t)to);
    if (!(atomic_load(&x->sleepers) >> to & 1))
        return 0;
    int64_t from = clock_thread_cpu();
    futex(&x->turn, FUTEX_WAKE, 1, NULL);
    return clock_thread_cpu() - from;
}

static void rest(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool is_turn(const struct exchange_page *x, enum exchange_turn mine)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load_explicit(&x->turn, memory_order_acquire) == (uint32_t)mine)
            return true;
        rest();
    }
    return false;
}

/* Its time is CPU time, or not much more: that clock costs ten times as much to read. */
static bool look(struct exchange_eye *e, const struct exchange_page *x, enum exchange_turn mine)
{
    struct clock clock;
    bool seen;
    clock_init_real(&clock);
    int64_t from = clock_now(&clock), now;
    do {
        seen = is_turn(x, mine);
        now = clock_now(&clock);
    } while (!seen && now - from < SPIN_NS);
    e->cpu_ns = now - from < SPIN_NS ? now - from : SPIN_NS;
    return seen;
}

/* After a few misses only once in a while. */
static bool look_again(struct exchange_eye *e, const struct exchange_page *x, enum exchange_turn mine)
{
    if (!e->looks || (e->n_missed >= MISSES && ++e->n_blind % BLIND))
        return atomic_load(&x->turn) == (uint32_t)mine;
    bool seen = look(e, x, mine);
    e->n_missed = seen ? 0 : e->n_missed + 1;
    return seen;
}

bool exchange_wait(struct exchange_page *x, enum exchange_turn mine, int64_t slice_ns, struct exchange_eye *eye)
{
    if (eye)
        eye->cpu_ns = 0;
    if (eye && look_again(eye, x, mine))
        return true;
    int64_t from = eye ? clock_thread_cpu() : 0;
    struct timespec wait = {slice_ns / 1000000000, slice_ns % 1000000000};
    uint32_t bit = 1u << mine;
    atomic_fetch_or(&x->sleepers, bit);
    uint32_t turn = atomic_load(&x->turn);
    while (turn != (uint32_t)mine) {
        long rc = futex(&x->turn, FUTEX_WAIT, turn, slice_ns ? &wait : NULL);
        turn = atomic_load(&x->turn);
        if (slice_ns && rc < 0 && errno == ETIMEDOUT)
            break;
    }
    atomic_fetch_and(&x->sleepers, ~bit);
    if (eye)
        eye->cpu_ns += clock_thread_cpu() - from;
    return turn == (uint32_t)mine;
}

/* ---- copies */

/* Bytes that the other side may change meanwhile: read once. */
static void copy(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
    __asm__ volatile("" ::: "memory");
}

static void end_text(char *text, size_t cap)
{
    text[cap - 1] = 0;
}

/* Whether a byte of an order is a bool that C knows. */
static bool take_order(const struct exchange_page *x, struct switch_order *out)
{
    unsigned char bytes[sizeof *out];
    copy(bytes, x->switch_order, sizeof bytes);
    if (bytes[offsetof(struct switch_order, release)] > 1)
        return false;
    memcpy(out, bytes, sizeof *out);
    end_text(out->reason, sizeof out->reason);
    return true;
}

static bool take_list(const struct exchange_page *x, struct exchange_verb *out)
{
    struct verb_call *c = &out->call;
    if (c->n_list < 0 || c->n_list > EXCHANGE_LIST || (!c->listed && c->n_list))
        return false;
    if (!out->list || (size_t)c->n_list > out->cap_list) {
        out->cap_list = c->n_list < 256 ? 256 : (size_t)c->n_list;
        out->list = mem_resize(out->list, out->cap_list, sizeof *out->list);
    }
    copy(out->list, x->list, (size_t)c->n_list * sizeof *out->list);
    c->list = out->list;
    return true;
}

bool exchange_take_verb(const struct exchange_page *x, struct exchange_verb *out)
{
    struct verb_call *c = &out->call;
    copy(c, &x->verb, sizeof *c);
    c->order = NULL;
    c->text = NULL;
    c->list = NULL;
    switch (c->kind) {
    case CALL_PREFILL:
        return take_list(x, out);
    case CALL_SWITCH:
        c->order = &out->order;
        return take_order(x, &out->order);
    case CALL_REFUSE:
    case CALL_HOLD:
    case CALL_LOG:
    case CALL_SAY:
        copy(out->text, x->verb_text, sizeof out->text);
        end_text(out->text, sizeof out->text);
        c->text = out->text;
        return true;
    default:
        return true;
    }
}

void exchange_take_end(const struct exchange_page *x, struct exchange_end *out)
{
    copy(out, &x->end, sizeof *out);
    end_text(out->error, sizeof out->error);
    end_text(out->why, sizeof out->why);
    end_text(out->doc, sizeof out->doc);
}

bool exchange_take_text(const struct exchange_page *x, struct buf *out)
{
    int64_t n;
    copy(&n, &x->n_text, sizeof n);
    if (n < 0 || n > EXCHANGE_TEXT)
        return false;
    buf_put(out, x->text, (size_t)n);
    return true;
}
