/* How many cores this process has for work that never waits: of the CPUs that it may run on one for each physical core
 * (its hardware threads share one set of multipliers), none that is much slower than the others, and no more than the
 * share of time that its control group is given: threads beyond that are stopped in the middle of a step while the
 * others wait for them. Facts of the system at the time of the call. Any thread. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <stdbool.h>
#include <stddef.h>

struct cores {
    int cpus;     /* that it may run on, 1 at least */
    int siblings; /* of these, further hardware threads of a core */
    int slow;     /* of these, much slower than the others: efficiency cores */
    double quota; /* CPUs' worth of time; 0: there is no limit */
    int usable;   /* 1 at least */
};

enum { CORES_MOST_CPUS = 1024 };

/* may[i]: the process may run on CPU i. root: what stands before /sys and /proc, "" but in tests. What cannot be read
 * limits nothing. */
void cores_look(const char *root, const bool may[CORES_MOST_CPUS], struct cores *out);
void cores_now(struct cores *out); /* of this process */
/* The CPUs that it may run on, as far as the system says so. */
void cores_allowed(bool may[CORES_MOST_CPUS]);
int cores_usable(void);
/* Why usable is less than cpus, in words; "" where it is not. */
void cores_say(const struct cores *c, char *out, size_t cap);

#endif
