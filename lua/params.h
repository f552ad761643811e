/* The knobs that a policy declares: name, type, unit, default, bounds and doc, and their values now. Values live here;
 * the policy reads a table that is written from them. Owned by the script. Invariant: every value is within what was
 * declared. */
#ifndef LUA_PARAMS_H
#define LUA_PARAMS_H

#include <lua.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/unit.h"

enum { MAX_PARAMS = 32, MAX_MAP = 64, PARAM_NAME = 40, PARAM_TEXT = 64 };

enum param_type { PARAM_NUMBER, PARAM_INTEGER, PARAM_BOOLEAN, PARAM_TEXTUAL, PARAM_MAP };

struct param_entry {
    char key[PARAM_NAME];
    double number;
};

struct param_value {
    double number; /* numbers; booleans: 0 or 1 */
    char text[PARAM_TEXT];
    int n; /* map: text -> number, sorted by key */
    struct param_entry entries[MAX_MAP];
};

struct param {
    char name[PARAM_NAME], doc[200];
    enum param_type type;
    enum unit unit;  /* of a number, or of every value of a map */
    double min, max; /* -inf, inf when not given; of every value of a map */
    char choices[8][PARAM_TEXT];
    int n_choices;
    struct param_value by_default, now;
};

struct params {
    struct param *items; /* sorted by name */
    int n;
};

void params_free(struct params *p);
/* Reads the declarations (a table at index, or nil). A body: raises with what is wrong. */
void params_declare(struct params *p, lua_State *L, int index);
/* Sets the values named in a JSON object: all, or none and E_INPUT. */
int params_set(struct params *p, const char *json, size_t n, struct err *e);
/* The values of now, to be given back by params_restore, or freed. */
struct param_value *params_keep(const struct params *p);
void params_restore(struct params *p, const struct param_value *kept);
/* {"name":{"value":..,"default":..,"min":..,"max":..,"choices":[..],"type":"integer","unit":"ms","doc":".."},...}; no
 * unit where none is declared. */
void params_write(const struct params *p, struct buf *out);
/* Writes the values into the table at index. A body. */
void params_push(const struct params *p, lua_State *L, int index);

#endif
