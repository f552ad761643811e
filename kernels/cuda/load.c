/* Matrices onto the device. The file's bytes go through pinned buffers that several threads fill, so that reading
 * overlaps copying, also from one matrix to the next. The device sorts quantised types into planes (weight.h). */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/cores.h"
#include "engine/base/mem.h"
#include "kernels/cuda/device.h"

enum { LOAD_BYTES = 16 << 20 };

struct weight {
    struct weight_planes planes;
    int rows, cols;
    void *base;
    size_t bytes;
    bool borrows; /* base is not its own */
};

static const enum family families[DT_COUNT] = {
    [DT_F32] = FAM_F32,  [DT_F16] = FAM_F16, [DT_BF16] = FAM_BF16, [DT_Q4_0] = FAM_U4,
    [DT_Q4_1] = FAM_U4M, [DT_Q5_0] = FAM_U5, [DT_Q5_1] = FAM_U5M,  [DT_Q8_0] = FAM_S8,
    [DT_Q4_K] = FAM_K4,  [DT_Q5_K] = FAM_K5, [DT_Q6_K] = FAM_K6,   [DT_F8_SCALED] = FAM_F8,
};

/* Bytes of each plane for every 32 columns, d for every 256. */
struct plane_bytes {
    int q, h, s, d;
};

static struct plane_bytes plane_bytes(enum family f)
{
    switch (f) {
    case FAM_U4:
        return (struct plane_bytes){16, 0, 2, 0};
    case FAM_U4M:
        return (struct plane_bytes){16, 0, 4, 0};
    case FAM_U5:
        return (struct plane_bytes){16, 4, 2, 0};
    case FAM_U5M:
        return (struct plane_bytes){16, 4, 4, 0};
    case FAM_S8:
        return (struct plane_bytes){32, 0, 2, 0};
    case FAM_F8:
        return (struct plane_bytes){32, 0, 2, 0}; /* four bytes for 64 columns */
    case FAM_K4:
        return (struct plane_bytes){16, 0, 2, 4};
    case FAM_K5:
        return (struct plane_bytes){16, 4, 2, 4};
    case FAM_K6:
        return (struct plane_bytes){16, 8, 2, 2};
    default:
        return (struct plane_bytes){0, 0, 0, 0};
    }
}

static size_t aligned(size_t n)
{
    return (n + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
}

static bool is_plain(enum family f)
{
    return f <= FAM_BF16;
}

static size_t element_bytes(enum family f)
{
    return f == FAM_F32 ? 4 : 2;
}

/* Where the planes lie from base on; returns their bytes. */
static size_t lay_out(struct weight *w, enum family f, char *base)
{
    size_t rows = (size_t)w->rows, blocks = rows * (size_t)(w->cols / BLOCK_COLS),
           supers = rows * (size_t)((w->cols + 255) / 256);
    struct plane_bytes b = plane_bytes(f);
    size_t q = aligned(blocks * (size_t)b.q), h = aligned(blocks * (size_t)b.h), s = aligned(blocks * (size_t)b.s),
           d = aligned(supers * (size_t)b.d);
    w->planes = (struct weight_planes){
        .family = f, .cols = w->cols, .blocks = w->cols / BLOCK_COLS, .scales = w->planes.scales};
    if (is_plain(f)) {
        w->planes.stride = (w->cols + WEIGHT_PAD - 1) / WEIGHT_PAD * WEIGHT_PAD;
        q = aligned(rows * (size_t)w->planes.stride * element_bytes(f));
    }
    if (!base)
        return q + h + s + d;
    w->planes.q = base;
    w->planes.h = base + q;
    w->planes.s = base + q + h;
    w->planes.d = base + q + h + s;
    return q + h + s + d;
}

/* staged: the file's bytes are also needed on the device, to be sorted into planes. */
static int open_slot(struct device *d, int i, bool staged, struct err *e)
{
    struct loader *l = &d->loader;
    if (!l->free[i] && !gpu_ok(d, cudaEventCreateWithFlags(&l->free[i], cudaEventDisableTiming), "making an event"))
        return err_set(e, E_DEVICE, "%s", d->broken.text);
    if (!l->host[i] && cudaMallocHost(&l->host[i], LOAD_BYTES) != cudaSuccess) {
        cudaGetLastError();
        l->host[i] = NULL;
        return err_set(e, E_FULL, "no %d MiB of pinned memory for loading weights", LOAD_BYTES >> 20);
    }
    if (staged && !l->dev[i])
        l->dev[i] = heap_take(&d->heap, LOAD_BYTES);
    return l->dev[i] || !staged ? 0
                                : err_set(e, E_FULL, "no %d MiB of GPU memory for loading weights", LOAD_BYTES >> 20);
}

static int open_loader(struct device *d, bool staged, struct err *e)
{
    struct loader *l = &d->loader;
    for (int i = 0; i < LOAD_SLOTS; i++)
        TRY(open_slot(d, i, staged, e));
    if (!l->copier)
        l->copier = copier_open(cores_usable());
    return 0;
}

void loader_close(struct device *d)
{
    struct loader *l = &d->loader;
    copier_close(l->copier);
    for (int i = 0; i < LOAD_SLOTS; i++) {
        if (l->host[i])
            cudaFreeHost(l->host[i]);
        if (l->free[i])
            cudaEventDestroy(l->free[i]);
        heap_give(&d->heap, l->dev[i]);
    }
    memset(l, 0, sizeof *l);
}

/* Rows [first, first + n) out of a slot that holds them as the file has them. */
static bool place_rows(struct device *d, const struct weight *w, int slot, size_t row_bytes, const int rows[2])
{
    const struct weight_planes *p = &w->planes;
    struct loader *l = &d->loader;
    if (is_plain(p->family)) {
        size_t stride = (size_t)p->stride * element_bytes(p->family);
        char *to = (char *)w->base + (size_t)rows[0] * stride;
        return gpu_ok(d,
                      cudaMemcpy2DAsync(to, stride, l->host[slot], row_bytes, row_bytes, (size_t)rows[1],
                                        cudaMemcpyHostToDevice, d->stream),
                      "loading weights");
    }
    struct pack_job j = {.raw = l->dev[slot], .row_bytes = row_bytes, .first = rows[0], .n = rows[1], .to = *p};
    return gpu_ok(d,
                  cudaMemcpyAsync(l->dev[slot], l->host[slot], (size_t)rows[1] * row_bytes, cudaMemcpyHostToDevice,
                                  d->stream),
                  "loading weights") &&
           gpu_launched(d, launch_pack(d->stream, &j), "packing weights");
}

/* Rows of the file into a slot, without what lies between them. */
static void fetch_rows(struct loader *l, int slot, const struct weight_src *src, const int rows[2])
{
    size_t row_bytes = dtype_row_bytes(src->type, src->cols), pitch = weight_src_pitch(src);
    const char *from = (const char *)src->data + (size_t)rows[0] * pitch;
    if (pitch == row_bytes) {
        copier_copy(l->copier, l->host[slot], from, (size_t)rows[1] * row_bytes);
        return;
    }
    for (size_t i = 0; i < (size_t)rows[1]; i++)
        memcpy((char *)l->host[slot] + i * row_bytes, from + i * pitch, row_bytes);
}

static bool send_rows(struct device *d, const struct weight *w, const struct weight_src *src)
{
    size_t row_bytes = dtype_row_bytes(src->type, src->cols);
    int most = (int)(LOAD_BYTES / row_bytes);
    struct loader *l = &d->loader;
    for (int first = 0; first < src->rows; first += most) {
        int rows[2] = {first, src->rows - first < most ? src->rows - first : most}, slot = l->next;
        l->next = (slot + 1) % LOAD_SLOTS;
        if (!gpu_ok(d, cudaEventSynchronize(l->free[slot]), "loading weights"))
            return false;
        fetch_rows(l, slot, src, rows);
        if (!place_rows(d, w, slot, row_bytes, rows) ||
            !gpu_ok(d, cudaEventRecord(l->free[slot], d->stream), "loading weights"))
            return false;
    }
    return true;
}

static int check_source(const struct weight_src *src, struct err *e)
{
    const struct dtype_info *info = dtype_get(src->type);
    if (src->type == DT_F8)
        return err_set(e, E_UNSUPPORTED, "a matrix of fp8 needs its scales: %s", dtype_get(DT_F8_SCALED)->name);
    if (src->type != DT_F32 && families[src->type] == FAM_F32)
        return err_set(
            e, E_UNSUPPORTED,
            "there are no kernels for weights of type %s on GPUs; take a file of Q4_0, Q4_K_M, Q5_K_M, Q6_K or "
            "Q8_0, or serve this one with --device cpu",
            info->name);
    if (src->rows <= 0 || src->cols <= 0 || src->cols > 1 << 20)
        return err_set(e, E_UNSUPPORTED, "a matrix of %d x %d cannot be multiplied with", src->rows, src->cols);
    if (src->cols % info->block)
        return err_set(e, E_UNSUPPORTED, "%d columns are not a multiple of %d, the block of type %s", src->cols,
                       info->block, info->name);
    return 0;
}

/* The bytes into w, which has room for them. */
static int fill_weight(struct device *d, struct weight *w, const struct weight_src *src, struct err *e)
{
    TRY(open_loader(d, !is_plain(w->planes.family), e));
    /* what pads a row is read, and multiplied with nothing */
    bool padded = is_plain(w->planes.family) && w->planes.stride != w->cols;
    if (padded && !gpu_ok(d, cudaMemsetAsync(w->base, 0, w->bytes, d->stream), "loading weights"))
        return err_set(e, d->broken.code, "%s", d->broken.text);
    return send_rows(d, w, src) ? 0 : err_set(e, d->broken.code, "%s", d->broken.text);
}

int cuda_weight_load(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    *out = NULL;
    TRY(check_source(src, e));
    if (d->broken.code)
        return err_set(e, d->broken.code, "%s", d->broken.text);
    gpu_use(d);
    struct weight *w = mem_new(sizeof *w);
    enum family f = families[src->type];
    w->rows = src->rows;
    w->cols = src->cols;
    w->planes.scales = src->scales;
    w->bytes = lay_out(w, f, NULL);
    w->base = heap_take(&d->heap, w->bytes);
    int rc = w->base ? 0
                     : err_set(e, E_FULL, "no GPU memory for a matrix of %d x %d (%s)", w->rows, w->cols,
                               dtype_get(src->type)->name);
    if (!rc) {
        lay_out(w, f, w->base);
        rc = fill_weight(d, w, src, e);
    }
    if (rc) {
        cuda_weight_free(d, w);
        return rc;
    }
    *out = w;
    return 0;
}

void cuda_weight_free(struct device *d, struct weight *w)
{
    if (!w)
        return;
    gpu_use(d);
    gpu_ok(d, cudaStreamSynchronize(d->stream), "freeing weights");
    if (!w->borrows)
        heap_give(&d->heap, w->base);
    mem_free(w);
}

size_t cuda_weight_bytes(const struct weight *w)
{
    return w->bytes;
}

/* ---- pooled */

const void *cuda_weight_data(const struct weight *w)
{
    return w->base;
}

static struct weight shaped(const struct weight_shape *s)
{
    return (struct weight){.rows = s->rows,
                           .cols = s->cols,
                           .planes = {.family = s->like->planes.family, .scales = s->like->planes.scales}};
}

size_t cuda_weight_room(const struct weight_shape *s)
{
    struct weight w = shaped(s);
    return lay_out(&w, w.planes.family, NULL);
}

int cuda_weight_at(struct device *d, struct weight **out, const struct weight_shape *s, void *room, struct err *e)
{
    (void)d;
    struct weight *w = mem_try(sizeof *w);
    ASSERT((uintptr_t)room % HEAP_ALIGN == 0); /* a piece of the heap, or so many whole rooms into it */
    *out = w;
    if (!w)
        return err_set(e, E_FULL, "no memory for a slot of the FFN pool");
    *w = shaped(s);
    w->borrows = true;
    w->base = room;
    w->bytes = lay_out(w, w->planes.family, room);
    return 0;
}

/* Of a plane with so many bytes for every `cols` columns. */
static void add_runs(const struct wview *v, const void *plane, int cols, int bytes, struct weight_runs *out)
{
    const struct weight *w = v->w;
    size_t first = (size_t)(v->col0 / cols), end = (size_t)((v->col0 + v->cols + cols - 1) / cols),
           pitch = (size_t)((w->cols + cols - 1) / cols) * (size_t)bytes;
    *out = (struct weight_runs){.at = (size_t)((const char *)plane - (const char *)w->base) + (size_t)v->row0 * pitch +
                                      first * (size_t)bytes,
                                .bytes = (end - first) * (size_t)bytes,
                                .pitch = pitch,
                                .runs = v->rows};
}

/* What pads a row is read, so it comes along with the last columns. */
static struct weight_runs plain_runs(const struct wview *v)
{
    const struct weight_planes *p = &v->w->planes;
    size_t element = element_bytes(p->family), pitch = (size_t)p->stride * element;
    int end = v->col0 + v->cols == v->w->cols ? p->stride : v->col0 + v->cols;
    return (struct weight_runs){.at = (size_t)v->row0 * pitch + (size_t)v->col0 * element,
                                .bytes = (size_t)(end - v->col0) * element,
                                .pitch = pitch,
                                .runs = v->rows};
}

int cuda_weight_window(struct wview v, struct weight_runs out[WEIGHT_PLANES])
{
    const struct weight_planes *p = &v.w->planes;
    struct plane_bytes b = plane_bytes(p->family);
    int n = 0;
    if (is_plain(p->family)) {
        *out = plain_runs(&v);
        return 1;
    }
    add_runs(&v, p->q, BLOCK_COLS, b.q, &out[n++]);
    if (b.h)
        add_runs(&v, p->h, BLOCK_COLS, b.h, &out[n++]);
    add_runs(&v, p->s, BLOCK_COLS, b.s, &out[n++]);
    if (b.d)
        add_runs(&v, p->d, 256, b.d, &out[n++]);
    return n;
}

struct weight_window cuda_window(const struct wview *v)
{
    ASSERT(v->row0 >= 0 && v->rows > 0 && v->row0 + v->rows <= v->w->rows);
    ASSERT(v->col0 >= 0 && v->cols > 0 && v->col0 + v->cols <= v->w->cols);
    return (struct weight_window){v->w->planes, v->row0, v->rows, v->col0, v->cols};
}
