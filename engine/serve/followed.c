#include "engine/serve/followed.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool look(const struct followed *f, const struct followed_file *file, struct stat *st)
{
    char folder[FOLLOWED_PATH], path[FOLLOWED_PATH + NAME_BYTES + 12];
    file_folder(f->path, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/lib/%s.lua", folder, file->lib);
    return stat(file->lib[0] ? path : f->path, st) == 0 && S_ISREG(st->st_mode);
}

bool followed_begin(struct followed *f, const char *path)
{
    *f = (struct followed){.n = 1};
    snprintf(f->path, sizeof f->path, "%s", path);
    if (!look(f, &f->files[0], &f->files[0].seen)) {
        *f = (struct followed){0};
        return false;
    }
    f->files[0].last = f->files[0].seen;
    return true;
}

void followed_set_libs(struct followed *f, const char *libs)
{
    struct followed old = *f;
    f->n = f->path[0] ? 1 : 0;
    while (f->n && *libs && f->n <= POLICY_LIBS) {
        size_t len = strcspn(libs, " ");
        struct followed_file *file = &f->files[f->n++];
        *file = (struct followed_file){0};
        snprintf(file->lib, sizeof file->lib, "%.*s", (int)len, libs);
        if (look(f, file, &file->seen))
            file->last = file->seen;
        for (int i = 1; i < old.n; i++)
            if (!strcmp(old.files[i].lib, file->lib))
                *file = old.files[i];
        libs += len + (libs[len] == ' ');
    }
}

void followed_seen(struct followed *f)
{
    for (int i = 0; i < f->n; i++)
        if (look(f, &f->files[i], &f->files[i].seen))
            f->files[i].last = f->files[i].seen;
}

bool followed_changed(struct followed *f)
{
    bool stable = true, changed = false;
    for (int i = 0; i < f->n; i++) {
        struct stat st;
        if (!look(f, &f->files[i], &st))
            return false;
        stable &= same_file(&st, &f->files[i].last);
        changed |= !same_file(&st, &f->files[i].seen);
        f->files[i].last = st;
    }
    for (int i = 0; stable && changed && i < f->n; i++)
        f->files[i].seen = f->files[i].last;
    return stable && changed;
}
