/* Files: whole reads with a limit, read-only maps, atomic replacement. Any thread. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct file_map {
    const unsigned char *data; /* NULL when size is 0 */
    size_t size;
};

int file_map_open(struct file_map *m, const char *path, struct err *e);
void file_map_close(struct file_map *m);
/* Waits until these bytes (at: of a page's start) are in memory, or has them read soon. False: no more can be asked. */
bool file_map_read(const struct file_map *m, size_t at, size_t n);
/* The folder of a path: what is before its last slash, "/" or ".". */
void file_folder(const char *path, char *out, size_t cap);
/* Reads the whole file into out (appended). E_INPUT when it is larger than limit. */
int file_read(struct buf *out, const char *path, size_t limit, struct err *e);
/* The same for a file that others may have laid there: a regular one, which lies in dir once every link is followed
 * (NULL: anywhere). Never waits for a pipe. E_INPUT: it is something else, or lies elsewhere. */
int file_read_within(struct buf *out, const char *dir, const char *path, size_t limit, struct err *e);
bool file_is_within(const char *dir, const char *path); /* would that be read? */
/* Writes a temporary beside path, fsyncs, renames: a reader sees the old file or the new one, nothing between. */
int file_replace(const char *path, const void *data, size_t n, struct err *e);
int file_replace_private(const char *path, const void *data, size_t n, struct err *e); /* the owner alone may read it */

#endif
