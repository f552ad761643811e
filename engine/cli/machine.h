/* Which machine the settings ask for: the backend, and the device of each rank. Pure functions of the settings and of
 * what devices there are; main thread, at start. Invariant: a setting that asks for a device gets that device or an
 * error. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include "engine/engine.h"
#include "engine/cli/opts.h"

typedef const struct backend_ops *backend_finder(const char *name);

/* "0,0,1": the device of each rank; *n: how many, 0 when nothing is said (text NULL). E_INPUT: what is wrong with it.
 */
int machine_devices(const char *text, int devices[MAX_RANKS], int *n, struct err *e);
/* How many ranks, their devices where they are named, and the partition to begin with. E_INPUT: sizes that do not fit
 * each other. */
int machine_ranks(const struct opts *o, struct engine_setup *s, struct err *e);
/* Once ops and n_ranks are known: memory of each rank's own, and how the weights of a model of n_layers are pooled.
 * pool is filled, and lent to s, where they are; else s->ffn stays NULL. E_INPUT: settings that do not fit each other;
 * E_UNSUPPORTED: not on this machine. */
int machine_pool(const struct opts *o, int n_layers, struct engine_setup *s, struct ffn_setup *pool, struct err *e);
/* auto is a GPU where one is found, else the CPU. E_UNSUPPORTED: this build does not have it. */
int machine_backend(const struct opts *o, backend_finder *find, const struct backend_ops **out, struct err *e);
/* For how many rows graphs are recorded, descending; none with --enforce-eager or on machines that have none. E_INPUT:
 * no such list, or not for this machine. */
int machine_graphs(const struct opts *o, struct engine_setup *s, struct err *e);
/* Once ops and n_ranks are known: ranks take the devices in turn where nothing is said; a GPU is for the most part
 * ours. */
void machine_spread(const struct opts *o, struct engine_setup *s);
/* A set of ranks from "0-2" or "0,1,2". E_INPUT. */
int machine_read_ranks(const char *text, uint64_t *mask, struct err *e);

#endif
