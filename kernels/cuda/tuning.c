#include "kernels/cuda/tuning.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "kernels/cuda/job.h"

enum { SAMPLES = 32, LEAST = 3, ENOUGH = 12, SLOTS = 4 * TUNING_MOST, MOST_FILE = 1 << 20 };
/* Of the rule's median: another way is chosen below it. */
static const float CLEARLY = 0.95f;

struct entry {
    struct tuning_key key;
    int way; /* chosen; -1: that of the rule */
    bool settled;
    int tries, n_ways, ways[TUNING_WAYS];
    int n[TUNING_WAYS];
    float us[TUNING_WAYS][SAMPLES];
};

struct tuning {
    struct monitor *lock;
    atomic_bool trying;
    char *folder, *build, *machine; /* folder NULL: nothing is kept; machine NULL: nobody was met yet */
    char file[512];
    struct entry *entries[TUNING_MOST];
    int16_t slots[SLOTS]; /* 1 + place in entries; 0: none */
    int n, n_known, n_new;
};

static const char *const family_names[] = {
    [FAM_F16] = "f16", [FAM_BF16] = "bf16", [FAM_U4] = "u4", [FAM_U4M] = "u4m", [FAM_U5] = "u5", [FAM_U5M] = "u5m",
    [FAM_S8] = "s8",   [FAM_K4] = "k4",     [FAM_K5] = "k5", [FAM_K6] = "k6",   [FAM_F8] = "f8",
};
enum { FAMILIES = sizeof family_names / sizeof *family_names };
static const char *const flag_names[] = {"-", [TUNING_GATED] = "g", [TUNING_ADDED] = "a", [TUNING_MIXED] = "m",
                                         [TUNING_MIXED | TUNING_ADDED] = "ma"};
enum { FLAGS = sizeof flag_names / sizeof *flag_names };
static const char *const way_names[WAY_KINDS] = {"skinny", "slim", "slim-finer", "wide", "widened"};

int tuning_round(int rows)
{
    for (int i = 0; i < TUNING_ROWS; i++)
        if (rows <= tuning_rows[i])
            return tuning_rows[i];
    return tuning_rows[TUNING_ROWS - 1];
}

/* ---- the table */

static uint32_t hash(const struct tuning_key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

/* Its slot, or the empty one where it would be. */
static int16_t *slot_of(struct tuning *t, const struct tuning_key *k)
{
    uint32_t i = hash(k) % SLOTS;
    while (t->slots[i] && memcmp(&t->entries[t->slots[i] - 1]->key, k, sizeof *k) != 0)
        i = (i + 1) % SLOTS;
    return &t->slots[i];
}

static struct entry *find(struct tuning *t, const struct tuning_key *k)
{
    int16_t at = *slot_of(t, k);
    return at ? t->entries[at - 1] : NULL;
}

/* NULL: the table is full. */
static struct entry *add(struct tuning *t, const struct tuning_key *k)
{
    if (t->n == TUNING_MOST)
        return NULL;
    struct entry *x = t->entries[t->n] = mem_new(sizeof *x);
    x->key = *k;
    x->way = -1;
    *slot_of(t, k) = (int16_t)++t->n;
    return x;
}

/* ---- the file */

static int way_of_name(const char *name)
{
    for (int w = 0; w < WAY_KINDS; w++) {
        size_t n = strlen(way_names[w]);
        if (strncmp(name, way_names[w], n) == 0 && !name[n])
            return w;
        if (strncmp(name, way_names[w], n) == 0 && name[n] == ':' && w == WAY_WIDE && name[n + 1] > '0' &&
            name[n + 1] < '0' + WAY_PROPOSALS && !name[n + 2])
            return w + WAY_KINDS * (name[n + 1] - '0');
    }
    return strcmp(name, "rule") == 0 ? -1 : -2;
}

static void put_way(struct buf *out, int way)
{
    buf_puts(out, way < 0 ? "rule" : way_names[way % WAY_KINDS]);
    if (way >= WAY_KINDS)
        buf_printf(out, ":%d", way / WAY_KINDS);
}

static bool read_number(const char *text, int32_t *out)
{
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    *out = (int32_t)n;
    return n > 0 && n <= INT32_MAX && !*end;
}

static bool read_family(const char *text, int32_t *out)
{
    for (int i = 0; i < FAMILIES && text; i++)
        if (family_names[i] && !strcmp(text, family_names[i])) {
            *out = i;
            return true;
        }
    return false;
}

static bool read_flags(const char *text, int32_t *out)
{
    for (int i = 0; i < FLAGS && text; i++)
        if (flag_names[i] && !strcmp(text, flag_names[i])) {
            *out = i;
            return true;
        }
    return false;
}

/* One line: a product and its way. */
static bool read_line(struct tuning *t, char *line)
{
    enum { FIELDS = 7 };
    struct tuning_key k = {0};
    char *field[FIELDS + 1] = {NULL}, *rest = NULL;
    int n = 0;
    for (char *at = strtok_r(line, " ", &rest); at && n <= FIELDS; at = strtok_r(NULL, " ", &rest))
        field[n++] = at;
    if (n != FIELDS || !read_family(field[0], &k.family) || !read_number(field[1], &k.rows) ||
        !read_number(field[2], &k.outs) || !read_number(field[3], &k.cols) || !read_number(field[4], &k.n_out) ||
        !read_flags(field[5], &k.flags))
        return false;
    int way = way_of_name(field[6]);
    struct entry *x = way < -1 || find(t, &k) ? NULL : add(t, &k);
    if (!x)
        return false;
    x->way = way;
    x->settled = true;
    t->n_known++;
    return true;
}

static void forget_all(struct tuning *t)
{
    for (int i = 0; i < t->n; i++)
        mem_free(t->entries[i]);
    memset(t->slots, 0, sizeof t->slots);
    t->n = t->n_known = 0;
}

static void read_file(struct tuning *t)
{
    struct buf text = {0};
    struct err e;
    struct stat st;
    if (stat(t->file, &st) < 0 && errno == ENOENT)
        return;
    if (file_read(&text, t->file, MOST_FILE, &e)) {
        log_warn("cuda", "What products take is tried anew: %s", e.text);
        buf_free(&text);
        return;
    }
    int n = 0;
    char *rest = NULL, *line = text.len ? strtok_r(text.data, "\n", &rest) : NULL;
    bool good = line && !strcmp(line, t->machine);
    while (good && (line = strtok_r(NULL, "\n", &rest))) {
        n++;
        good = read_line(t, line);
    }
    if (!good) {
        log_warn("cuda", "%s is not what was chosen here before (line %d): products are tried anew", t->file, n + 1);
        forget_all(t);
    }
    buf_free(&text);
}

static void put_entry(struct buf *out, const struct entry *x)
{
    buf_printf(out, "%s %d %d %d %d %s ", family_names[x->key.family], x->key.rows, x->key.outs, x->key.cols,
               x->key.n_out, flag_names[x->key.flags]);
    put_way(out, x->way);
    buf_putc(out, '\n');
}

static bool write_file(struct tuning *t)
{
    struct buf out = {0};
    struct err e;
    buf_printf(&out, "%s\n", t->machine);
    for (int i = 0; i < t->n; i++)
        if (t->entries[i]->settled)
            put_entry(&out, t->entries[i]);
    int rc = file_replace(t->file, out.data, out.len, &e);
    buf_free(&out);
    if (rc)
        log_warn("cuda", "What products take is not kept: %s", e.text);
    return rc == 0;
}

/* ---- */

static struct tuning *tuning_open(const char *folder, const char *build)
{
    struct tuning *t = mem_new(sizeof *t);
    t->lock = monitor_new();
    t->folder = folder ? mem_strdup(folder) : NULL;
    t->build = mem_strdup(build);
    return t;
}

static void tuning_close(struct tuning *t)
{
    if (!t)
        return;
    forget_all(t);
    monitor_free(t->lock);
    mem_free(t->folder);
    mem_free(t->build);
    mem_free(t->machine);
    mem_free(t);
}

static void meet(struct tuning *t, const char *machine)
{
    struct buf name = {0};
    char hex[65];
    buf_printf(&name, "# moonshift products 1; %s; %s", machine, t->build);
    t->machine = buf_take(&name);
    if (!t->folder)
        return;
    struct sha256 digest = hash_sha256(t->machine, strlen(t->machine));
    hash_hex(&digest, hex);
    if ((size_t)snprintf(t->file, sizeof t->file, "%s/products-%.16s.txt", t->folder, hex) >= sizeof t->file) {
        t->file[0] = 0;
        log_warn("cuda", "What products take is not kept: the name of the folder is too long");
        return;
    }
    read_file(t);
}

void tuning_meet(struct tuning *t, const char *machine)
{
    monitor_lock(t->lock);
    if (!t->machine)
        meet(t, machine);
    monitor_unlock(t->lock);
}

static void tuning_begin(struct tuning *t)
{
    atomic_store(&t->trying, true);
}

/* ---- trials */

static int place_of(const struct entry *x, int way)
{
    for (int i = 0; i < x->n_ways; i++)
        if (x->ways[i] == way)
            return i;
    return -1;
}

static int least_tried(const struct entry *x)
{
    int least = SAMPLES;
    for (int i = 0; i < x->n_ways; i++)
        least = x->n[i] < least ? x->n[i] : least;
    return least;
}

bool tuning_next(struct tuning *t, const struct tuning_key *k, const int *ways, int n, int *way)
{
    if (!atomic_load_explicit(&t->trying, memory_order_relaxed))
        return false;
    ASSERT(n > 1 && n <= TUNING_WAYS);
    monitor_lock(t->lock);
    struct entry *x = find(t, k);
    if (!x)
        x = add(t, k);
    bool tries = x && !x->settled && x->tries < ENOUGH * n;
    if (tries) {
        x->n_ways = n;
        memcpy(x->ways, ways, (size_t)n * sizeof *ways);
        *way = ways[x->tries++ % n];
    }
    monitor_unlock(t->lock);
    return tries;
}

void tuning_add(struct tuning *t, const struct tuning_key *k, int way, float us)
{
    monitor_lock(t->lock);
    struct entry *x = find(t, k);
    int i = x ? place_of(x, way) : -1;
    if (i >= 0 && x->n[i] < SAMPLES)
        x->us[i][x->n[i]++] = us;
    monitor_unlock(t->lock);
}

static bool tuning_wants(struct tuning *t)
{
    bool wants = false;
    monitor_lock(t->lock);
    for (int i = 0; i < t->n && !wants; i++)
        wants = !t->entries[i]->settled && least_tried(t->entries[i]) < LEAST;
    monitor_unlock(t->lock);
    return wants;
}

static int by_size(const void *x, const void *y)
{
    float a = *(const float *)x, b = *(const float *)y;
    return (a > b) - (a < b);
}

/* The fastest way, if it is clearly faster than the rule's; -1: the rule's. */
static int decide(struct entry *x)
{
    float best = 0;
    int way = -1;
    for (int i = 0; i < x->n_ways; i++) {
        qsort(x->us[i], (size_t)x->n[i], sizeof *x->us[i], by_size);
        float median = x->us[i][x->n[i] / 2];
        if (i == 0) {
            best = CLEARLY * median;
        } else if (median < best) {
            best = median;
            way = x->ways[i];
        }
    }
    return way;
}

static void tuning_settle(struct tuning *t, struct tuning_report *out)
{
    bool new = false;
    *out = (struct tuning_report){.n_known = t->n_known};
    monitor_lock(t->lock);
    atomic_store(&t->trying, false);
    for (int i = 0; i < t->n; i++) {
        struct entry *x = t->entries[i];
        if (!x->settled && x->n_ways && least_tried(x) >= LEAST) {
            x->way = decide(x);
            x->settled = new = true;
        }
        out->n_products += x->settled;
        out->n_other += x->settled && x->way >= 0;
    }
    if (t->n == TUNING_MOST && t->file[0])
        log_warn("cuda", "%s has %d products and room for no more: delete it, and those of today are tried anew",
                 t->file, t->n);
    if (t->file[0])
        snprintf(out->file, sizeof out->file, "%s", t->file);
    out->written = new && t->file[0] && write_file(t);
    monitor_unlock(t->lock);
}

int tuning_choice(struct tuning *t, const struct tuning_key *k, const int *ways, int n)
{
    bool locks = atomic_load_explicit(&t->trying, memory_order_acquire);
    if (locks)
        monitor_lock(t->lock);
    const struct entry *x = find(t, k);
    int way = x && x->settled ? x->way : -1;
    if (locks)
        monitor_unlock(t->lock);
    for (int i = 0; i < n; i++)
        if (ways[i] == way)
            return way;
    return ways[0];
}

const struct tuning_ops *tuning_ops(void)
{
    static const struct tuning_ops ops = {tuning_open, tuning_close, tuning_begin, tuning_wants, tuning_settle};
    return &ops;
}
