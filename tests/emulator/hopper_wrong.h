/* Kernels with one mistake each, which hopper_twins.h must detect. */
#ifndef EMULATOR_HOPPER_WRONG_H
#define EMULATOR_HOPPER_WRONG_H

#ifdef __cplusplus
extern "C" {
#endif

enum mistake {
    NO_MISTAKE,
    NO_WGMMA_FENCE,
    NO_PROXY_FENCE,
    NO_COMMIT,
    STORED_UNDER_WAY,
    DIFFERENT_OPERANDS,
    RESERVED_BITS,
    BASE_OFFSET,
    PAST_THE_END,
    HALF_A_GROUP, /* end the program */
    WAITS_FOR_NOBODY,
    WRONG_PARITY,
    NOBODYS_BARRIER,
    NAME_TOO_FEW,
    TOO_MANY_REGISTERS,
    COPIES_FORGOTTEN,
    NO_WAIT,
    WRITTEN_UNDER_WAY,
    NO_PHASE /* are seen in what comes out */
};
/* out: [128] sums, each 16 where nothing is wrong. */
void hopper_mistake(enum mistake m, float *out);

#ifdef __cplusplus
}
#endif

#endif
