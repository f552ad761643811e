/* transpose.c with the code of CPUs without SSE2. */
#undef __SSE2__
#include "tests/unit/transpose.c"
