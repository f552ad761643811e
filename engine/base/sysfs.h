/* Small files in which the system says what the machine is (/sys, /proc), and the lists of numbers in them. Readers
 * without a state, any thread; texts are the caller's. Invariant: what cannot be read, or is too long, is an empty text
 * or its start, never an error. */
#ifndef BASE_SYSFS_H
#define BASE_SYSFS_H

#include <stdbool.h>

enum { SYSFS_PATH = 4096, SYSFS_TEXT = 4096 };

/* The start of the file that the format names; false and "" when there is none. */
__attribute__((format(printf, 2, 3))) bool sysfs_read(char text[SYSFS_TEXT], const char *format, ...);
/* Is i in a list like "0-3,8"? */
bool sysfs_lists(const char *list, int i);

#endif
