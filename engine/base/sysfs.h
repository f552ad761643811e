/* Small files of /sys and /proc. Pure readers, any thread. */
#ifndef BASE_SYSFS_H
#define BASE_SYSFS_H

#include <stdbool.h>

enum { SYSFS_PATH = 4096, SYSFS_TEXT = 4096 };

/* The start of the file that the format names; false and "" when there is none. */
__attribute__((format(printf, 2, 3))) bool sysfs_read(char text[SYSFS_TEXT], const char *format, ...);
/* Is i in a list like "0-3,8"? */
bool sysfs_lists(const char *list, int i);

#endif
