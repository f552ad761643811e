/* Element types, embedding, gathering, adding, the device's facts and errors, and the pool of the CPU backend. */
#include <dirent.h>
#include <stdatomic.h>
#include <time.h>

#include "kernels/cpu/pool.h"
#include "tests/rig/op_fixture.h"

/* Values written out by hand from the format definitions; the python gguf package agrees (tests/oracle). */
static void widening_by_hand(void **state)
{
    (void)state;
    float y[256];
    uint8_t q4_0[18] = {0x00, 0x40, 0x0f}; /* d = 2; byte 0: low 15, high 0 */
    dtype_to_f32(DT_Q4_0, q4_0, y, 32);
    assert_true(y[0] == 14.0f && y[16] == -16.0f && y[1] == -16.0f);
    uint8_t q5_1[24] = {0x00, 0x3c, 0x00, 0xc0, 1, 0, 2, 0, 0x21}; /* d = 1, m = -2; fifth bits of 0 and 17 */
    dtype_to_f32(DT_Q5_1, q5_1, y, 32);
    assert_true(y[0] == 15.0f && y[16] == 0.0f && y[17] == 14.0f && y[1] == -2.0f);
    uint8_t q8_0[34] = {0x00, 0x38, 0x80, 0x7f}; /* d = 0.5 */
    dtype_to_f32(DT_Q8_0, q8_0, y, 32);
    assert_true(y[0] == -64.0f && y[1] == 63.5f);
    uint8_t q4_k[144] = {0x00, 0x3c, 0x00, 0x3c}; /* d = dmin = 1 */
    q4_k[4] = 0xc3;                               /* scale 0 = 3, upper bits of scale 4 = 3 */
    q4_k[8] = 0x45;                               /* min 0 = 5, upper bits of min 4 = 1 */
    q4_k[12] = 0x21;                              /* scale 4 low = 1, min 4 low = 2 */
    q4_k[16] = 0x07;                              /* element 0 = 7, element 32 = 0 */
    q4_k[80] = 0x02;                              /* element 128 = 2 */
    dtype_to_f32(DT_Q4_K, q4_k, y, 256);
    assert_true(y[0] == 16.0f && y[1] == -5.0f && y[128] == 2.0f * 49 - 18 && y[129] == -18.0f);
    uint8_t iq4_nl[18] = {0x00, 0x40, 0x0f}; /* d = 2; byte 0: low the last code, high the first one */
    dtype_to_f32(DT_IQ4_NL, iq4_nl, y, 32);
    assert_true(y[0] == 226.0f && y[16] == -254.0f && y[1] == -254.0f);
    uint8_t iq4_xs[136] = {0x00, 0x3c, 0x00, 0xc0,
                           0x02, 0,    0,    0x30}; /* d = 1; scales 2 of block 0, 48 + 3 of block 7 */
    iq4_xs[8] = 0x98;                               /* elements 0 and 16: codes 1 and 13 */
    iq4_xs[120] = 0x07;                             /* element 224: code -10 */
    dtype_to_f32(DT_IQ4_XS, iq4_xs, y, 256);
    assert_true(y[0] == -30.0f && y[16] == -30.0f * 13 && y[1] == 30.0f * 127 && y[32] == 32.0f * 127);
    assert_true(y[224] == -19.0f * 10 && y[240] == -19.0f * 127);
    uint8_t q2_k[84] = {0x21, [15] = 0x43}; /* scale 1 and min 2 of elements 0..15, 3 and 4 of the last 16 */
    q2_k[16] = 0x02;                        /* element 0: 2 */
    q2_k[79] = 0xc0;                        /* element 255: 3 */
    q2_k[81] = q2_k[83] = 0x3c;             /* d = dmin = 1 */
    dtype_to_f32(DT_Q2_K, q2_k, y, 256);
    assert_true(y[0] == 0.0f && y[1] == -2.0f && y[16] == 0.0f && y[255] == 5.0f && y[254] == -4.0f);
    uint8_t q3_k[110] = {0x01, [31] = 0x80}; /* third bits of elements 0 and 255 */
    q3_k[32] = 0x03;                         /* element 0: 7 */
    q3_k[95] = 0x80;                         /* element 255: 4 + 2 */
    q3_k[96] = 0x05, q3_k[104] = 0x01;       /* scale 0: 16 + 5 */
    q3_k[103] = 0x70, q3_k[107] = 0x80;      /* scale 15: 32 + 7 */
    q3_k[109] = 0x3c;                        /* d = 1 */
    dtype_to_f32(DT_Q3_K, q3_k, y, 256);
    assert_true(y[0] == -11.0f * 3 && y[1] == -11.0f * -4 && y[16] == -32.0f * -4 && y[255] == 7.0f * 2);
    uint8_t q6_k[210] = {0x5a}; /* element 0: low 10; element 64: low 5 */
    q6_k[128] = 0x21;           /* element 0: upper 1; element 64: upper 2 */
    q6_k[192] = 0xfe;           /* scale -2 for elements 0..15 */
    q6_k[196] = 3;
    q6_k[209] = 0x3c;
    dtype_to_f32(DT_Q6_K, q6_k, y, 256);
    assert_true(y[0] == -2.0f * (26 - 32) && y[64] == 3.0f * (37 - 32) && y[1] == 64.0f);
}

static void half_floats(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        uint16_t back = f32_to_f16(f);
        if (f == f)
            assert_int_equal(back, h);
        else
            assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
        f = bf16_to_f32((uint16_t)h);
        assert_true(f != f ? (f32_to_bf16(f) & 0x7f) != 0 : f32_to_bf16(f) == h);
    }
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(0x1p-25f), 0); /* half of the least: to even */
    assert_int_equal(f32_to_f16(0x1.000002p-25f), 1);
    assert_int_equal(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(f32_to_bf16(1.0f + 0x1.8p-8f), 0x3f81);
}

static void embedding_is_the_table(void **state)
{
    (void)state;
    enum { ROWS = 50, COLS = 512 };
    struct rng r;
    rng_init(&r, 21);
    struct device *d = open_device("auto", 2);
    for (int t = 0; t < DT_MATRICES; t++) {
        struct weight_src src = random_matrix(&r, (enum dtype)t, ROWS, COLS);
        struct weight *w = load(d, &src);
        float *rows = dequantised(&src);
        int32_t ids[70];
        static float y[70][COLS];
        for (int i = 0; i < 70; i++)
            ids[i] = (int32_t)rng_below(&r, ROWS);
        struct batch b = {.n_rows = 70, .ids = ids, .positions = ids};
        assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
        ops->embed(d, (struct wview){w, 0, ROWS, 0, COLS}, act_of(&y[0][0], COLS), 0, 70);
        finish(d);
        for (int i = 0; i < 70; i++)
            assert_memory_equal(y[i], rows + (size_t)ids[i] * COLS, sizeof y[i]);
        assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
        ops->embed(d, (struct wview){w, 0, ROWS, 64, 128}, act_of(&y[0][0], COLS), 13, 57); /* a slice of the rows */
        finish(d);
        assert_memory_equal(y[56], rows + (size_t)ids[69] * COLS + 64, 128 * sizeof(float));
        ops->weight_free(d, w);
        free(rows);
        free((void *)src.data);
    }
    ops->close(d);
}

/* Rows and columns out of the middle of a matrix are packed from where they lie, to the bit. */
static void a_share_is_packed_in_its_place(void **state)
{
    (void)state;
    enum { ROWS = 61, COLS = 1024, MOST = 512 };
    struct rng r;
    rng_init(&r, 23);
    struct device *d = open_device("auto", 1);
    for (int round = 0; round < 4 * DT_MATRICES; round++) {
        struct weight_src whole = random_matrix(&r, (enum dtype)(round % DT_MATRICES), ROWS, COLS), part = whole;
        const struct dtype_info *info = dtype_get(whole.type);
        int unit = info->block, col0 = unit * (int)rng_below(&r, (uint64_t)(MOST / unit)),
            row0 = (int)rng_below(&r, ROWS - 1);
        part.rows = 1 + (int)rng_below(&r, (uint64_t)(ROWS - row0));
        part.cols = unit * (1 + (int)rng_below(&r, (uint64_t)(MOST / unit)));
        part.pitch = dtype_row_bytes(whole.type, COLS);
        part.data = (const char *)whole.data + (size_t)row0 * part.pitch + dtype_row_bytes(whole.type, col0);
        struct weight *w = load(d, &part);
        float *rows = dequantised(&whole);
        static float y[ROWS][MOST];
        int32_t ids[ROWS];
        for (int i = 0; i < part.rows; i++)
            ids[i] = i;
        struct batch b = {.n_rows = part.rows, .ids = ids, .positions = ids};
        assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
        ops->embed(d, (struct wview){w, 0, part.rows, 0, part.cols}, act_of(&y[0][0], MOST), 0, part.rows);
        finish(d);
        for (int i = 0; i < part.rows; i++)
            assert_memory_equal(y[i], rows + (size_t)(row0 + i) * COLS + col0, (size_t)part.cols * sizeof(float));
        ops->weight_free(d, w);
        free(rows);
        free((void *)whole.data);
    }
    ops->close(d);
}

static void gather_takes_rows(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 100 };
    struct rng r;
    rng_init(&r, 22);
    struct device *d = open_device("auto", 2);
    float *y = random_floats(&r, ROWS * COLS, 1.0f);
    static const int32_t pick[] = {0, 3, 3, 39}, zeros[ROWS];
    struct batch b = {.n_rows = ROWS, .ids = zeros, .positions = zeros, .n_logits = 4, .logit_rows = pick};
    float last[2][COLS];
    assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
    ops->gather(d, act_of(y + 2 * COLS, COLS), 2, act_of(&last[0][0], COLS), 2, 2);
    finish(d);
    assert_memory_equal(last[0], y + 3 * COLS, sizeof last[0]);
    assert_memory_equal(last[1], y + 39 * COLS, sizeof last[1]);
    free(y);
    ops->close(d);
}

static void facts_and_memory(void **state)
{
    (void)state;
    struct device *d = open_device("portable", 3);
    struct device_facts f;
    ops->facts(d, &f);
    assert_string_equal(f.isa, "portable");
    assert_int_equal(f.n_threads, 3);
    assert_int_equal(f.act_bytes, 4);
    assert_true(f.memory_bytes > (size_t)1 << 28);
    assert_non_null(strstr(f.name, "portable, 3 threads"));
    uint8_t *p = ops->alloc(d, 1000);
    assert_true(p && (uintptr_t)p % 64 == 0 && p[0] == 0 && p[999] == 0);
    assert_int_equal(ops->upload(d, p, "abc", 4), 0);
    char back[4];
    assert_int_equal(ops->download(d, back, p, 4), 0);
    assert_string_equal(back, "abc");
    ops->release(d, p);
    assert_null(ops->alloc(d, (size_t)1 << 60));
    ops->close(d);
}

struct count {
    atomic_int seen[5000];
    int plain[5000];
    int threads;
    atomic_int bad;
};

static void count_item(void *ctx, int item, int thread)
{
    struct count *c = ctx;
    atomic_fetch_add(&c->seen[item], 1);
    c->plain[item] += item; /* plain: seen by the caller afterwards, and by later jobs */
    if (thread < 0 || thread >= c->threads)
        atomic_fetch_add(&c->bad, 1);
}

/* Thousands of jobs, some after a pause in which the helpers fall asleep: every item once, every write seen. */
static void pool_runs_each_item_once(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 23);
    for (int threads = 1; threads <= 4; threads++) {
        struct pool *p = NULL;
        struct count *c = calloc(1, sizeof *c);
        c->threads = threads;
        assert_int_equal(pool_open(&p, threads, NULL), 0);
        assert_int_equal(pool_threads(p), threads);
        int want[5000] = {0};
        for (int job = 0; job < 3000; job++) {
            int n = job % 100 == 0 ? 5000 : (int)rng_below(&r, 40);
            if (job % 500 == 1) {
                struct timespec pause = {0, 3000000};
                nanosleep(&pause, NULL);
            }
            pool_run(p, n, count_item, c);
            for (int i = 0; i < n; i++) {
                want[i]++;
                assert_int_equal(atomic_load(&c->seen[i]), want[i]);
                assert_int_equal(c->plain[i], want[i] * i);
            }
        }
        assert_int_equal(atomic_load(&c->bad), 0);
        pool_close(p);
        free(c);
    }
}

struct taken {
    int n[80], items[80][300];
};

static void note_taken(void *ctx, int item, int thread)
{
    struct taken *t = ctx;
    t->items[thread][t->n[thread]++] = item;
    for (volatile int i = 0; i < item % 7 * 50; i++)
        ;
}

/* Its own items come first, in order; every other lane's that it takes in order, too, and none twice. On more threads
 * than there are lanes, too. */
static void a_thread_begins_with_its_lane(void **state)
{
    static const int threads[] = {2, 3, 4, 70};
    (void)state;
    struct taken *t = calloc(1, sizeof *t);
    struct rng r;
    rng_init(&r, 25);
    for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
        struct pool *p = NULL;
        assert_int_equal(pool_open(&p, threads[k], NULL), 0);
        for (int job = 0; job < 300; job++) {
            int n = 2 + (int)rng_below(&r, 290), lanes = threads[k] < 64 ? threads[k] : 64, sum = 0;
            lanes = lanes < n ? lanes : n;
            memset(t->n, 0, sizeof t->n);
            pool_run(p, n, note_taken, t);
            for (int i = 0; i < threads[k]; i++) {
                int own = i % 64, first = n * own / lanes, end = n * (own + 1) / lanes, last = -1;
                bool left_it = own >= lanes;
                for (int j = 0; j < t->n[i]; j++) {
                    int item = t->items[i][j];
                    bool is_own = !left_it && item >= first && item < end;
                    assert_true(j == 0 || item > last || !is_own); /* ascending in the lane */
                    left_it = left_it || !is_own;
                    assert_false(left_it && own < lanes && item >= first && item < end);
                    last = item;
                }
                sum += t->n[i];
            }
            assert_int_equal(sum, n);
        }
        pool_close(p);
    }
    free(t);
}

/* How many of this process's helper threads the system has put to sleep. */
static int sleeping_helpers(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *t; (t = readdir(dir));) {
        char path[300], name[32] = "", state = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", t->d_name);
        FILE *f = t->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (f && fscanf(f, "%*d (%31[^)]) %c", name, &state) == 2 && strncmp(name, "cpu-", 4) == 0 && state == 'S')
            n++;
        if (f)
            fclose(f);
    }
    closedir(dir);
    return n;
}

/* Something to do while there are no items, for so many looks. */
static bool count_down(void *ctx, int thread)
{
    _Atomic int *left = ctx;
    return left[thread] > 0 && left[thread]-- > 1;
}

/* Helpers without work end up asleep, not polling, and with something to do while they wait, once that is done. */
static void idle_helpers_sleep(void **state)
{
    (void)state;
    struct pool *p = NULL;
    _Atomic int left[4] = {0, 5000, 1000, 3000};
    struct count *c = calloc(1, sizeof *c);
    c->threads = 4;
    assert_int_equal(pool_open(&p, 4, NULL), 0);
    pool_while_idle(p, count_down, left);
    pool_run(p, 100, count_item, c);
    struct timespec pause = {0, 1000000};
    for (int i = 0; i < 20000 && sleeping_helpers() < 3; i++)
        nanosleep(&pause, NULL);
    assert_int_equal(sleeping_helpers(), 3);
    assert_true(!left[1] && !left[2] && !left[3]);
    pool_run(p, 100, count_item, c);
    assert_int_equal(atomic_load(&c->seen[99]), 2);
    pool_close(p);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widening_by_hand),
        cmocka_unit_test(half_floats),
        cmocka_unit_test(embedding_is_the_table),
        cmocka_unit_test(gather_takes_rows),
        cmocka_unit_test(a_share_is_packed_in_its_place),
        cmocka_unit_test(facts_and_memory),
        cmocka_unit_test(pool_runs_each_item_once),
        cmocka_unit_test(a_thread_begins_with_its_lane),
        cmocka_unit_test(idle_helpers_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
