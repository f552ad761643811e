#include "engine/serve/batch/jobs_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/serve/batch/files_api.h"
#include "engine/serve/batch/input.h"

enum { LIST_USUAL = 20, LIST_MOST = 100, PAIRS = 16, KEY_CHARS = 64, VALUE_CHARS = 512 };

/* ---- as JSON */

static void put_time(struct buf *out, const char *name, int64_t s)
{
    if (s)
        buf_printf(out, ",\"%s\":%" PRId64, name, s);
    else
        buf_printf(out, ",\"%s\":null", name);
}

static void put_file(struct buf *out, const char *name, const char *id)
{
    if (*id)
        buf_printf(out, ",\"%s\":\"%s\"", name, id);
    else
        buf_printf(out, ",\"%s\":null", name);
}

static void put_errors(struct buf *out, const struct batch_job *j)
{
    if (!*j->code) {
        buf_puts(out, ",\"errors\":null");
        return;
    }
    buf_printf(out, ",\"errors\":{\"object\":\"list\",\"data\":[{\"code\":\"%s\",\"message\":", j->code);
    buf_put_json(out, j->why, strlen(j->why));
    buf_puts(out, ",\"param\":null,\"line\":");
    if (j->wrong_line)
        buf_printf(out, "%" PRId64, j->wrong_line);
    else
        buf_puts(out, "null");
    buf_puts(out, "}]}");
}

static void put_job(struct buf *out, const struct batch_job *j)
{
    bool ended = job_has_ended(j->status);
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"batch\",\"endpoint\":\"%s\"", j->id, j->endpoint);
    put_errors(out, j);
    buf_printf(out, ",\"input_file_id\":\"%s\",\"completion_window\":\"24h\",\"status\":\"%s\"", j->input,
               job_status_name(j->status));
    put_file(out, "output_file_id", ended ? j->output : "");
    put_file(out, "error_file_id", ended ? j->errors : "");
    buf_printf(out, ",\"created_at\":%" PRId64, j->at_s[JOB_VALIDATING]);
    put_time(out, "in_progress_at", j->at_s[JOB_IN_PROGRESS]);
    put_time(out, "expires_at", j->at_s[JOB_VALIDATING] + JOBS_WINDOW_S);
    put_time(out, "finalizing_at", j->at_s[JOB_FINALIZING]);
    put_time(out, "completed_at", j->at_s[JOB_COMPLETED]);
    put_time(out, "failed_at", j->at_s[JOB_FAILED]);
    put_time(out, "expired_at", j->at_s[JOB_EXPIRED]);
    put_time(out, "cancelling_at", j->at_s[JOB_CANCELLING]);
    put_time(out, "cancelled_at", j->at_s[JOB_CANCELLED]);
    buf_printf(out,
               ",\"request_counts\":{\"total\":%" PRId64 ",\"completed\":%" PRId64 ",\"failed\":%" PRId64
               "},\"metadata\":%s}",
               j->total, j->completed, j->failed, j->metadata);
}

static void answer_job(struct http_exchange *x, const struct batch_job *j)
{
    struct buf out = {0};
    put_job(&out, j);
    front_json(x, &out);
    buf_free(&out);
}

/* ---- create */

static size_t chars(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static int check_metadata(const struct json *m, struct fault *f)
{
    if (!m || json_type(m) == JSON_NULL)
        return 0;
    if (json_type(m) != JSON_OBJECT || json_count(m) > PAIRS)
        return fault_set(f, 400, "invalid_value", "metadata", "metadata must be an object of at most %d texts", PAIRS);
    for (const struct json *j = json_first(m); j; j = json_next(j))
        if (!json_text(j) || chars(json_text(j)) > VALUE_CHARS || chars(json_key(j)) > KEY_CHARS)
            return fault_set(f, 400, "invalid_value", "metadata",
                             "metadata must be texts of at most %d characters with names of at most %d", VALUE_CHARS,
                             KEY_CHARS);
    return 0;
}

static int check_names(const struct json *root, struct fault *f)
{
    static const char *const known[] = {"input_file_id", "endpoint", "completion_window", "metadata"};
    if (json_type(root) != JSON_OBJECT)
        return fault_set(f, 400, "bad_request", NULL, "the body must be a JSON object");
    for (const struct json *j = json_first(root); j; j = json_next(j)) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found |= strcmp(json_key(j), known[i]) == 0;
        if (!found && json_type(j) != JSON_NULL)
            return fault_set(f, 400, "unsupported_value", json_key(j), "this field is not offered");
    }
    return 0;
}

/* What the body asks for; metadata is the caller's. */
static int read_body(const struct jobs_api *a, const struct json *root, struct batch_job *j, struct fault *f)
{
    const struct json *metadata = json_find(root, "metadata");
    const char *file = json_text(json_find(root, "input_file_id")), *endpoint = json_text(json_find(root, "endpoint")),
               *window = json_text(json_find(root, "completion_window"));
    if (check_names(root, f))
        return f->status;
    if (!endpoint || !input_path(endpoint))
        return fault_set(f, 400, "invalid_value", "endpoint", "endpoint must be " INPUT_PATHS);
    if (strcmp(endpoint, "/v1/embeddings") == 0 ? !a->front->encoder : a->front->alone)
        return fault_set(f, 400, "invalid_value", "endpoint", "this server has no model for %s", endpoint);
    if (!window || strcmp(window, "24h") != 0)
        return fault_set(f, 400, "invalid_value", "completion_window", "completion_window must be '24h'");
    if (!file || !files_find(a->files, file, j->owner))
        return fault_set(f, 400, "invalid_value", "input_file_id", "there is no file '%.100s'", file ? file : "");
    if (check_metadata(metadata, f))
        return f->status;
    snprintf(j->endpoint, sizeof j->endpoint, "%s", endpoint);
    snprintf(j->input, sizeof j->input, "%s", file);
    struct buf text = {0};
    if (metadata)
        json_write(&text, metadata, NULL);
    else
        buf_puts(&text, "null");
    j->metadata = buf_take(&text);
    return 0;
}

static void create(struct jobs_api *a, struct http_exchange *x, const struct auth_key *key, const char *owner)
{
    struct batch_job j = {0};
    struct fault f = {0};
    struct err e = {0};
    struct json *root = json_parse(x->body.data ? x->body.data : "", x->body.len, NULL, &e);
    snprintf(j.owner, sizeof j.owner, "%s", owner);
    snprintf(j.tenant, sizeof j.tenant, "%s", key->tenant);
    snprintf(j.salt, sizeof j.salt, "%s", key->salt);
    if (!root)
        fault_set(&f, 400, "bad_request", NULL, "the body is no JSON: %.200s", e.text);
    else if (!read_body(a, root, &j, &f) && jobs_add(a->jobs, &j, &e))
        fault_set(&f, e.code == E_FULL ? 429 : 507, e.code == E_FULL ? "rate_limit_exceeded" : "insufficient_storage",
                  NULL, "%s", e.text);
    json_free(root);
    if (f.status)
        front_fault(x, &f);
    else if (jobs_find(a->jobs, j.id, owner, &j))
        answer_job(x, &j);
    else
        front_refuse_busy(x, "the server is stopping");
}

/* ---- list */

static void get_list(struct jobs_api *a, struct http_exchange *x, const char *owner)
{
    char limit[16] = "", after[JOBS_ID + 1] = "", *end = limit;
    struct fault f;
    struct buf out = {0};
    struct batch_job j;
    char first[JOBS_ID] = "", last[JOBS_ID] = "";
    long n = http_query_find(x->head.query, "limit", limit, sizeof limit) ? strtol(limit, &end, 10) : LIST_USUAL;
    http_query_find(x->head.query, "after", after, sizeof after);
    if (n < 1 || n > LIST_MOST || *end || (*after && !jobs_find(a->jobs, after, owner, &j))) {
        fault_set(&f, 400, "invalid_value", *after ? "after" : "limit",
                  *after ? "there is no such batch" : "limit must be 1 to %d", LIST_MOST);
        front_fault(x, &f);
        return;
    }
    uint64_t before = *after ? j.number : UINT64_MAX;
    bool more = false;
    long found = 0;
    buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; !more && jobs_at(a->jobs, i, &j); i++) {
        if (j.number >= before || strcmp(j.owner, owner) != 0)
            continue;
        more = found == n;
        if (more)
            break;
        buf_puts(&out, found++ ? "," : "");
        put_job(&out, &j);
        snprintf(*first ? last : first, JOBS_ID, "%s", j.id);
    }
    buf_puts(&out, "],\"first_id\":");
    buf_printf(&out, *first ? "\"%s\"" : "null", first);
    buf_puts(&out, ",\"last_id\":");
    buf_printf(&out, *first ? "\"%s\"" : "null", *last ? last : first);
    buf_printf(&out, ",\"has_more\":%s}", more ? "true" : "false");
    front_json(x, &out);
    buf_free(&out);
}

/* ---- the routes */

static bool refuse_all(const struct jobs_api *a, struct http_exchange *x)
{
    struct fault f;
    if (!a->jobs) {
        fault_set(&f, 501, "not_implemented", NULL, "this server runs no batches: start it with --batch-dir FOLDER");
        http_add_header(x, "x-should-retry", "false");
        front_fault(x, &f);
    } else if (a->front->draining) {
        front_refuse_busy(x, "the server is draining");
    }
    return !a->jobs || a->front->draining;
}

void jobs_api_all(struct jobs_api *a, struct http_exchange *x, const struct auth_key *key)
{
    char owner[FILES_OWNER];
    if (refuse_all(a, x))
        return;
    files_api_owner(key, owner);
    if (x->head.method == HTTP_POST)
        create(a, x, key, owner);
    else
        get_list(a, x, owner);
}

void jobs_api_one(struct jobs_api *a, struct http_exchange *x, const struct auth_key *key)
{
    char owner[FILES_OWNER], id[JOBS_ID];
    struct batch_job j;
    struct fault f;
    if (refuse_all(a, x))
        return;
    files_api_owner(key, owner);
    jobs_settle(a->jobs);
    const char *rest = x->head.path + strlen("/v1/batches/"), *behind = rest + strcspn(rest, "/");
    snprintf(id, sizeof id, "%.*s", (int)(behind - rest < JOBS_ID ? behind - rest : 0), rest);
    bool cancel = strcmp(behind, "/cancel") == 0 && x->head.method == HTTP_POST;
    bool get = !*behind && x->head.method != HTTP_POST;
    if ((!get && !cancel) || !jobs_find(a->jobs, id, owner, &j)) {
        fault_set(&f, 404, "not_found", NULL, "there is no batch '%.100s'", rest);
        front_fault(x, &f);
    } else if (cancel && !jobs_cancel(a->jobs, id)) {
        fault_set(&f, 409, "invalid_state", NULL, "the batch has ended: it is %s", job_status_name(j.status));
        http_add_header(x, "x-should-retry", "false");
        front_fault(x, &f);
    } else if (jobs_find(a->jobs, id, owner, &j)) {
        answer_job(x, &j);
    }
}
