/* Where cuBLASLt is looked for: the loader (kernels/cuda/lt_load.c itself) beside a dlopen that has one library at one
 * place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/lt_load.h"

static const char *here; /* its path; NULL: nowhere */
static int looked;

void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags)
{
    (void)flags;
    looked++;
    return here && !strcmp(path, here) ? &looked : NULL;
}

void *__wrap_dlsym(void *lib, const char *name);
void *__wrap_dlsym(void *lib, const char *name)
{
    return lib == &looked && !strncmp(name, "cublasLt", 8) ? &looked : NULL;
}

static void found_wherever_it_is(void **state)
{
    static const char *const places[] = {"libcublasLt.so.13",
                                         "libcublasLt.so.12",
                                         "libcublasLt.so",
                                         "/usr/local/cuda/lib64/libcublasLt.so.13",
                                         "/usr/local/cuda/lib64/libcublasLt.so.12",
                                         "/usr/local/cuda/lib64/libcublasLt.so",
                                         "$ORIGIN/libcublasLt.so.13",
                                         "$ORIGIN/../lib/libcublasLt.so.12"};
    struct lt_functions f;
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        here = places[i];
        if (!lt_load(&f))
            fail_msg("%s was not found", places[i]);
    }
}

static void nowhere_is_no_library(void **state)
{
    struct lt_functions f;
    (void)state;
    here = NULL;
    looked = 0;
    assert_false(lt_load(&f));
    assert_true(looked > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(found_wherever_it_is), cmocka_unit_test(nowhere_is_no_library)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
