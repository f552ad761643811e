/* The GPUs of the emulated machine and what lies between them. Set by a test while no device is open. */
#ifndef EMULATOR_MACHINE_H
#define EMULATOR_MACHINE_H

#include <stdbool.h>

enum { EMULATED_DEVICES = 8 };

struct emulated_machine {
    int n_devices;                                  /* 0: all */
    const char *names[EMULATED_DEVICES];            /* NULL: "emulated GPU" */
    bool apart[EMULATED_DEVICES][EMULATED_DEVICES]; /* one cannot read the other's memory */
    bool pcie[EMULATED_DEVICES][EMULATED_DEVICES];  /* it can, but by no NVLink */
};

#ifdef __cplusplus
extern "C" {
#endif
void emulator_machine(const struct emulated_machine *m); /* NULL: as it was */
#ifdef __cplusplus
}
#endif

#endif
