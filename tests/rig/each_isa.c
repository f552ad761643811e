/* Stands between a test and the CPU backend (the linker's --wrap=backend_cpu), so that the same test runs with each
 * instruction set: a device that names none gets the one of MOONSHIFT_TEST_ISA. tests/CMakeLists.txt links it to the
 * tests of ops, gold and layouts and runs them once for each set. With MOONSHIFT_TEST_FAST inputs are eight bits. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/backend.h"

const struct backend_ops *__real_backend_cpu(void);
const struct backend_ops *__wrap_backend_cpu(void);

static int open_with(struct device **out, const struct device_opts *o, struct err *e)
{
    const struct backend_ops *real = __real_backend_cpu();
    const char *isa = getenv("MOONSHIFT_TEST_ISA");
    struct device_opts with = *o;
    bool chosen = isa && (!o->isa || strcmp(o->isa, "auto") == 0);
    if (chosen)
        with.isa = isa;
    with.fast |= getenv("MOONSHIFT_TEST_FAST") != NULL;
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
