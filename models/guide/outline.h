/* What a client asks its answer to be, as a grammar: JSON by a schema, any JSON object, one of some texts, what matches
 * a regular expression or a grammar of its own, or calls of tools in the format of the model. Pure; any thread. A
 * grammar is held once by the caller (shared_drop). E_INPUT says what is wrong with it, or not offered. */
#ifndef MODELS_GUIDE_OUTLINE_H
#define MODELS_GUIDE_OUTLINE_H

#include "engine/base/json.h"
#include "models/guide/grammar.h"
#include "models/template/tool_calls.h"

int outline_schema(const struct json *schema, struct grammar **out, struct err *e);
int outline_object(struct grammar **out, struct err *e);
int outline_choice(const struct json *texts, struct grammar **out, struct err *e); /* an array of strings */
int outline_regex(const char *text, struct grammar **out, struct err *e);
int outline_gbnf(const char *text, struct grammar **out, struct err *e);
/* What `inner` says, behind a thought: any text up to `end`, which is ASCII. begin: how a thought begins, which may
 * also be left out; NULL: it has begun. inner stays the caller's. */
int outline_thought(const char *begin, const char *end, const struct grammar *inner, struct grammar **out,
                    struct err *e);
/* One call of a function of `tools` (of the request), or of the one named; several: or some more. E_UNSUPPORTED: the
 * format has no text that a call could be forced with. */
int outline_calls(enum tool_format format, const struct json *tools, const char *name, bool several,
                  struct grammar **out, struct err *e);

#endif
