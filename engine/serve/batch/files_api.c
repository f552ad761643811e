#include "engine/serve/batch/files_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/serve/batch/jobs.h"
#include "engine/serve/batch/multipart.h"

enum { LIST_MOST = 10000 };

/* An upload, or the reading of a file's content. */
struct file_job {
    struct text_job job; /* first */
    struct files *files;
    struct http_exchange *x; /* front thread; NULL: gone */
    struct buf bytes;        /* what came, or what is read */
    char *type;              /* of an upload */
    struct kept_file file;
    uint64_t begun_bytes; /* of an upload: what it holds */
    struct fault fault;
    bool done; /* run() came to its end, well */
};

void files_api_owner(const struct auth_key *key, char out[FILES_OWNER])
{
    struct buf text = {0};
    char hex[65];
    buf_puts(&text, "moonshift batch files of ");
    buf_put(&text, key->digest.bytes, sizeof key->digest.bytes);
    struct sha256 digest = hash_sha256(text.data, text.len);
    hash_hex(&digest, hex);
    snprintf(out, FILES_OWNER, "%.32s", hex);
    buf_free(&text);
}

static void put_file(const struct kept_file *f, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"file\",\"bytes\":%" PRIu64 ",\"created_at\":%" PRId64 ",\"filename\":",
               f->id, f->bytes, f->created_s);
    buf_put_json(out, f->name, strlen(f->name));
    buf_puts(out, ",\"purpose\":\"batch\",\"status\":\"processed\"}");
}

static void answer_file(struct http_exchange *x, const struct kept_file *f)
{
    struct buf out = {0};
    put_file(f, &out);
    front_json(x, &out);
    buf_free(&out);
}

static void answer_fault(struct http_exchange *x, const struct fault *f)
{
    if (f->status == 507)
        http_add_header(x, "x-should-retry", "false"); /* it does not pass by itself */
    front_fault(x, f);
}

/* ---- jobs */

static void job_gone(struct http_exchange *x)
{
    struct file_job *j = x->user;
    j->x = NULL;
    cancel_ask(&j->job.cancel);
}

static void free_job(struct file_job *j)
{
    buf_free(&j->bytes);
    mem_free(j->type);
    mem_free(j);
}

static bool start_job(struct files_api *a, struct file_job *j, struct http_exchange *x)
{
    j->files = a->files;
    j->x = x;
    x->user = j;
    x->gone = job_gone;
    if (text_post(a->front->text, TEXT_LONG, &j->job) == 0)
        return true;
    x->user = NULL;
    x->gone = NULL;
    front_refuse_busy(x, "too many requests are being read");
    return false;
}

/* ---- upload */

static int check_fields(struct file_job *j, const struct multipart *m)
{
    const struct multipart_part *purpose = multipart_find(m, "purpose"), *file = multipart_find(m, "file");
    for (int i = 0; i < m->n; i++)
        if (multipart_find(m, m->parts[i].name) != &m->parts[i])
            return fault_set(&j->fault, 400, "invalid_value", m->parts[i].name, "the field comes twice");
        else if (&m->parts[i] != purpose && &m->parts[i] != file)
            return fault_set(&j->fault, 400, "unsupported_value", m->parts[i].name,
                             "this field is not offered; purpose and file are");
    if (!purpose || purpose->n != 5 || memcmp(purpose->p, "batch", 5) != 0)
        return fault_set(&j->fault, 400, "invalid_value", "purpose", "purpose must be 'batch'");
    if (!file || !file->is_file || !*file->filename || !utf8_valid(file->filename, strlen(file->filename)))
        return fault_set(&j->fault, 400, "invalid_value", "file", "file must be a file with a name in UTF-8");
    if (file->n == 0)
        return fault_set(&j->fault, 400, "invalid_value", "file", "the file is empty");
    if (file->n > files_limits_of(j->files)->file_bytes)
        return fault_set(&j->fault, 413, "too_large", "file",
                         "a file has at most %" PRIu64 " bytes (--batch-file-bytes)",
                         files_limits_of(j->files)->file_bytes);
    return 0;
}

static void run_upload(struct text_job *job)
{
    struct file_job *j = (struct file_job *)job;
    struct multipart m;
    struct err e = {0};
    if (multipart_read(&m, j->type, j->bytes.data ? j->bytes.data : "", j->bytes.len, &e)) {
        fault_set(&j->fault, 400, "bad_request", NULL, "%s", e.text);
        return;
    }
    if (check_fields(j, &m))
        return;
    const struct multipart_part *file = multipart_find(&m, "file");
    snprintf(j->file.name, sizeof j->file.name, "%s", file->filename);
    if (files_write(j->files, &j->file, file->p, file->n, &e))
        fault_set(&j->fault, 507, "insufficient_storage", NULL, "the file cannot be kept: %s", e.text);
    else
        j->done = true;
}

static void upload_done(struct text_job *job)
{
    struct file_job *j = (struct file_job *)job;
    if (j->x && j->done) {
        files_add(j->files, &j->file, j->begun_bytes);
        answer_file(j->x, &j->file);
    } else {
        files_give_up(j->files, &j->file, j->begun_bytes);
        if (j->x && j->fault.status)
            answer_fault(j->x, &j->fault);
        else if (j->x)
            front_refuse_busy(j->x, "the server is stopping");
    }
    free_job(j);
}

static void upload(struct files_api *a, struct http_exchange *x, const char *owner)
{
    struct file_job *j = mem_new(sizeof *j);
    struct err e = {0};
    struct fault f;
    const char *type = http_head_find(&x->head, "content-type");
    if (files_begin(a->files, owner, x->body.len, &j->file, &e)) {
        fault_set(&f, 507, "insufficient_storage", NULL, "%s", e.text);
        answer_fault(x, &f);
        mem_free(j);
        return;
    }
    j->begun_bytes = x->body.len;
    j->type = mem_strdup(type ? type : "");
    j->bytes = x->body;
    x->body = (struct buf){0};
    j->job.run = run_upload;
    j->job.done = upload_done;
    j->job.bytes = j->bytes.len;
    if (!start_job(a, j, x)) {
        files_give_up(a->files, &j->file, j->begun_bytes);
        free_job(j);
    }
}

/* ---- content */

static void run_read(struct text_job *job)
{
    struct file_job *j = (struct file_job *)job;
    struct err e = {0};
    j->done = files_read(j->files, &j->file, &j->bytes, &e) == 0;
    if (!j->done)
        fault_set(&j->fault, 500, "unreadable", NULL, "the file cannot be read: %s", e.text);
}

static void read_done(struct text_job *job)
{
    struct file_job *j = (struct file_job *)job;
    if (!j->done && !files_find(j->files, j->file.id, j->file.owner)) /* it was deleted meanwhile */
        fault_set(&j->fault, 404, "not_found", NULL, "there is no file '%s'", j->file.id);
    if (j->x && j->done)
        http_answer(j->x, 200, "application/octet-stream", j->bytes.data, j->bytes.len);
    else if (j->x && j->fault.status)
        front_fault(j->x, &j->fault);
    else if (j->x)
        front_refuse_busy(j->x, "the server is stopping");
    free_job(j);
}

static void get_content(struct files_api *a, struct http_exchange *x, const struct kept_file *f)
{
    struct file_job *j = mem_new(sizeof *j);
    j->file = *f;
    j->job.run = run_read;
    j->job.done = read_done;
    j->job.bytes = (size_t)f->bytes;
    if (!start_job(a, j, x))
        free_job(j);
}

/* ---- list */

struct file_query {
    int64_t limit;
    bool ascending;
    char after[FILES_ID + 1];
};

static int read_query(const char *query, struct file_query *q, struct fault *f)
{
    char text[32], *end = text;
    *q = (struct file_query){.limit = LIST_MOST};
    if (http_query_find(query, "limit", text, sizeof text)) {
        q->limit = strtoll(text, &end, 10);
        if (*end || end == text || q->limit < 1 || q->limit > LIST_MOST)
            return fault_set(f, 400, "invalid_value", "limit", "limit must be 1 to %d", LIST_MOST);
    }
    if (http_query_find(query, "order", text, sizeof text)) {
        q->ascending = strcmp(text, "asc") == 0;
        if (!q->ascending && strcmp(text, "desc") != 0)
            return fault_set(f, 400, "invalid_value", "order", "order must be 'asc' or 'desc'");
    }
    if (http_query_find(query, "purpose", text, sizeof text) && strcmp(text, "batch") != 0)
        q->limit = 0; /* there are none of another purpose */
    http_query_find(query, "after", q->after, sizeof q->after);
    return 0;
}

/* The files of this owner in the order asked for, from behind `after` on. True: there are more of them. */
static bool put_list(const struct files *s, const char *owner, const struct file_query *q, struct buf *out)
{
    const struct kept_file *after = *q->after ? files_find(s, q->after, owner) : NULL;
    int n = files_count(s);
    int64_t found = 0;
    for (int i = 0; i < n; i++) {
        const struct kept_file *f = files_at(s, q->ascending ? i : n - 1 - i);
        bool behind = !after || (q->ascending ? f->number > after->number : f->number < after->number);
        if (!behind || strcmp(f->owner, owner) != 0 || !q->limit)
            continue;
        if (found == q->limit)
            return true;
        if (found++)
            buf_putc(out, ',');
        put_file(f, out);
    }
    return false;
}

static void get_list(struct files_api *a, struct http_exchange *x, const char *owner)
{
    struct file_query q;
    struct fault f;
    struct buf out = {0};
    if (read_query(x->head.query, &q, &f)) {
        front_fault(x, &f);
        return;
    }
    if (*q.after && !files_find(a->files, q.after, owner)) {
        fault_set(&f, 400, "invalid_value", "after", "there is no file '%s'", q.after);
        front_fault(x, &f);
        return;
    }
    buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    bool more = put_list(a->files, owner, &q, &out);
    buf_printf(&out, "],\"has_more\":%s}", more ? "true" : "false");
    front_json(x, &out);
    buf_free(&out);
}

/* ---- the routes */

/* True: it was answered. */
static bool refuse_all(const struct files_api *a, struct http_exchange *x)
{
    struct fault f;
    if (!a->files) {
        fault_set(&f, 501, "not_implemented", NULL, "this server keeps no files: start it with --batch-dir FOLDER");
        http_add_header(x, "x-should-retry", "false");
        front_fault(x, &f);
    } else if (a->front->draining) {
        front_refuse_busy(x, "the server is draining");
    }
    return !a->files || a->front->draining;
}

void files_api_all(struct files_api *a, struct http_exchange *x, const struct auth_key *key)
{
    char owner[FILES_OWNER];
    if (refuse_all(a, x))
        return;
    files_api_owner(key, owner);
    jobs_settle(a->jobs);
    if (x->head.method == HTTP_POST)
        upload(a, x, owner);
    else
        get_list(a, x, owner);
}

static void delete_file(struct files_api *a, struct http_exchange *x, const struct kept_file *f)
{
    struct err e = {0};
    struct fault fault;
    struct buf out = {0};
    buf_printf(&out, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", f->id);
    if (jobs_use(a->jobs, f->id)) {
        fault_set(&fault, 409, "file_in_use", NULL, "a batch reads this file: cancel it, or wait for its end");
        http_add_header(x, "x-should-retry", "false");
        front_fault(x, &fault);
    } else if (files_remove(a->files, f, &e)) {
        fault_set(&fault, 500, "not_deleted", NULL, "%s", e.text);
        front_fault(x, &fault);
    } else {
        front_json(x, &out);
    }
    buf_free(&out);
}

void files_api_one(struct files_api *a, struct http_exchange *x, const struct auth_key *key)
{
    char owner[FILES_OWNER], id[FILES_ID];
    struct fault f;
    if (refuse_all(a, x))
        return;
    files_api_owner(key, owner);
    jobs_settle(a->jobs);
    const char *rest = x->head.path + strlen("/v1/files/"), *behind = rest + strcspn(rest, "/");
    snprintf(id, sizeof id, "%.*s", (int)(behind - rest < FILES_ID ? behind - rest : 0), rest);
    bool content = strcmp(behind, "/content") == 0, get = x->head.method != HTTP_DELETE;
    const struct kept_file *file = *behind && !content ? NULL : files_find(a->files, id, owner);
    if (!file || (content && !get)) {
        fault_set(&f, 404, "not_found", NULL, "there is no file '%.100s'", rest);
        front_fault(x, &f);
    } else if (content) {
        get_content(a, x, file);
    } else if (get) {
        answer_file(x, file);
    } else {
        delete_file(a, x, file);
    }
}
