#include "engine/lab/recording/record_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mixed(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint64_t mixed_text(uint64_t h, const char *text, size_t n)
{
    for (uint64_t word; n; n -= n < 8 ? n : 8, text += 8) {
        word = n;
        memcpy(&word, text, n < 8 ? n : 8);
        h = mixed(h, word);
    }
    return h;
}

static void put_i64(struct buf *out, int64_t v)
{
    if (v < 0)
        buf_putc(out, '-');
    buf_put_u64(out, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

static void put_hex(struct buf *out, uint64_t v)
{
    static const char hex[] = "0123456789abcdef";
    char text[16];
    int i = 16;
    do
        text[--i] = hex[v & 15];
    while (v >>= 4);
    buf_put(out, text + i, (size_t)(16 - i));
}

static void put_layout(struct buf *out, struct layout l)
{
    put_i64(out, l.sp);
    buf_putc(out, 'x');
    put_i64(out, l.tp);
    if (l.pp > 1) {
        buf_putc(out, 'x');
        put_i64(out, l.pp);
    }
}

/* Prompts, starts and draft tokens by name; who merely decodes is in the digest. */
static uint64_t put_items(struct buf *out, const struct plan_batch *b, uint64_t h)
{
    char before = ':';
    for (int i = 0; i < b->n_items; i++) {
        const struct plan_item *it = &b->items[i];
        h = mixed(h, it->request->order * 0x9e3779b97f4a7c15u ^
                         ((uint64_t)it->n_tokens << 32 | (uint64_t)it->n_prefix << 1 | it->starts));
        if (it->n_tokens == 1 && !it->starts && !it->drafts.n)
            continue;
        buf_putc(out, before);
        buf_put_u64(out, it->request->order);
        buf_putc(out, '+');
        put_i64(out, it->n_tokens);
        if (it->starts)
            buf_putc(out, '*');
        if (it->drafts.n)
            buf_printf(out, "~%dx%d", it->source, it->drafts.n);
        before = ',';
    }
    return h;
}

static uint64_t put_batch(struct buf *out, const struct plan_batch *b, uint64_t h)
{
    const int64_t numbers[] = {b->n_tokens, b->n_items, b->n_decodes};
    buf_puts(out, " B");
    put_i64(out, b->group_id);
    buf_putc(out, ':');
    put_layout(out, b->layout);
    for (int i = 0; i < 3; i++) {
        buf_putc(out, ':');
        put_i64(out, numbers[i]);
    }
    return put_items(out, b, h);
}

static void put_order(struct buf *out, const struct switch_order *o)
{
    buf_puts(out, " O");
    put_hex(out, o->mask);
    buf_printf(out, ":%s:%s:%s:", o->release ? "release" : "bind", switch_when_name(o->when), kv_fate_name(o->fate));
    put_layout(out, o->base);
    buf_putc(out, ':');
    put_i64(out, o->max_wait_ns);
    if (o->weights.tp) {
        buf_putc(out, '~');
        put_layout(out, o->weights);
    }
    for (int i = 0; i < o->n_named; i++)
        buf_printf(out, "%c%" PRIu64, i ? ',' : ':', o->named[i]);
}

static void put_verb(struct buf *out, const struct plan_verb *v, int64_t now_ns)
{
    uint64_t order = v->request ? v->request->order : 0;
    switch (v->kind) {
    case PLAN_PREEMPT:
        buf_printf(out, " P%" PRIu64 ":%s", order, v->how == PREEMPT_HARD ? "park" : "recompute");
        break;
    case PLAN_REFUSE:
        buf_printf(out, " R%" PRIu64 ":%d:%d", order, v->code, v->retry_after_s);
        break;
    case PLAN_REMAP:
        buf_printf(out, " M%" PRIu64 ":%d:%s", order, v->group, kv_fate_name(v->fate));
        break;
    case PLAN_SWITCH:
        put_order(out, v->order);
        break;
    case PLAN_CLOSE:
        buf_printf(out, " C%d:%d", v->group, v->closed);
        break;
    case PLAN_COMM:
        buf_puts(out, " A");
        put_hex(out, v->ranks);
        buf_printf(out, ":%d", v->algorithm);
        break;
    case PLAN_FFN:
        buf_printf(out, " F%d:%d:%d:%s", v->group, v->from, v->to, ffn_mode_name(v->mode));
        break;
    case PLAN_WEIGHTS:
        buf_printf(out, " L%d:%d:%d", v->from, v->to, v->replicated);
        break;
    case PLAN_HOLD:
        buf_printf(out, " H%" PRIu64 ":%" PRId64, order, v->until_ns ? v->until_ns - now_ns : 0);
        break;
    case PLAN_EVICT:
        buf_printf(out, " E%d", (int)v->evict);
        break;
    case PLAN_EMBED: /* neither is while a server records to a file, and a window passes them by */
    case PLAN_PROBE:
    case PLAN_CONCLUDE:
    case PLAN_LOG:
        break; /* words change nothing */
    }
}

void record_plan(struct buf *out, const struct plan *p)
{
    static const char hex[] = "0123456789abcdef";
    size_t at = out->len;
    uint64_t h = 1;
    buf_puts(out, "D0000000000000000");
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            h = put_batch(out, p->batches[i], h);
    for (int i = 0; i < p->n_verbs; i++)
        put_verb(out, &p->verbs[i], p->now_ns);
    if (p->wake_ns) {
        buf_puts(out, " W");
        put_i64(out, p->wake_ns - p->now_ns);
    }
    h = mixed_text(h, out->data + at + 17, out->len - at - 17);
    for (int i = 0; i < 16; i++)
        out->data[at + 16 - (size_t)i] = hex[h >> 4 * i & 15];
}

/* ---- in words */

/* Up to n fields of one word, cut at the colons. Returns how many. */
static int fields_of(char *word, char *fields[8])
{
    int n = 0;
    for (char *c = word; c && n < 8; n++) {
        fields[n] = c;
        c = strchr(c, ':');
        if (c)
            *c++ = 0;
    }
    return n;
}

/* "4x2" as "sp 4 tp 2", "1x2x4" as "sp 1 tp 2 pp 4". */
static void layout_words(struct buf *out, const char *text)
{
    static const char *const names[] = {"sp", " tp", " pp"};
    for (int i = 0; i < 3 && *text; i++) {
        int n = (int)strcspn(text, "x");
        buf_printf(out, "%s %.*s", names[i], n < 10 ? n : 10, text);
        text += text[n] ? n + 1 : n;
    }
}

static void batch_words(struct buf *out, char **f, int n)
{
    if (n < 5) {
        buf_puts(out, "a batch that cannot be read");
        return;
    }
    buf_printf(out, "group %.20s runs %.20s tokens of %.20s requests (%.20s decode) as ", f[0], f[2], f[3], f[4]);
    layout_words(out, f[1]);
    if (n > 5)
        buf_printf(out, ", prompts%s %.200s", strchr(f[5], '~') ? " and draft tokens" : "", f[5]);
}

static void ffn_words(struct buf *out, char **f, int n)
{
    if (n < 4) {
        buf_puts(out, "a way of FFN layers that cannot be read");
        return;
    }
    if (atoi(f[0]) == PLAN_ALL_GROUPS)
        buf_puts(out, "all groups take");
    else
        buf_printf(out, "group %.20s takes", f[0]);
    buf_printf(out, " the FFN layers %.20s to %d as %.10s", f[1], atoi(f[2]) - 1, f[3]);
}

static void word_words(struct buf *out, char *word)
{
    char *f[8] = {0}, kind = *word;
    int n = fields_of(word + 1, f);
    const char *second = n > 1 ? f[1] : "?", *third = n > 2 ? f[2] : "?";
    switch (kind) {
    case 'B':
        batch_words(out, f, n);
        break;
    case 'P':
        buf_printf(out, "request %.20s gives way (%.20s)", f[0], second);
        break;
    case 'R':
        buf_printf(out, "request %.20s is refused with %.20s", f[0], second);
        break;
    case 'H':
        buf_printf(out, *second == '0' ? "request %.20s is let go" : "request %.20s is held", f[0]);
        break;
    case 'M':
        buf_printf(out, "request %.20s goes to group %.20s (%.20s)", f[0], second, third);
        break;
    case 'O':
        buf_printf(out, "%.10s ranks 0x%.20s (%.20s, %.20s)", second, f[0], third, n > 3 ? f[3] : "?");
        break;
    case 'C':
        buf_printf(out, "group %.20s is %s", f[0], *second == '1' ? "closed" : "opened");
        break;
    case 'A':
        buf_printf(out, "ranks 0x%.20s reduce with algorithm %.4s", f[0], second);
        break;
    case 'F':
        ffn_words(out, f, n);
        break;
    case 'L':
        buf_printf(out, "the FFN layers %.20s to %d are to be %s", f[0], atoi(second) - 1,
                   *third == '1' ? "on every rank" : "pooled");
        break;
    case 'E':
        buf_printf(out, "texts for draft tokens go by rule %.4s", f[0]);
        break;
    case 'W':
        buf_printf(out, "wake after %.3f ms", (double)strtoll(f[0], NULL, 10) * 1e-6);
        break;
    default:
        buf_printf(out, "%c%.40s", kind, f[0]);
        break;
    }
}

void record_plan_words(struct buf *out, const char *text)
{
    struct buf copy = {0};
    const char *comma = "";
    buf_puts(&copy, text);
    for (char *word = copy.data, *next; word && *word; word = next) {
        next = strchr(word, ' ');
        if (next)
            *next++ = 0;
        if (*word == 'D')
            continue; /* the digest says nothing to people */
        buf_puts(out, comma);
        word_words(out, word);
        comma = "; ";
    }
    if (!*comma)
        buf_puts(out, "nothing is run");
    buf_free(&copy);
}
