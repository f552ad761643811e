/* What requests have said (suffix_cache.h), as a file: a head that names the vocabulary, a SHA-256 of all, and each
 * sequence with its tenant, the oldest first. Trees are not kept: they are made again when it is read. It holds what
 * people wrote and were answered, so its owner alone may read it. Any thread; what is written is read from a cache that
 * nobody changes meanwhile. Invariant: a reader meets the old file or the new one, and takes nothing from one that is
 * damaged or of another vocabulary. */
#ifndef DRAFT_SUFFIX_FILE_H
#define DRAFT_SUFFIX_FILE_H

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/draft/suffix_cache.h"

struct suffix_vocabulary {
    struct sha256 sum; /* of the text of all its tokens */
    int n_tokens;
};

struct suffix_file_count {
    int64_t sequences, tokens;
};

/* E_SYS: the file could not be written; an older one is as it was. */
int suffix_file_write(const char *path, const struct suffix_vocabulary *v, const struct suffix_cache *c,
                      struct suffix_file_count *count, struct err *e);

/* What takes the sequences of a file; the tokens lie in the file's bytes until it returns. */
struct suffix_reader {
    void (*take)(void *ctx, const char *tenant, const int32_t *tokens, int n);
    void *ctx;
};
/* Hands over every sequence once the whole file is known to be right; reader NULL: it only looks. E_INPUT: it is no
 * such file, is damaged, or of another vocabulary. data is aligned as malloc's. */
int suffix_file_parse(const void *data, size_t size, const struct suffix_vocabulary *v,
                      const struct suffix_reader *reader, struct err *e);
/* The same with a file. E_NOTFOUND: there is none. */
int suffix_file_read(const char *path, const struct suffix_vocabulary *v, const struct suffix_reader *reader,
                     struct err *e);

#endif
