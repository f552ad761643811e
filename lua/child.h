/* The process of a policy, from inside: it confines itself, does the job that the page names, and then answers calls of
 * the hooks, until it is killed. The same host runs here that would run in the engine (host.c); what it reads of the
 * engine it reads in place, and its verbs go over the page. One thread, and the watchdog's. Invariant: nothing of a
 * policy runs before the process is confined. */
#ifndef LUA_CHILD_H
#define LUA_CHILD_H

/* file: of the page (exchange.h), taken over. Does not come back. */
_Noreturn void child_run(int file);

#endif
