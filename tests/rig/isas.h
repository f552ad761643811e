/* Every instruction set that kernels are written for. What this CPU lacks cannot be opened. */
#ifndef RIG_ISAS_H
#define RIG_ISAS_H

static const char *const isas[] = {"portable", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm"};
enum { N_ISAS = sizeof isas / sizeof *isas };

#endif
