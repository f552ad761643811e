#include "engine/base/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/tmp"
#define NAME "moonshift-scratch-"
enum { LEVELS = 8, YOUNG_S = 60 }; /* YOUNG_S: in so many seconds everybody has locked what he has made */

static int remove_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
    (void)st, (void)what, (void)at;
    return remove(path);
}

static bool remove_all(const char *path)
{
    return nftw(path, remove_one, LEVELS, FTW_DEPTH | FTW_PHYS) == 0;
}

/* Locks the folder; -1: it is in use, or none of this user's. */
static int take(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close(fd);
    return -1;
}

/* now: of the file system's clock. */
static bool is_old(const char *path, time_t now)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && now - st.st_mtime > YOUNG_S;
}

/* What others have left; own was made now. */
static void sweep(const struct scratch *own)
{
    char path[SCRATCH_PATH + 256];
    struct stat now;
    DIR *d = fstat(own->lock, &now) ? NULL : opendir(FOLDER);
    for (struct dirent *f; d && (f = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", FOLDER, f->d_name);
        int fd = strncmp(f->d_name, NAME, strlen(NAME)) == 0 && is_old(path, now.st_mtime) ? take(path) : -1;
        if (fd < 0)
            continue;
        remove_all(path);
        close(fd);
    }
    if (d)
        closedir(d);
}

int scratch_open(struct scratch *s, struct err *e)
{
    snprintf(s->path, sizeof s->path, "%s/%sXXXXXX", FOLDER, NAME);
    s->lock = mkdtemp(s->path) ? take(s->path) : -1;
    if (s->lock >= 0) {
        sweep(s);
        return 0;
    }
    int why = errno;
    rmdir(s->path);
    s->path[0] = 0;
    return err_set(e, E_SYS, "cannot make a folder in %s: %s", FOLDER, strerror(why));
}

bool scratch_close(struct scratch *s)
{
    if (!s->path[0])
        return true;
    bool gone = remove_all(s->path);
    int why = errno;
    close(s->lock);
    s->path[0] = 0;
    errno = why;
    return gone;
}
