/* The instruction sets that kernels are written for, and which of them this CPU has. Pure, any thread. Invariant: all
 * of them give the same bits, but for tiles of bfloat16 (kernels.h), so a choice is one of time alone. */
#ifndef CPU_ISA_H
#define CPU_ISA_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "kernels/cpu/linear_amx.h"

struct cpu_kernels;
struct encode_kernels;

struct isa {
    const char *name, *needs; /* needs: what of the CPU, for people */
    bool (*here)(void);
    const struct cpu_kernels *(*kernels)(void); /* NULL where the program was not built for CPUs of this family */
    const struct encode_kernels *(*encode)(void);
    linear_fn *(*tiles)(void); /* or NULL: of linear layers those that go by tiles (linear_amx.h) */
};

/* The one of this name; the best one for "auto" and NULL. E_INPUT for no such name, E_UNSUPPORTED where this CPU lacks
 * it. */
int isa_pick(const char *name, const struct isa **out, struct err *e);

/* Where the CPU adds pairs of products of bfloat16 (AVX512-BF16) faster than two products of floats: AMD's everywhere,
 * as it adds twice as many a cycle. Intel's adds half as many (a Xeon 6: 120 against 240 Gop/s a core), which is worth
 * it in linear layers of so few rows that unpacking the weights takes longer. */
enum half_dots { DOTS_NOWHERE, DOTS_OF_FEW_ROWS, DOTS_EVERYWHERE };
enum half_dots isa_half_dots(void);

#endif
