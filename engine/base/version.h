/* Which Moonshift this is: the number of CMakeLists.txt, its only place, and the commit that it was built from.
 * Constant, any thread. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

extern const char version_number[]; /* "1.2.3" */
extern const char
    version_commit[]; /* "1a2b3c4d5e", with "+" behind it where files differed from it; "" where there was no git */
extern const char version_full[]; /* "1.2.3 (1a2b3c4d5e)"; without a commit: "1.2.3" */

#endif
