/* The option table in the forms that an installation carries beside --help: a man page, and completions for shells.
 * Constant data, any thread. Invariant: they have every option and command that --help has. */
#ifndef CLI_OPTS_PAGE_H
#define CLI_OPTS_PAGE_H

#include "engine/cli/opts.h"

void opts_man(struct buf *out);  /* troff, with the man macros */
void opts_bash(struct buf *out); /* a file for bash-completion's folder */
void opts_zsh(struct buf *out);  /* a file _moonshift for zsh's fpath */

#endif
