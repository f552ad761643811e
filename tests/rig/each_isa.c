/* Stands between a test and the CPU backend (the linker's --wrap=backend_cpu), so that the same test runs with each
 * instruction set: a device that names none gets the one of MOONSHIFT_TEST_ISA. tests/CMakeLists.txt links it to the
 * tests of ops, gold and layouts and runs them once for each set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/check.h"
#include "kernels/backend.h"

const struct backend_ops *__real_backend_cpu(void);
const struct backend_ops *__wrap_backend_cpu(void);

/* MOONSHIFT_TEST_ONLY names the cases that run where all would take too long; MOONSHIFT_TEST_SOME the same, but for
 * `./test wide`. */
__attribute__((constructor)) static void choose_cases(void)
{
    const char *only = getenv("MOONSHIFT_TEST_ONLY"), *some = getenv("MOONSHIFT_TEST_SOME");
    if (some && *some && !getenv("MOONSHIFT_WIDE"))
        cmocka_set_test_filter(some);
    if (only && *only)
        cmocka_set_test_filter(only);
}

static int open_with(struct device **out, const struct device_opts *o, struct err *e)
{
    const struct backend_ops *real = __real_backend_cpu();
    const char *isa = getenv("MOONSHIFT_TEST_ISA");
    struct device_opts with = *o;
    bool chosen = isa && (!o->isa || strcmp(o->isa, "auto") == 0);
    if (chosen)
        with.isa = isa;
    int rc = real->open(out, &with, e);
    if (chosen && rc == 0) {
        struct device_facts facts;
        real->facts(*out, &facts);
        ASSERT(strcmp(facts.isa, isa) == 0);
    }
    return rc;
}

/* Written once before any thread is started, then only read. */
static struct backend_ops wrapped;

const struct backend_ops *__wrap_backend_cpu(void)
{
    if (!wrapped.open) {
        wrapped = *__real_backend_cpu();
        wrapped.open = open_with;
    }
    return &wrapped;
}
