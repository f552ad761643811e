/* What the files of the admin routes share: admin.c has the table, the checks of who may come in and what is asked of
 * the engine; admin_policy.c has the versions of policies, admin_limits.c the limits, admin_whatif.c what would be
 * under another policy. Front thread only. */
#ifndef SERVE_ADMIN_INNER_H
#define SERVE_ADMIN_INNER_H

#include "engine/serve/admin.h"

void admin_refuse(struct http_exchange *x, int status, const char *code, const char *text);
/* "name.lua:12: reason" also in parts. */
void admin_refuse_policy(struct http_exchange *x, const char *code, const char *text);
/* The policy's name without ".lua". */
bool admin_read_name(const char *given, char out[POLICY_NAME_MAX + 1]);
bool admin_source_ok(struct admin *a, struct http_exchange *x); /* may a body be loaded? false: answered */
void admin_check(struct admin *a, struct http_exchange *x,
                 const char *fallback); /* fallback: the name, without ?name= */
/* Who asks, as the record names it: never by the key itself. */
void admin_actor(const struct admin *a, const struct http_exchange *x, char out[AUDIT_ACTOR]);

/* ---- admin_policy.c */

void admin_get_versions(struct admin *a, struct http_exchange *x);
void admin_get_source(struct admin *a, struct http_exchange *x);
void admin_put_source(struct admin *a, struct http_exchange *x);
void admin_post_version(struct admin *a, struct http_exchange *x); /* NAME/check, NAME/activate, NAME/rollback */
void admin_delete_version(struct admin *a, struct http_exchange *x);
void admin_post_rollback(struct admin *a, struct http_exchange *x);
void admin_get_audit(struct admin *a, struct http_exchange *x);

/* ---- admin_limits.c */

void admin_get_limits(struct admin *a, struct http_exchange *x);
void admin_patch_limits(struct admin *a, struct http_exchange *x);

/* ---- admin_whatif.c */

void admin_get_whatif(struct admin *a, struct http_exchange *x);
void admin_post_whatif(struct admin *a, struct http_exchange *x);

#endif
