/* The control room: one page, its style and its script, at "/" of the admin listener. The files lie in this folder and
 * are packed into the program (pack.cmake). They tell nothing of the server and need no key; what the page then asks
 * for does. Nothing is fetched from elsewhere, and the page may be neither framed nor made to run what did not come
 * with it (Content-Security-Policy). Front thread only. */
#ifndef SERVE_ROOM_ROOM_H
#define SERVE_ROOM_ROOM_H

#include "engine/serve/http/http.h"

bool room_has(const char *path); /* is it one of its files? */
void room_answer(struct http_exchange *x);

#endif
