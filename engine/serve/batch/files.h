/* The files that clients of the server keep for batches, in a folder of the server's own: FILE-ID.data as it came, and
 * FILE-ID.json, what it is. The second is written last: a file without it never was, and what a killed server left is
 * swept out at the next start. One server at a time has the folder. Bounded: bytes of one file, of all, how many; an
 * upload holds its place from its beginning on. Whose a file is says `owner`, a hash: nobody else finds it. Front
 * thread, except files_write, files_read and files_unlink. Invariant: held bytes and places never pass the limits. */
#ifndef SERVE_BATCH_FILES_H
#define SERVE_BATCH_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum { FILES_ID = 30, FILES_NAME = 256, FILES_OWNER = 33 };

struct files;

struct files_limits {
    uint64_t file_bytes, bytes; /* of one, of all together */
    int n;
    bool shared; /* among several owners: one has at most half of bytes and of n */
};

struct kept_file {
    uint64_t number; /* they are listed in this order */
    char id[FILES_ID], owner[FILES_OWNER], name[FILES_NAME];
    uint64_t bytes;
    int64_t created_s;
};

/* Makes the folder if need be. E_INPUT: another server has it; E_SYS. */
int files_open(struct files **out, const char *dir, const struct files_limits *l, struct err *e);
void files_close(struct files *s); /* NULL is fine */
const struct files_limits *files_limits_of(const struct files *s);

/* A place for a file of this owner's of at most so many bytes, with an id. It ends with files_add or files_give_up.
 * E_FULL. */
int files_begin(struct files *s, const char *owner, uint64_t bytes, struct kept_file *out, struct err *e);
/* Onto the disk; any thread. out->bytes is n. E_SYS: nothing is left of it. */
int files_write(const struct files *s, struct kept_file *f, const char *p, size_t n, struct err *e);
void files_add(struct files *s, const struct kept_file *f, uint64_t begun_bytes); /* it is there for all to find */
void files_give_up(struct files *s, const struct kept_file *f, uint64_t begun_bytes);

/* A file of ours that is not from a client: out->id, owner, name. path, in the same folder, becomes its data (nothing
 * happens where it is one already); any thread. files_take shows it to all. */
void files_name(struct kept_file *out);
int files_adopt(const struct files *s, struct kept_file *f, const char *path, struct err *e);
void files_take(struct files *s, const struct kept_file *f);
/* Where its data lies; the caller's. */
char *files_path(const struct files *s, const char *id);

int files_count(const struct files *s);
const struct kept_file *files_at(const struct files *s, int i); /* in the order in which they came */
const struct kept_file *files_find(const struct files *s, const char *id, const char *owner); /* NULL: none of theirs */
int files_read(const struct files *s, const struct kept_file *f, struct buf *out, struct err *e); /* any thread */
int files_remove(struct files *s, const struct kept_file *f, struct err *e); /* f is gone; E_SYS: it stays */

#endif
