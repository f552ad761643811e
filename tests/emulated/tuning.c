/* Products are tried in every way there is, and take the fastest from then on, also at the next start. The linker puts
 * the functions below before the backend's own: they make up what each way takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/tuning.h"
#include "tests/emulator/lt_twin.h"

enum { SIDE = 16, COLS = 1536, MOST_ROWS = 512, EVENTS = 1 << 14 };

/* What each way takes in microseconds, and how often it was taken. */
static double takes[TUNING_WAYS * WAY_KINDS], now_us;
static int taken[TUNING_WAYS * WAY_KINDS];
static struct {
    cudaEvent_t event;
    double at;
} clocks[EVENTS];
static int n_sms;
static bool was_widened; /* what the library multiplies next */

static void pass(int way)
{
    taken[way]++;
    now_us += takes[way];
}

cudaError_t __real_cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t __wrap_cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t __wrap_cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    int i = 0;
    while (clocks[i].event && clocks[i].event != e)
        i++;
    clocks[i].event = e;
    clocks[i].at = now_us;
    return __real_cudaEventRecord(e, s);
}

static double clock_of(cudaEvent_t e)
{
    int i = 0;
    while (clocks[i].event != e)
        i++;
    return clocks[i].at;
}

cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(clock_of(to) - clock_of(from)) / 1000;
    return cudaSuccess;
}

cudaError_t __real_launch_skinny(cudaStream_t s, const struct skinny_job *j);
cudaError_t __wrap_launch_skinny(cudaStream_t s, const struct skinny_job *j);
cudaError_t __wrap_launch_skinny(cudaStream_t s, const struct skinny_job *j)
{
    pass(WAY_SKINNY);
    return __real_launch_skinny(s, j);
}

cudaError_t __real_launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r);
cudaError_t __wrap_launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r);
cudaError_t __wrap_launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r)
{
    struct slim_room once;
    slim_cut(j, n_sms, &once);
    pass(r->n_parts > once.n_parts ? WAY_SLIM_FINER : WAY_SLIM);
    return __real_launch_slim(s, j, r);
}

bool __real_lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace);
bool __wrap_lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace);
bool __wrap_lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace)
{
    if (!was_widened)
        pass(WAY_WIDE + WAY_KINDS * p->proposal);
    was_widened = false;
    return __real_lt_multiply(l, s, p, workspace);
}

cudaError_t __real_launch_tile(cudaStream_t s, const struct fast_job *j);
cudaError_t __wrap_launch_tile(cudaStream_t s, const struct fast_job *j);
cudaError_t __wrap_launch_tile(cudaStream_t s, const struct fast_job *j)
{
    pass(WAY_WIDE);
    return __real_launch_tile(s, j);
}

cudaError_t __real_launch_widen(cudaStream_t s, const struct widen_job *j);
cudaError_t __wrap_launch_widen(cudaStream_t s, const struct widen_job *j);
cudaError_t __wrap_launch_widen(cudaStream_t s, const struct widen_job *j)
{
    pass(WAY_WIDENED);
    was_widened = true;
    return __real_launch_widen(s, j);
}

static bool is_full; /* no memory for anything large */

void *__real_heap_take(struct heap *h, size_t bytes);
void *__wrap_heap_take(struct heap *h, size_t bytes);
void *__wrap_heap_take(struct heap *h, size_t bytes)
{
    return is_full && bytes >= 16 << 20 ? NULL : __real_heap_take(h, bytes);
}

/* ---- a device with a matrix */

struct bench {
    struct tuning *tuning;
    struct device *d;
    struct weight *w;
    float *x, *y;
    enum dtype type;
};

static char folder[] = "/tmp/moonshift-tuning-XXXXXX";

static int weight_number(int out, int col)
{
    return (out * 7 + col * 3) % 5 - 2;
}

static int input_number(int row, int col)
{
    return (row * 5 + col * 4) % 15 - 7;
}

static void load(struct bench *b)
{
    size_t bytes = dtype_row_bytes(b->type, COLS);
    uint8_t *data = calloc(SIDE, bytes);
    struct err e = {0};
    for (int out = 0; out < SIDE; out++)
        for (int col = 0; col < COLS; col++) {
            uint8_t *row = data + (size_t)out * bytes;
            if (b->type == DT_BF16)
                ((uint16_t *)(void *)row)[col] = f32_to_bf16((float)weight_number(out, col));
            else { /* Q8_0: a scale of 1 and 32 numbers */
                uint8_t *block = row + (size_t)(col / 32) * 34;
                uint16_t one = f32_to_f16(1);
                memcpy(block, &one, sizeof one);
                block[2 + col % 32] = (uint8_t)(int8_t)weight_number(out, col);
            }
        }
    struct weight_src src = {.type = b->type, .rows = SIDE, .cols = COLS, .data = data};
    if (cuda_weight_load(b->d, &b->w, &src, &e))
        fail_msg("%s", e.text);
    free(data);
}

static void open_device(struct bench *b, struct tuning *t, enum dtype type)
{
    const struct device_opts o = {.max_rows = MOST_ROWS, .max_logits = 4, .tuning = t};
    const size_t bytes = (size_t)MOST_ROWS * COLS * sizeof(float);
    struct err e = {0};
    float *x = malloc(bytes);
    *b = (struct bench){.tuning = t, .type = type};
    if (backend_cuda()->open(&b->d, &o, &e))
        fail_msg("%s", e.text);
    n_sms = b->d->n_sms = 1; /* so that there is a finer cut of so small a product */
    b->d->pdl = false;       /* so that all ways are tried */
    load(b);
    b->x = backend_cuda()->alloc(b->d, bytes);
    b->y = backend_cuda()->alloc(b->d, bytes);
    for (int i = 0; i < MOST_ROWS * COLS; i++)
        x[i] = (float)input_number(i / COLS, i % COLS);
    assert_int_equal(backend_cuda()->upload(b->d, b->x, x, bytes), 0);
    free(x);
}

static void close_device(struct bench *b)
{
    cuda_weight_free(b->d, b->w);
    backend_cuda()->release(b->d, b->x);
    backend_cuda()->release(b->d, b->y);
    backend_cuda()->close(b->d);
}

static void expect_right(const float *y, int rows)
{
    for (int row = 0; row < rows; row += 7)
        for (int out = 0; out < SIDE; out += 5) {
            double should = 0;
            for (int col = 0; col < COLS; col++)
                should += weight_number(out, col) * input_number(row, col);
            if ((double)y[row * SIDE + out] != should)
                fail_msg("row %d, output %d: %g is not %g", row, out, (double)y[row * SIDE + out], should);
        }
}

/* A step of products; all ways are exact on these numbers. */
static void multiply(struct bench *b, int rows, int times)
{
    static const int32_t nothing[MOST_ROWS];
    struct batch step = {.n_rows = rows, .ids = nothing, .positions = nothing};
    struct linear_args a = {.in = LINEAR_PLAIN,
                            .x = {b->x, COLS, COLS},
                            .rows = rows,
                            .n_out = 1,
                            .out = {{{b->w, 0, SIDE, 0, COLS}, NULL, {b->y, SIDE, SIDE}}}};
    float *y = malloc((size_t)rows * SIDE * sizeof *y);
    struct err e = {0};
    memset(taken, 0, sizeof taken);
    assert_int_equal(cuda_begin(b->d, &step, NULL, &e), 0);
    for (int i = 0; i < times; i++)
        cuda_product(b->d, &a);
    if (cuda_finish(b->d, NULL, &e))
        fail_msg("%s", e.text);
    assert_int_equal(backend_cuda()->download(b->d, y, b->y, (size_t)rows * SIDE * sizeof *y), 0);
    expect_right(y, rows);
    free(y);
}

static void ways_take(double skinny, double slim, double finer, double wide, double widened)
{
    const double all[WAY_KINDS] = {skinny, slim, finer, wide, widened};
    memset(takes, 0, sizeof takes);
    memcpy(takes, all, sizeof all);
    for (int i = 1; i < WAY_PROPOSALS; i++)
        takes[WAY_WIDE + WAY_KINDS * i] = wide;
}

static struct tuning_report try_all(struct bench *b, int rows)
{
    const struct tuning_ops *o = tuning_ops();
    struct tuning_report r;
    o->begin(b->tuning);
    multiply(b, rows, 2);
    assert_true(o->wants(b->tuning));
    multiply(b, rows, 7);
    assert_false(o->wants(b->tuning));
    o->settle(b->tuning, &r);
    return r;
}

static int way_at(struct bench *b, int rows)
{
    multiply(b, rows, 1);
    for (int i = 0; i < TUNING_WAYS * WAY_KINDS; i++)
        if (taken[i])
            return i;
    return -1;
}

/* ---- what is chosen */

static void the_fastest_way_is_taken(void **state)
{
    static const struct {
        enum dtype type;
        int rows;
        double takes[WAY_KINDS];
        int rule, way;
    } cases[] = {
        {DT_BF16, 4, {10, 8, 9, 0, 0}, WAY_SKINNY, WAY_SLIM},
        {DT_BF16, 4, {10, 9.7, 9.6, 0, 0}, WAY_SKINNY, WAY_SKINNY}, /* not clearly */
        {DT_BF16, 16, {0, 10, 7, 8, 0}, WAY_SLIM, WAY_SLIM_FINER},
        {DT_BF16, 12, {0, 10, 11, 5, 0}, WAY_SLIM, WAY_WIDE},
        {DT_BF16, 60, {0, 4, 11, 5, 0}, WAY_WIDE, WAY_SLIM},
        {DT_Q8_0, 3, {10, 5, 6, 0, 0}, WAY_SKINNY, WAY_SLIM},
        {DT_Q8_0, 8, {10, 5, 10, 0, 0}, WAY_SKINNY, WAY_SLIM},
        {DT_Q8_0, 40, {0, 10, 10, 5, 0}, WAY_SLIM, WAY_WIDE},
        {DT_Q8_0, 120, {0, 0, 0, 10, 2}, WAY_WIDE, WAY_WIDENED},
        {DT_Q8_0, 500, {0, 0, 0, 3, 10}, WAY_WIDENED, WAY_WIDE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tuning *t = tuning_ops()->open(NULL, "here");
        struct bench b;
        const double *u = cases[i].takes;
        ways_take(u[0], u[1], u[2], u[3], u[4]);
        open_device(&b, t, cases[i].type);
        if (way_at(&b, cases[i].rows) != cases[i].rule)
            fail_msg("case %zu: untried it takes way %d", i, way_at(&b, cases[i].rows));
        struct tuning_report r = try_all(&b, cases[i].rows);
        assert_int_equal(r.n_products, 1);
        assert_int_equal(r.n_other, cases[i].way != cases[i].rule);
        if (way_at(&b, cases[i].rows) != cases[i].way)
            fail_msg("case %zu: it takes way %d", i, way_at(&b, cases[i].rows));
        close_device(&b);
        tuning_ops()->close(t);
    }
}

/* Where kernels begin early a trial would not see what the one for fewest rows gains by it. */
static void what_begins_early_is_not_tried(void **state)
{
    struct tuning *t = tuning_ops()->open(NULL, "here");
    struct tuning_report r;
    struct bench b;
    (void)state;
    ways_take(10, 5, 6, 0, 0);
    open_device(&b, t, DT_BF16);
    b.d->pdl = true;
    tuning_ops()->begin(t);
    multiply(&b, 8, 9);
    assert_int_equal(taken[WAY_SKINNY], 9);
    assert_false(tuning_ops()->wants(t));
    tuning_ops()->settle(t, &r);
    assert_int_equal(r.n_products, 0);
    close_device(&b);
    tuning_ops()->close(t);
}

/* lean.cu wants more shared memory of a CTA than some devices have. */
static void a_way_that_does_not_fit_is_left(void **state)
{
    struct bench b;
    (void)state;
    ways_take(5, 10, 11, 0, 0);
    open_device(&b, NULL, DT_Q8_0);
    assert_int_equal(way_at(&b, 4), WAY_SKINNY);
    b.d->cta_shared = 99 << 10;
    assert_int_equal(way_at(&b, 4), WAY_SLIM);
    close_device(&b);
}

/* What the library proposes second may be faster, for the number of rows that it was proposed for. */
static void the_librarys_proposals_are_tried(void **state)
{
    struct tuning *t = tuning_ops()->open(NULL, "here");
    struct bench b;
    (void)state;
    ways_take(0, 0, 0, 10, 0);
    takes[WAY_WIDE + WAY_KINDS] = 4;
    takes[WAY_WIDE + 2 * WAY_KINDS] = 6;
    open_device(&b, t, DT_BF16);
    try_all(&b, 80);
    assert_int_equal(way_at(&b, 80), WAY_WIDE + WAY_KINDS);
    assert_int_equal(lt_twin_proposal(), 1);
    assert_int_equal(way_at(&b, 96), WAY_WIDE);
    assert_int_equal(lt_twin_proposal(), 0);
    close_device(&b);
    tuning_ops()->close(t);
}

/* Rows between two sizes that were tried go by the larger one. */
static void rows_between_go_by_the_next_size(void **state)
{
    struct tuning *t = tuning_ops()->open(NULL, "here");
    struct bench b;
    (void)state;
    ways_take(0, 10, 11, 5, 0);
    open_device(&b, t, DT_Q8_0);
    try_all(&b, 32);
    assert_int_equal(way_at(&b, 17), WAY_WIDE);
    assert_int_equal(way_at(&b, 32), WAY_WIDE);
    assert_int_equal(way_at(&b, 16), WAY_SLIM);
    assert_int_equal(way_at(&b, 33), WAY_SLIM);
    close_device(&b);
    tuning_ops()->close(t);
}

/* A choice is all devices', also one that tried nothing, and no device takes what it has not. */
static void devices_choose_alike(void **state)
{
    struct tuning *t = tuning_ops()->open(NULL, "here");
    struct bench one, other;
    (void)state;
    ways_take(10, 5, 6, 0, 0);
    open_device(&one, t, DT_BF16);
    open_device(&other, t, DT_BF16);
    try_all(&one, 4);
    assert_int_equal(way_at(&other, 4), WAY_SLIM);
    other.d->no_slim = true;
    assert_int_equal(way_at(&other, 4), WAY_SKINNY);
    close_device(&one);
    close_device(&other);
    tuning_ops()->close(t);
}

/* Once settled, nothing is timed any more. */
static void a_server_times_nothing(void **state)
{
    struct tuning *t = tuning_ops()->open(NULL, "here");
    struct bench b;
    struct tuning_report r;
    (void)state;
    ways_take(10, 5, 6, 0, 0);
    open_device(&b, t, DT_BF16);
    try_all(&b, 4);
    double before = now_us;
    multiply(&b, 4, 30);
    assert_int_equal(taken[WAY_SLIM], 30);
    assert_true(now_us == before + 30 * takes[WAY_SLIM]);
    multiply(&b, 16, 8);
    tuning_ops()->settle(t, &r);
    assert_int_equal(r.n_products, 1);
    close_device(&b);
    tuning_ops()->close(t);
}

/* A way whose memory is not there is not tried, nor taken when a file says so, and that is no error. */
static void a_way_without_memory_is_left(void **state)
{
    struct tuning *t = tuning_ops()->open(NULL, "here");
    struct tuning_report r;
    struct bench b;
    (void)state;
    ways_take(0, 10, 11, 5, 0);
    is_full = true;
    open_device(&b, t, DT_BF16);
    tuning_ops()->begin(t);
    multiply(&b, 16, 9);
    assert_int_equal(taken[WAY_WIDE], 0);
    tuning_ops()->settle(t, &r);
    assert_int_equal(r.n_products, 0);
    is_full = false;
    try_all(&b, 16);
    assert_int_equal(way_at(&b, 16), WAY_WIDE);
    is_full = true;
    b.d->work->workspace = (struct scratch){0};
    assert_int_equal(way_at(&b, 16), WAY_SLIM);
    is_full = false;
    close_device(&b);
    tuning_ops()->close(t);
}

/* ---- the file */

static char *kept_file(void)
{
    static char path[512];
    struct tuning_report r;
    struct tuning *t = tuning_ops()->open(folder, "here");
    struct bench b;
    ways_take(0, 10, 11, 5, 0);
    open_device(&b, t, DT_BF16);
    r = try_all(&b, 16);
    assert_true(r.written);
    snprintf(path, sizeof path, "%s", r.file);
    close_device(&b);
    tuning_ops()->close(t);
    return path;
}

/* The way at 16 rows without a trial, and how many products a start knows. */
static int start(const char *build, int *known)
{
    struct tuning *t = tuning_ops()->open(folder, build);
    struct tuning_report r;
    struct bench b;
    open_device(&b, t, DT_BF16);
    tuning_ops()->begin(t);
    tuning_ops()->settle(t, &r);
    *known = r.n_known;
    assert_false(r.written);
    int way = way_at(&b, 16);
    close_device(&b);
    tuning_ops()->close(t);
    return way;
}

static void the_next_start_takes_what_was_kept(void **state)
{
    int known;
    const char *path = kept_file();
    (void)state;
    assert_int_equal(start("here", &known), WAY_WIDE);
    assert_int_equal(known, 1);
    assert_int_equal(start("another build", &known), WAY_SLIM);
    assert_int_equal(known, 0);
    /* what is known is not tried again, what is new is, and is kept beside it */
    struct tuning *t = tuning_ops()->open(folder, "here");
    struct tuning_report r;
    struct bench b;
    open_device(&b, t, DT_BF16);
    tuning_ops()->begin(t);
    multiply(&b, 16, 6);
    assert_int_equal(taken[WAY_WIDE], 6);
    multiply(&b, 48, 9);
    assert_int_equal(taken[WAY_WIDE], 3);
    tuning_ops()->settle(t, &r);
    assert_true(r.written);
    close_device(&b);
    tuning_ops()->close(t);
    assert_int_equal(start("here", &known), WAY_WIDE);
    assert_int_equal(known, 2);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(start("here", &known), WAY_SLIM);
}

/* Of every kind that there is: with a gate, added to what is there, of two types. */
static void every_kind_of_product_is_kept(void **state)
{
    static const int flags[] = {0, TUNING_GATED, TUNING_ADDED, TUNING_MIXED, TUNING_MIXED | TUNING_ADDED};
    static const int ways[] = {WAY_SLIM, WAY_SKINNY, WAY_WIDE + WAY_KINDS * 2};
    enum { N = sizeof flags / sizeof *flags, WAYS = sizeof ways / sizeof *ways };
    struct tuning_report r;
    (void)state;
    for (int turn = 0; turn < 2; turn++) { /* tries them; then reads what the first has kept */
        struct tuning *t = tuning_ops()->open(folder, "here");
        tuning_meet(t, "a machine");
        tuning_ops()->begin(t);
        for (int i = 0; i < N; i++) {
            struct tuning_key k = {FAM_K4, 4, 64, 256, 3, flags[i]};
            for (int way; tuning_next(t, &k, ways, WAYS, &way);)
                tuning_add(t, &k, way, way == ways[i % WAYS] ? 1 : 2);
        }
        tuning_ops()->settle(t, &r);
        assert_int_equal(r.n_known, turn ? N : 0);
        assert_int_equal(r.written, !turn);
        for (int i = 0; i < N; i++) {
            struct tuning_key k = {FAM_K4, 4, 64, 256, 3, flags[i]};
            assert_int_equal(tuning_choice(t, &k, ways, WAYS), ways[i % WAYS]);
        }
        tuning_ops()->close(t);
    }
    assert_int_equal(unlink(r.file), 0);
}

static void a_spoilt_file_is_ignored(void **state)
{
    static const char *const lines[] = {"",
                                        "bf16",
                                        "bf16 16 16 1536 1 - sideways",
                                        "bf16 16 16 1536 1 - wide:9",
                                        "bf16 16 16 1536 1 - wide:",
                                        "bf16 0 16 1536 1 - wide",
                                        "bf16 16 -16 1536 1 - wide",
                                        "q9 16 16 1536 1 - wide",
                                        "bf16 16 16 1536 1 - wide\nbf16 16 16 1536 1 - slim",
                                        "bf16 99999999999999999999 16 1536 1 - wide",
                                        "bf16 16 16 1536 1 - wide twice",
                                        "bf16 16 16 1536 1 x wide",
                                        "bf16 16 16 15a36 1 - wide",
                                        "\xff\xfe garbage"};
    char *path = strdup(kept_file());
    struct buf whole = {0};
    struct err e;
    (void)state;
    assert_int_equal(file_read(&whole, path, 1 << 20, &e), 0);
    size_t head = strcspn(whole.data, "\n") + 1;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct buf text = {0};
        int known;
        buf_put(&text, whole.data, head);
        buf_puts(&text, lines[i]);
        buf_puts(&text, "\n");
        assert_int_equal(file_replace(path, text.data, text.len, &e), 0);
        if (start("here", &known) != WAY_SLIM || known)
            fail_msg("line %zu: %d products are known by it", i, known);
        buf_free(&text);
    }
    static const char other[] = "another machine\nbf16 16 16 1536 1 - wide\n";
    int known;
    assert_int_equal(file_replace(path, other, strlen(other), &e), 0);
    assert_int_equal(start("here", &known), WAY_SLIM);
    unlink(path);
    free(path);
    buf_free(&whole);
}

/* What is known goes on, what is new goes by the rule. */
static void a_full_file_is_no_error(void **state)
{
    char *path = strdup(kept_file());
    struct buf text = {0};
    struct err e;
    int known;
    (void)state;
    assert_int_equal(file_read(&text, path, 1 << 20, &e), 0);
    buf_puts(&text, "k4 16 16 1536 3 m slim\nk4 16 16 1536 3 ma slim\n");
    for (int i = 3; i < TUNING_MOST; i++)
        buf_printf(&text, "bf16 %d 16 1536 1 - rule\n", 100 + i);
    assert_int_equal(file_replace(path, text.data, text.len, &e), 0);
    assert_int_equal(start("here", &known), WAY_WIDE);
    assert_int_equal(known, TUNING_MOST);
    struct tuning *t = tuning_ops()->open(folder, "here");
    struct tuning_report r;
    struct bench b;
    open_device(&b, t, DT_BF16);
    tuning_ops()->begin(t);
    multiply(&b, 8, 9);
    assert_int_equal(taken[WAY_SKINNY], 9);
    assert_false(tuning_ops()->wants(t));
    tuning_ops()->settle(t, &r);
    assert_false(r.written);
    close_device(&b);
    tuning_ops()->close(t);
    buf_puts(&text, "bf16 99 16 1536 1 - rule\n"); /* one more than there is room for: not ours */
    assert_int_equal(file_replace(path, text.data, text.len, &e), 0);
    assert_int_equal(start("here", &known), WAY_SLIM);
    unlink(path);
    free(path);
    buf_free(&text);
}

/* One that was made for more ways than there are now, or by hand. */
static void a_way_that_does_not_fit_is_not_taken(void **state)
{
    char *path = strdup(kept_file());
    struct buf text = {0};
    struct err e;
    int known;
    (void)state;
    assert_int_equal(file_read(&text, path, 1 << 20, &e), 0);
    text.len = (size_t)(strstr(text.data, "wide") - text.data);
    buf_puts(&text, "skinny\n");
    assert_int_equal(file_replace(path, text.data, text.len, &e), 0);
    assert_int_equal(start("here", &known), WAY_SLIM);
    assert_int_equal(known, 1);
    unlink(path);
    free(path);
    buf_free(&text);
}

static void a_folder_that_cannot_be_written_is_no_error(void **state)
{
    struct tuning *t = tuning_ops()->open("/proc/nowhere", "here");
    struct bench b;
    (void)state;
    ways_take(10, 5, 6, 0, 0);
    open_device(&b, t, DT_BF16);
    struct tuning_report r = try_all(&b, 4);
    assert_false(r.written);
    assert_int_equal(way_at(&b, 4), WAY_SLIM);
    close_device(&b);
    tuning_ops()->close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_way_is_taken),
        cmocka_unit_test(what_begins_early_is_not_tried),
        cmocka_unit_test(a_way_that_does_not_fit_is_left),
        cmocka_unit_test(the_librarys_proposals_are_tried),
        cmocka_unit_test(rows_between_go_by_the_next_size),
        cmocka_unit_test(devices_choose_alike),
        cmocka_unit_test(a_server_times_nothing),
        cmocka_unit_test(a_way_without_memory_is_left),
        cmocka_unit_test(the_next_start_takes_what_was_kept),
        cmocka_unit_test(every_kind_of_product_is_kept),
        cmocka_unit_test(a_spoilt_file_is_ignored),
        cmocka_unit_test(a_full_file_is_no_error),
        cmocka_unit_test(a_way_that_does_not_fit_is_not_taken),
        cmocka_unit_test(a_folder_that_cannot_be_written_is_no_error),
    };
    if (!mkdtemp(folder))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(folder) || rc; /* it is empty: each test has taken its file away */
}
