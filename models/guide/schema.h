/* JSON Schemas as grammars. What comes of one is always valid by it; not all that is valid comes: members stand in the
 * order of `properties`, those that it does not name are left out, numbers have at most 16 digits, white space is a
 * space or a line break with its indent, and nesting ends where the guide's stack does. `oneOf` is read as `anyOf`, and
 * `format` binds for dates, times and UUIDs alone. A keyword that would bind and cannot be kept is refused by name. */
#ifndef MODELS_GUIDE_SCHEMA_H
#define MODELS_GUIDE_SCHEMA_H

#include "engine/base/json.h"
#include "engine/base/map.h"
#include "models/guide/json_rules.h"

/* The schemas of one grammar. Borrowed: documents that schemas lie in. */
struct schemas {
    struct json_rules json;   /* with the grammar that is made */
    struct schema_rule *list; /* rules made of schemas, in order of first use */
    int n, cap, n_made;
    struct map by_schema; /* the rule of each */
};

void schemas_init(struct schemas *s);
void schemas_free(struct schemas *s);
/* The rule of what is valid by `schema`, which lies in `document` ("#" of its $refs). */
int32_t schemas_rule(struct schemas *s, const struct json *schema, const struct json *document);
/* Makes all rules that are still to be made. E_INPUT: what is wrong, or not offered, and where. */
int schemas_make(struct schemas *s, struct err *e);

#endif
