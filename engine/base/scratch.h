/* A folder in /tmp for files that only this process and its children need. It is removed with all that is in it; that
 * of a process that was killed is removed by the next one that makes one, which a lock tells from those in use. Any
 * thread.
 */
#ifndef BASE_SCRATCH_H
#define BASE_SCRATCH_H

#include <stdbool.h>

#include "engine/base/err.h"

enum { SCRATCH_PATH = 40 };
struct scratch {
    char path[SCRATCH_PATH]; /* "": there is none */
    int lock;
};

/* Only its owner may look into it. E_SYS. */
int scratch_open(struct scratch *s, struct err *e);
/* False: something is left, and errno says why. Also where there is none. */
bool scratch_close(struct scratch *s);

#endif
