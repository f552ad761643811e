/* dtype_to_f32 at a pipe, for the oracle of the types.
 *   widen_rows TYPE
 * stdin: blocks as GGUF files have them; stdout: their values, f32. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/dtype.h"

static int find(const char *name)
{
    int t = 0;
    while (t < DT_MATRICES && strcmp(dtype_get((enum dtype)t)->name, name) != 0)
        t++;
    return t;
}

int main(int argc, char **argv)
{
    int t = argc == 2 ? find(argv[1]) : DT_MATRICES;
    if (t == DT_MATRICES)
        return 2;
    const struct dtype_info *info = dtype_get((enum dtype)t);
    size_t size = (size_t)info->bytes, n = (size_t)info->block;
    unsigned char *block = mem_new_array(size, 1);
    float *values = mem_new_array(n, sizeof *values);
    while (fread(block, size, 1, stdin) == 1) {
        dtype_to_f32((enum dtype)t, block, values, (int64_t)n);
        if (fwrite(values, sizeof *values, n, stdout) != n)
            return 1;
    }
    mem_free(values);
    mem_free(block);
    return 0;
}
