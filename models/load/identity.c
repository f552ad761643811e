#include "models/load/identity.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/hash.h"

/* "name size time\n"; nothing of what is no file. */
static int put_file(struct buf *out, const char *path, const char *name, struct err *e)
{
    struct stat st;
    if (stat(path, &st))
        return err_set(e, E_SYS, "%s: %s", path, strerror(errno));
    if (S_ISREG(st.st_mode))
        buf_printf(out, "%s %lld %lld.%09ld\n", name, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                   st.st_mtim.tv_nsec);
    return 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcmp(name + n - m, end);
}

/* In whatever order they come, the same: so each has its digest. */
static int add_file(struct sha256 *all, const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    struct buf line = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    bool counts = ends_with(name, ".safetensors") || ends_with(name, ".json");
    int rc = counts ? put_file(&line, path, name, e) : 0;
    struct sha256 one = hash_sha256(line.data, line.len);
    for (size_t i = 0; line.len && i < sizeof one.bytes; i++)
        all->bytes[i] ^= one.bytes[i];
    buf_free(&line);
    return rc;
}

int identity_of_files(struct buf *out, const char *path, struct err *e)
{
    struct stat st;
    struct sha256 all = {{0}};
    char hex[65];
    int rc = 0;
    if (stat(path, &st))
        return err_set(e, E_SYS, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return put_file(out, path, "", e);
    DIR *d = opendir(path);
    if (!d)
        return err_set(e, E_SYS, "%s: %s", path, strerror(errno));
    for (struct dirent *f; !rc && (f = readdir(d));)
        rc = add_file(&all, path, f->d_name, e);
    closedir(d);
    hash_hex(&all, hex);
    buf_printf(out, "%s\n", hex);
    return rc;
}

void identity_of_tensors(struct buf *out, const struct model *m)
{
    const struct model_config *c = model_config(m);
    buf_printf(out, "%s %d %d %d %d %g\n", c->name, c->context, c->window, c->rope_dim, (int)c->rope_halves,
               (double)c->rope_scale);
    if (c->kv_layers)
        buf_printf(out, "swiftkv %d\n", c->kv_layers);
    for (int l = 0; l < c->n_layers; l++)
        for (int role = 0; role < T_COUNT; role++) {
            struct weight_src w;
            if ((l == 0 || role >= T_ATTN_NORM) && !model_shape(m, (enum tensor_role)role, l, &w, NULL))
                buf_printf(out, "%d %d %d %lld %lld\n", l, role, (int)w.type, (long long)w.rows, (long long)w.cols);
        }
}
