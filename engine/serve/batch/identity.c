#include "engine/serve/batch/identity.h"

#include <dirent.h>
#include <sys/stat.h>

#include "engine/base/hash.h"
#include "models/encode/card.h"

/* Stirs a file's name, size and time into what is known of the others; in which order makes no difference. */
static void add_file(struct sha256 *sum, const char *name, const struct stat *st)
{
    struct buf facts = {0};
    buf_printf(&facts, "%s, %lld bytes, of %lld.%09ld", name, (long long)st->st_size, (long long)st->st_mtim.tv_sec,
               st->st_mtim.tv_nsec);
    struct sha256 one = hash_sha256(facts.data, facts.len);
    for (size_t i = 0; i < sizeof one.bytes; i++)
        sum->bytes[i] ^= one.bytes[i];
    buf_free(&facts);
}

static void add_folder(struct sha256 *sum, const char *path)
{
    struct stat st;
    DIR *d = opendir(path);
    for (struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d))
        if (fstatat(dirfd(d), f->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            add_file(sum, f->d_name, &st);
    const char *card = card_file_name(CARD_POOLING); /* an encoder's, in a folder of its own */
    if (d && fstatat(dirfd(d), card, &st, 0) == 0)
        add_file(sum, card, &st);
    if (d)
        closedir(d);
}

void identity_put(const char *path, struct buf *out)
{
    struct sha256 sum = {0};
    struct stat st;
    char hex[65];
    buf_puts(out, path);
    if (stat(path, &st) != 0)
        return;
    if (S_ISDIR(st.st_mode))
        add_folder(&sum, path);
    else
        add_file(&sum, "", &st);
    hash_hex(&sum, hex);
    buf_printf(out, " (%.16s)", hex);
}
