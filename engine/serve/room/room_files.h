/* The files of the control room, as pack.cmake makes them from this folder. */
#ifndef SERVE_ROOM_ROOM_FILES_H
#define SERVE_ROOM_ROOM_FILES_H

#include <stddef.h>

struct room_file {
    const char *path, *type; /* as in the URL; the media type */
    const unsigned char *data;
    size_t n;
};
extern const struct room_file room_files[];
extern const size_t n_room_files;

#endif
