/* Runs a fuzz target over files and folders of its corpus, for compilers without libFuzzer. No file at all is a
 * failure. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return 0;
    if (S_ISREG(st.st_mode)) {
        struct buf b = {0};
        if (file_read(&b, path, (size_t)1 << 28, NULL) == 0)
            LLVMFuzzerTestOneInput((const uint8_t *)b.data, b.len);
        buf_free(&b);
        return 1;
    }
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));)
        if (f->d_name[0] != '.') {
            struct buf p = {0};
            buf_printf(&p, "%s/%s", path, f->d_name);
            n += run(p.data);
            buf_free(&p);
        }
    if (d)
        closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++)
        n += run(argv[i]);
    printf("%d inputs\n", n);
    return n ? 0 : 1;
}
