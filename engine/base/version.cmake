# cmake -DVERSION= -DOUT= -P version.cmake, in the source folder, at every build: writes version.c, and touches it only
# when the commit is another.
set(commit "")
find_program(GIT git)
if(GIT AND EXISTS ${CMAKE_CURRENT_LIST_DIR}/../../.git)
    execute_process(COMMAND ${GIT} describe --always --abbrev=10 --exclude=* --dirty=+
                    WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR}
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(full "${VERSION}")
if(commit)
    set(full "${VERSION} (${commit})")
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[/* Written by engine/base/version.cmake. */
#include "engine/base/version.h"

const char version_number[] = "@VERSION@";
const char version_commit[] = "@commit@";
const char version_full[] = "@full@";
]])
