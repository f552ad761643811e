/* Lines typed at a terminal: editing with arrow keys, a history that outlives the program (Ctrl-R searches it), in
 * UTF-8, over libedit, whose
 * ~/.editrc counts. Reads standard input, shows on standard output. Main thread. Between two lines the terminal is as
 * it was found, so that an answer can be printed and stopped by Ctrl-C. */
#ifndef SERVE_TERMINAL_LINE_EDITOR_H
#define SERVE_TERMINAL_LINE_EDITOR_H

#include "engine/base/buf.h"

struct line_editor;

enum line_result { LINE_READ, LINE_INTERRUPTED, LINE_OVER };

/* interrupts: a signalfd of SIGINT, the caller's, drained here when it ends a line. history: the file that lines are
 * kept in, made if need be and readable by its owner only; "": none. NULL where lines cannot be edited (standard input
 * or output is no terminal): read plainly then. */
struct line_editor *line_editor_open(int interrupts, const char *history);
/* The next line, without its end. LINE_INTERRUPTED: Ctrl-C, what was typed is dropped; LINE_OVER: Ctrl-D or the
 * terminal has gone. */
enum line_result line_editor_read(struct line_editor *d, const char *prompt, struct buf *line);
void line_editor_close(struct line_editor *d); /* NULL is fine; saves the history, in silence where it cannot be */

#endif
