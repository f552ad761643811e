#include "engine/base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void check_failed(const char *what, const char *file, int line)
{
    fprintf(
        stderr,
        "\nmoonshift: BUG: %s at %s:%d\nThis is a fault of the program. Please report it with the lines around it.\n",
        what, file, line);
    fflush(stderr);
    abort();
}
