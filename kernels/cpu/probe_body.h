/* The loops of the probes, for probe_avx2.c and probe_avx512.c: in assembly, so that no compiler finds that nothing
 * comes of them. Twelve chains of sums, each waiting for itself only (two dots a cycle that take six each need as
 * many), over zeros, as what lies in a register by chance could be slow. */
#ifndef CPU_PROBE_BODY_H
#define CPU_PROBE_BODY_H

#include <stdint.h>

#include "kernels/cpu/probe.h"

enum { PROBE_LOOPS = 200000, PROBE_CHAINS = 12 };

/* step: of each chain, whose register's number is \r; 14 and 15 are factors, 13 is free. Returns ops for each of them.
 */
#define PROBE_LOOP(name, step, ops)                                                                                    \
    static double name(void)                                                                                           \
    {                                                                                                                  \
        uint32_t n = PROBE_LOOPS;                                                                                      \
        __asm__ volatile("vzeroall\n"                                                                                  \
                         "1:\n"                                                                                        \
                         ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" step ".endr\n"                                           \
                         "dec %0\n"                                                                                    \
                         "jnz 1b\n"                                                                                    \
                         "vzeroupper\n"                                                                                \
                         : "+r"(n)                                                                                     \
                         :                                                                                             \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",       \
                           "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                      \
        return (double)(ops)*PROBE_LOOPS * PROBE_CHAINS;                                                               \
    }

#endif
