/* Where the files lie that come with the program: policies, and descriptions of machines and models. Looked for in the
 * working directory, beside the program, and where it would be installed. Main thread, before any other starts.
 * Invariant: a path found by name can be read. */
#ifndef BASE_PLACES_H
#define BASE_PLACES_H

#include <limits.h>

#include "engine/base/err.h"

/* The folder of policies: what was given, else policies/ where it is found; "" when there is none. */
void places_policies(const char *given, char out[PATH_MAX]);
/* A path (it has a '/' or ends in .json) as it is, else FOLDER/NAME.json where it is found. E_NOTFOUND. */
int places_description(const char *asked, const char *folder, char out[PATH_MAX], struct err *e);

/* Where the lines typed at `moonshift run` are kept: what was given, else moonshift/history under state
 * ($XDG_STATE_HOME) or home's .local/state, whose folders are made. state and home may be NULL. "": nowhere ("off" was
 * given, or there is no home). */
void places_history(const char *given, const char *state, const char *home, char out[PATH_MAX]);

/* The folder where what was tried on this machine is kept: what was given, else moonshift under cache
 * ($XDG_CACHE_HOME) or home's .cache; it is made. cache and home may be NULL. "": there is no home. */
void places_cache(const char *given, const char *cache, const char *home, char out[PATH_MAX]);

/* The folder of moonshift.so, the Lua module of specs, with its whole path: beside the program (where it was built) or
 * in ../lib/lua/5.1 (where it was installed). "": it is in neither. */
void places_module(char out[PATH_MAX]);

#endif
