#include "engine/serve/batch/jobs_state.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/mem.h"

static const char *const names[JOB_STATUSES] = {"validating", "in_progress", "finalizing", "cancelling",
                                                "completed",  "failed",      "expired",    "cancelled"};

const char *job_status_name(enum job_status s)
{
    return names[s];
}

struct text_field {
    const char *name;
    char *at;
    size_t cap;
};

struct number_field {
    const char *name;
    int64_t *at;
};

enum { TEXTS = 10, NUMBERS = 4 };

static void text_fields(struct batch_job *j, struct text_field out[TEXTS])
{
    const struct text_field all[TEXTS] = {{"id", j->id, sizeof j->id},
                                          {"owner", j->owner, sizeof j->owner},
                                          {"endpoint", j->endpoint, sizeof j->endpoint},
                                          {"tenant", j->tenant, sizeof j->tenant},
                                          {"salt", j->salt, sizeof j->salt},
                                          {"input", j->input, sizeof j->input},
                                          {"output", j->output, sizeof j->output},
                                          {"errors", j->errors, sizeof j->errors},
                                          {"code", j->code, sizeof j->code},
                                          {"why", j->why, sizeof j->why}};
    memcpy(out, all, sizeof all);
}

static void number_fields(struct batch_job *j, struct number_field out[NUMBERS])
{
    const struct number_field all[NUMBERS] = {
        {"total", &j->total}, {"completed", &j->completed}, {"failed", &j->failed}, {"wrong_line", &j->wrong_line}};
    memcpy(out, all, sizeof all);
}

void job_put(const struct batch_job *job, struct buf *out)
{
    struct batch_job copy = *job;
    struct text_field texts[TEXTS];
    struct number_field numbers[NUMBERS];
    text_fields(&copy, texts);
    number_fields(&copy, numbers);
    buf_printf(out, "{\"number\":%" PRIu64 ",\"status\":\"%s\",\"at\":[", job->number, names[job->status]);
    for (int i = 0; i < JOB_STATUSES; i++)
        buf_printf(out, "%s%" PRId64, i ? "," : "", job->at_s[i]);
    buf_putc(out, ']');
    for (int i = 0; i < NUMBERS; i++)
        buf_printf(out, ",\"%s\":%" PRId64, numbers[i].name, *numbers[i].at);
    for (int i = 0; i < TEXTS; i++) {
        buf_printf(out, ",\"%s\":", texts[i].name);
        buf_put_json(out, texts[i].at, strlen(texts[i].at));
    }
    buf_printf(out, ",\"metadata\":%s}\n", job->metadata ? job->metadata : "null");
}

static bool read_status(const struct json *root, struct batch_job *j)
{
    const char *text = json_text(json_find(root, "status"));
    const struct json *at = json_first(json_find(root, "at"));
    bool known = false;
    for (int i = 0; i < JOB_STATUSES && text; i++)
        if (strcmp(text, names[i]) == 0) {
            j->status = (enum job_status)i;
            known = true;
        }
    for (int i = 0; i < JOB_STATUSES; i++, at = at ? json_next(at) : NULL)
        if (!at || !json_i64(at, &j->at_s[i]) || j->at_s[i] < 0)
            return false;
    return known;
}

bool job_read(const char *text, size_t n, struct batch_job *j)
{
    struct text_field texts[TEXTS];
    struct number_field numbers[NUMBERS];
    struct json *root = json_parse(text, n, NULL, NULL);
    int64_t number = 0;
    *j = (struct batch_job){0};
    bool ok = root && json_i64(json_find(root, "number"), &number) && number >= 0 && read_status(root, j);
    j->number = (uint64_t)number;
    text_fields(j, texts);
    number_fields(j, numbers);
    for (int i = 0; i < NUMBERS && ok; i++)
        ok = json_i64(json_find(root, numbers[i].name), numbers[i].at) && *numbers[i].at >= 0;
    for (int i = 0; i < TEXTS && ok; i++) {
        const char *t = json_text(json_find(root, texts[i].name));
        ok = t && strlen(t) < texts[i].cap;
        if (ok)
            memcpy(texts[i].at, t, strlen(t) + 1);
    }
    struct buf metadata = {0};
    if (ok && json_find(root, "metadata"))
        json_write(&metadata, json_find(root, "metadata"), NULL);
    else if (ok)
        buf_puts(&metadata, "null");
    j->metadata = ok ? buf_take(&metadata) : NULL;
    json_free(root);
    return ok;
}
