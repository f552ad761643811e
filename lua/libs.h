/* Code that policies share. A policy's table names libraries (`lib = { "victims" }`), and so may a library's; each is a
 * file lib/NAME.lua beside the policy, read once, scanned like the policy, and then run in every machine that is made
 * of that source: what it returns is lib.NAME there. Owned by whoever loads the policy, for as long as that takes. One
 * thread. Invariant: all machines of one loading run the same text, though the files may change meanwhile. */
#ifndef LUA_LIBS_H
#define LUA_LIBS_H

#include <stdbool.h>

#include <lua.h>

#include "engine/base/buf.h"
#include "engine/base/hash.h"
#include "engine/policy.h"

struct lua_watchdog;

struct lib {
    char name[NAME_BYTES];
    struct buf source;
};

/* Where this process may open no file. E_NOTFOUND: there is none; else why it cannot be read. Appends. */
struct lib_reader {
    int (*read)(void *ctx, const char *name, struct buf *out, struct err *e);
    void *ctx;
};

struct libs {
    const char *folder;              /* of the policy; NULL: nobody said, and a policy with libraries is refused */
    const struct lib_reader *reader; /* who reads what lies there; NULL: this process does */
    struct lua_watchdog *watchdog;
    struct lib items[POLICY_LIBS]; /* in the order in which they were first named */
    int n;
    size_t n_policy; /* bytes of the policy: all of it together is bounded as a policy is */
};

/* What a table's `lib` names. */
struct lib_names {
    char items[POLICY_LIBS][NAME_BYTES];
    int n;
};

/* Who names a library: for the line of an error. */
struct lib_user {
    const char *file, *source;
    size_t n;
};

/* The field `lib` of the table at index (absent: none). A body: raises with what is wrong. */
void libs_declared(lua_State *L, int table, struct lib_names *out);
/* The place of a library among the items; it is read where it was not yet. E_INPUT, E_NOTFOUND with "file:line: why".
 */
int libs_find(struct libs *l, const struct lib_user *by, const char *name, int *place, struct err *e);
/* The line of a source in which a name stands in its `lib`; 1 where it cannot be told. */
int libs_line(const char *source, size_t n, const char *name);
/* The text of folder/lib/NAME.lua. E_NOTFOUND: there is none; else why it cannot be read. Appends. */
int libs_read(const char *folder, const char *name, struct buf *out, struct err *e);
/* The policy's text and those of its libraries, by name, as one; without any it is the policy's. Appends. */
void libs_text(const struct libs *l, const char *source, size_t n, struct buf *out);
/* Such a text of several becomes the policy's own (inside it) and the libraries, which are scanned; any other stays as
 * it is. E_INPUT with "file:line: why"; libs_free in any case. */
int libs_take_apart(struct libs *l, const char *name, const char **source, size_t *n, struct err *e);
/* The same, and nothing is scanned: of a text that has been, or will be. */
int libs_split(struct libs *l, const char *name, const char **source, size_t *n, struct err *e);
/* Of libs_text. */
struct sha256 libs_sha256(const struct libs *l, const char *source, size_t n);
/* Their names in order, with spaces between. */
void libs_list(const struct libs *l, char out[POLICY_LIBS_TEXT]);
void libs_free(struct libs *l);

/* libs_load.c */
struct script;
/* The global `lib`, empty. A body, before anything of the policy runs. */
void libs_open(lua_State *L, struct script *s);
/* Runs those that the policy's table names, and those that they name. E_INPUT, E_NOTFOUND, E_POLICY with the file and
 * line. */
int libs_load(struct script *s, const char *source, size_t n, struct err *e);

#endif
