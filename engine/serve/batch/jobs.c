#include "engine/serve/batch/jobs.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/base/thread.h"
#include "engine/serve/batch/batch.h"
#include "engine/serve/batch/input.h"
#include "engine/serve/batch/jobs_state.h"

enum { ABOUT_BYTES = 65536, ID_RANDOM = 12, SECRET = 33 };

/* One that is kept, at an address of its own: its key is borrowed by requests. */
struct kept_job {
    struct batch_job job;
    struct auth_key key; /* of its lines */
    bool fresh;          /* the front has still to be shown its files */
};

struct jobs {
    struct jobs_setup setup;
    char secret[SECRET]; /* begins the keys of all lines */
    struct monitor *lock;
    /* with the lock held */
    struct kept_job **list; /* oldest first */
    int n;
    uint64_t next;
    bool stopping;
    int64_t done, failed; /* lines, since the start */
    /* the thread's */
    struct thread *thread;
    int port;
    struct kept_job *running; /* what heed() is asked about */
    char *shown;              /* the front's: metadata of the last that was looked at */
};

static char *path_of(const struct jobs *j, const char *id, const char *ending)
{
    struct buf path = {0};
    buf_printf(&path, "%s/%s.%s", j->setup.dir, id, ending);
    return buf_take(&path);
}

/* Onto the disk. With the lock held. */
static int save(const struct jobs *j, const struct batch_job *job, struct err *e)
{
    char *path = path_of(j, job->id, "json");
    struct buf text = {0};
    job_put(job, &text);
    int rc = file_replace_private(path, text.data, text.len, e);
    buf_free(&text);
    mem_free(path);
    return rc;
}

static void become(struct jobs *j, struct batch_job *job, enum job_status s)
{
    struct err e;
    job->status = s;
    job->at_s[s] = clock_wall_seconds();
    if (save(j, job, &e))
        log_warn("batch", "%s: %s", job->id, e.text);
}

/* ---- what is there at the start */

static void make_key(struct kept_job *k)
{
    snprintf(k->key.tenant, sizeof k->key.tenant, "%s", k->job.tenant);
    snprintf(k->key.salt, sizeof k->key.salt, "%s", k->job.salt);
    k->key.offline = true;
}

static void keep(struct jobs *j, const struct batch_job *job)
{
    struct kept_job *k = mem_new(sizeof *k);
    k->job = *job;
    make_key(k);
    j->list = mem_resize(j->list, (size_t)j->n + 1, sizeof *j->list);
    j->list[j->n++] = k;
    j->next = job->number >= j->next ? job->number + 1 : j->next;
}

static void read_one(struct jobs *j, const char *name)
{
    struct buf text = {0}, path = {0};
    struct batch_job job;
    buf_printf(&path, "%s/%s", j->setup.dir, name);
    if (file_read(&text, path.data, ABOUT_BYTES, NULL) == 0 && job_read(text.data, text.len, &job) &&
        strncmp(job.id, name, strlen(job.id)) == 0)
        keep(j, &job);
    else
        log_warn("batch", "%s is no batch: it is left out", path.data);
    buf_free(&text);
    buf_free(&path);
}

static int by_number(const void *a, const void *b)
{
    const struct kept_job *x = *(struct kept_job *const *)a, *y = *(struct kept_job *const *)b;
    return x->job.number < y->job.number ? -1 : x->job.number > y->job.number;
}

static int read_all(struct jobs *j, struct err *e)
{
    DIR *d = opendir(j->setup.dir);
    if (!d)
        return err_set(e, E_SYS, "--batch-dir %.200s: %s", j->setup.dir, strerror(errno));
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
        size_t n = strlen(entry->d_name);
        if (strncmp(entry->d_name, "batch_", 6) == 0 && n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0)
            read_one(j, entry->d_name);
    }
    closedir(d);
    if (j->n)
        qsort(j->list, (size_t)j->n, sizeof *j->list, by_number);
    return 0;
}

static bool random_hex(char *out, int n)
{
    unsigned char bytes[ID_RANDOM + 4];
    if (getrandom(bytes, (size_t)n, 0) != n)
        return false;
    for (int i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

int jobs_open(struct jobs **out, const struct jobs_setup *s, struct err *e)
{
    struct jobs *j = mem_new(sizeof *j);
    *out = j;
    j->setup = *s;
    j->next = 1;
    j->lock = monitor_new();
    if (!random_hex(j->secret, 16))
        return err_set(e, E_SYS, "no random bytes");
    return read_all(j, e);
}

void jobs_close(struct jobs *j)
{
    if (!j)
        return;
    jobs_stop(j);
    for (int i = 0; i < j->n; i++) {
        mem_free(j->list[i]->job.metadata);
        mem_free(j->list[i]);
    }
    mem_free(j->list);
    monitor_free(j->lock);
    mem_free(j->shown);
    mem_free(j);
}

/* ---- running one */

/* Asked by the batch that runs. */
static enum batch_word heed(void *ctx, int64_t done, int64_t errors)
{
    struct jobs *j = ctx;
    struct batch_job *job = &j->running->job;
    monitor_lock(j->lock);
    j->done += done - errors - job->completed;
    j->failed += errors - job->failed;
    job->completed = done - errors;
    job->failed = errors;
    bool late = clock_wall_seconds() >= job->at_s[JOB_VALIDATING] + JOBS_WINDOW_S;
    enum batch_word w = j->stopping || job->status == JOB_CANCELLING ? BATCH_STOP : late ? BATCH_EXPIRE : BATCH_GO;
    monitor_unlock(j->lock);
    return w;
}

static void fail(struct jobs *j, struct batch_job *job, const char *code, const char *why, int64_t line)
{
    monitor_lock(j->lock);
    snprintf(job->code, sizeof job->code, "%s", code);
    snprintf(job->why, sizeof job->why, "%s", why);
    job->wrong_line = line;
    become(j, job, JOB_FAILED);
    monitor_unlock(j->lock);
}

/* A cancel may come at any time. */
static enum job_status status_of(struct jobs *j, const struct batch_job *job)
{
    monitor_lock(j->lock);
    enum job_status s = job->status;
    monitor_unlock(j->lock);
    return s;
}

static int compare_hashes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Has any custom_id come twice? */
static bool has_twice(uint64_t *ids, int64_t n)
{
    qsort(ids, (size_t)n, sizeof *ids, compare_hashes);
    for (int64_t i = 1; i < n; i++)
        if (ids[i] == ids[i - 1])
            return true;
    return false;
}

static uint64_t id_of(const struct batch_line *l)
{
    struct sha256 h = hash_sha256(l->id.data ? l->id.data : "", l->id.len);
    uint64_t v;
    memcpy(&v, h.bytes, sizeof v);
    return v;
}

/* All lines are requests to its endpoint, each with an id of its own. False: it has failed, and says why. */
static bool check_lines(struct jobs *j, struct batch_job *job, struct input *in)
{
    uint64_t *ids = mem_new_array((size_t)input_count(in) + 1, sizeof *ids);
    struct batch_line l;
    bool good = true;
    int64_t n = 0;
    while (good && n < input_count(in) && input_next(in, 0, &l)) {
        const char *code = l.code ? l.code : strcmp(l.path, job->endpoint) != 0 ? "invalid_url" : NULL;
        if (code)
            fail(j, job, code, l.code ? l.why : "its url is not the endpoint of the batch", l.number);
        good = !code;
        ids[n++] = id_of(&l);
        batch_line_free(&l);
    }
    if (good && n == 0)
        fail(j, job, "empty_file", "the input has no lines", 0);
    else if (good && has_twice(ids, n))
        fail(j, job, "duplicate_custom_id", "two lines have the same custom_id", 0);
    mem_free(ids);
    return good && status_of(j, job) != JOB_FAILED;
}

static void validate(struct jobs *j, struct batch_job *job)
{
    char *path = files_path(j->setup.files, job->input);
    struct input *in = NULL;
    struct err e = {0};
    if (input_open(&in, path, &e)) {
        fail(j, job, "invalid_file", "the input file is no more", 0);
    } else if (check_lines(j, job, in)) {
        monitor_lock(j->lock);
        job->total = input_count(in);
        if (job->status == JOB_VALIDATING) /* or it was cancelled meanwhile */
            become(j, job, JOB_IN_PROGRESS);
        monitor_unlock(j->lock);
    }
    input_close(in);
    mem_free(path);
}

/* By which a batch knows, after a restart, that its lines would be answered by the same model. */
static const char *model_of(const struct jobs *j, const struct batch_job *job)
{
    const char *m = strcmp(job->endpoint, "/v1/embeddings") == 0 ? j->setup.encoder : j->setup.model;
    return m ? m : "none";
}

/* Answers what is left. True: nothing is. */
static bool answer(struct jobs *j, struct kept_job *k, struct err *e)
{
    struct batch_job *job = &k->job;
    char *in = files_path(j->setup.files, job->input), *out = path_of(j, job->id, "out"),
         *errors = path_of(j, job->id, "err");
    char key[SECRET + JOBS_ID];
    struct batch *b = NULL;
    snprintf(key, sizeof key, "%s.%s", j->secret, job->id);
    struct batch_setup s = {.input = in,
                            .output = out,
                            .errors = errors,
                            .model = model_of(j, job),
                            .seed = 0,
                            .clock = j->setup.clock,
                            .quiet = true,
                            .keeps_journal = true}; /* until what it came to is on record: finish() */
    struct batch_server server = {.port = j->port, .key = key, .at_once = j->setup.at_once, .word = heed, .ctx = j};
    j->running = k;
    int rc = batch_open(&b, &s, e);
    if (!rc)
        rc = batch_run(b, &server, e);
    if (!rc)
        rc = batch_end(b, e);
    batch_close(b);
    mem_free(in);
    mem_free(out);
    mem_free(errors);
    return rc == 0;
}

/* One of the files that it made, as a file of its owner. */
static int adopt(struct jobs *j, struct batch_job *job, const char *ending, char id[FILES_ID], struct err *e)
{
    char *path = path_of(j, job->id, ending);
    struct kept_file f = {.created_s = clock_wall_seconds()};
    int rc = 0;
    if (!*id && access(path, F_OK) == 0) {
        files_name(&f);
        monitor_lock(j->lock);
        memcpy(id, f.id, FILES_ID);
        rc = save(j, job, e); /* first: whoever goes on after a kill takes the same name */
        monitor_unlock(j->lock);
    }
    snprintf(f.id, sizeof f.id, "%s", id);
    snprintf(f.owner, sizeof f.owner, "%s", job->owner);
    snprintf(f.name, sizeof f.name, "%s_%s.jsonl", job->id, *ending == 'o' ? "output" : "error");
    if (!rc && *id)
        rc = files_adopt(j->setup.files, &f, path, e);
    mem_free(path);
    return rc;
}

/* Its answers are there for its owner, whether it came to its end or was cancelled. */
static void finish(struct jobs *j, struct kept_job *k, enum job_status as)
{
    struct batch_job *job = &k->job;
    struct err e = {0};
    char *journal = path_of(j, job->id, "out.job");
    int rc = adopt(j, job, "out", job->output, &e);
    if (!rc)
        rc = adopt(j, job, "err", job->errors, &e);
    if (rc) {
        fail(j, job, "server_error", e.text, 0);
    } else {
        unlink(journal);
        monitor_lock(j->lock);
        become(j, job, as);
        k->fresh = true;
        monitor_unlock(j->lock);
    }
    mem_free(journal);
}

static void answer_all(struct jobs *j, struct kept_job *k)
{
    struct batch_job *job = &k->job;
    struct err e = {0};
    if (answer(j, k, &e)) {
        monitor_lock(j->lock);
        if (job->status == JOB_IN_PROGRESS)
            become(j, job, JOB_FINALIZING);
        monitor_unlock(j->lock);
    } else if (e.code != E_GONE) {
        fail(j, job, "server_error", e.text, 0);
    }
}

/* As far as it can go now: a server that stops leaves it where it is. */
static void run(struct jobs *j, struct kept_job *k)
{
    struct batch_job *job = &k->job;
    if (status_of(j, job) == JOB_VALIDATING)
        validate(j, job);
    if (status_of(j, job) == JOB_IN_PROGRESS)
        answer_all(j, k);
    enum job_status s = status_of(j, job);
    bool late = job->at_s[JOB_FINALIZING] >= job->at_s[JOB_VALIDATING] + JOBS_WINDOW_S;
    if (s == JOB_CANCELLING)
        finish(j, k, JOB_CANCELLED);
    else if (s == JOB_FINALIZING)
        finish(j, k, late ? JOB_EXPIRED : JOB_COMPLETED);
    monitor_lock(j->lock);
    log_info("batch", "%s is %s: %" PRId64 " lines, %" PRId64 " answered, %" PRId64 " errors", job->id,
             job_status_name(job->status), job->total, job->completed, job->failed);
    if (!j->stopping && !job_has_ended(job->status))
        monitor_wait(j->lock, 1000000000); /* the server could not be reached */
    monitor_unlock(j->lock);
}

static struct kept_job *next_job(struct jobs *j)
{
    for (int i = 0; i < j->n; i++)
        if (!job_has_ended(j->list[i]->job.status))
            return j->list[i];
    return NULL;
}

static void body(void *arg)
{
    struct jobs *j = arg;
    for (;;) {
        monitor_lock(j->lock);
        struct kept_job *k;
        while (!j->stopping && !(k = next_job(j)))
            monitor_wait(j->lock, -1);
        bool stop = j->stopping;
        monitor_unlock(j->lock);
        if (stop)
            return;
        run(j, k);
    }
}

int jobs_start(struct jobs *j, int port, struct err *e)
{
    j->port = port;
    return thread_start(&j->thread, "batches", body, j, e);
}

void jobs_interrupt(struct jobs *j)
{
    if (!j)
        return;
    monitor_lock(j->lock);
    j->stopping = true;
    monitor_wake(j->lock);
    monitor_unlock(j->lock);
}

void jobs_stop(struct jobs *j)
{
    if (!j || !j->thread)
        return;
    jobs_interrupt(j);
    thread_join(j->thread);
    j->thread = NULL;
}

/* ---- the front's */

const struct auth_key *jobs_key(struct jobs *j, const char *authorization)
{
    size_t n = strlen(j->secret);
    const char *key = authorization && strncasecmp(authorization, "bearer ", 7) == 0 ? authorization + 7 : NULL;
    const struct auth_key *found = NULL;
    unsigned char differ = 0;
    if (!key || strlen(key) <= n + 1)
        return NULL;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(key[i] ^ j->secret[i]);
    if (differ || key[n] != '.')
        return NULL;
    monitor_lock(j->lock);
    for (int i = 0; i < j->n; i++)
        if (strcmp(j->list[i]->job.id, key + n + 1) == 0 && !job_has_ended(j->list[i]->job.status))
            found = &j->list[i]->key;
    monitor_unlock(j->lock);
    return found;
}

void jobs_drop_strangers(struct jobs *j, bool (*has)(void *ctx, const char *owner), void *ctx)
{
    for (int i = 0; i < j->n; i++)
        if (!job_has_ended(j->list[i]->job.status) && !has(ctx, j->list[i]->job.owner))
            fail(j, &j->list[i]->job, "key_gone", "the API key that made it is no more", 0);
}

/* By its id alone; any of them. */
static void show(struct jobs *j, const char *id, const char *name, const struct batch_job *job)
{
    struct kept_file f = {.created_s = job->at_s[job->status]};
    char *path = files_path(j->setup.files, id);
    struct file_map m;
    snprintf(f.id, sizeof f.id, "%s", id);
    snprintf(f.owner, sizeof f.owner, "%s", job->owner);
    snprintf(f.name, sizeof f.name, "%s_%s.jsonl", job->id, name);
    if (*id && file_map_open(&m, path, NULL) == 0) {
        f.bytes = m.size;
        file_map_close(&m);
        files_take(j->setup.files, &f);
    }
    mem_free(path);
}

void jobs_settle(struct jobs *j)
{
    if (!j)
        return;
    monitor_lock(j->lock);
    for (int i = 0; i < j->n; i++) {
        struct kept_job *k = j->list[i];
        if (!k->fresh)
            continue;
        k->fresh = false;
        show(j, k->job.output, "output", &k->job);
        show(j, k->job.errors, "error", &k->job);
    }
    monitor_unlock(j->lock);
}

/* The oldest that has ended makes room. With the lock held. */
static void forget_oldest(struct jobs *j)
{
    for (int i = 0; i < j->n; i++) {
        struct kept_job *k = j->list[i];
        if (!job_has_ended(k->job.status) || k->fresh)
            continue;
        char *path = path_of(j, k->job.id, "json");
        unlink(path);
        mem_free(path);
        mem_free(k->job.metadata);
        mem_free(k);
        memmove(&j->list[i], &j->list[i + 1], (size_t)(--j->n - i) * sizeof *j->list);
        return;
    }
}

static int count_live(const struct jobs *j)
{
    int n = 0;
    for (int i = 0; i < j->n; i++)
        n += !job_has_ended(j->list[i]->job.status);
    return n;
}

int jobs_add(struct jobs *j, struct batch_job *job, struct err *e)
{
    int rc = 0;
    monitor_lock(j->lock);
    snprintf(job->id, sizeof job->id, "batch_");
    if (count_live(j) >= JOBS_LIVE)
        rc = err_set(e, E_FULL, "%d batches are under way: wait until one has ended", JOBS_LIVE);
    else if (!random_hex(job->id + 6, ID_RANDOM))
        rc = err_set(e, E_SYS, "no random bytes");
    job->number = j->next++;
    job->status = JOB_VALIDATING;
    job->at_s[JOB_VALIDATING] = clock_wall_seconds();
    if (!rc)
        rc = save(j, job, e);
    if (!rc) {
        if (j->n >= JOBS_KEPT)
            forget_oldest(j);
        keep(j, job);
        monitor_wake(j->lock);
    }
    monitor_unlock(j->lock);
    if (rc)
        mem_free(job->metadata);
    return rc;
}

/* A copy for the front. With the lock held. */
static void copy(struct jobs *j, const struct batch_job *from, struct batch_job *out)
{
    mem_free(j->shown);
    j->shown = mem_strdup(from->metadata);
    *out = *from;
    out->metadata = j->shown;
}

bool jobs_find(struct jobs *j, const char *id, const char *owner, struct batch_job *out)
{
    bool found = false;
    monitor_lock(j->lock);
    for (int i = 0; i < j->n && !found; i++)
        if (strcmp(j->list[i]->job.id, id) == 0 && strcmp(j->list[i]->job.owner, owner) == 0) {
            copy(j, &j->list[i]->job, out);
            found = true;
        }
    monitor_unlock(j->lock);
    return found;
}

bool jobs_at(struct jobs *j, int i, struct batch_job *out)
{
    monitor_lock(j->lock);
    bool there = i < j->n;
    if (there)
        copy(j, &j->list[j->n - 1 - i]->job, out);
    monitor_unlock(j->lock);
    return there;
}

bool jobs_cancel(struct jobs *j, const char *id)
{
    bool did = false;
    monitor_lock(j->lock);
    for (int i = 0; i < j->n; i++) {
        struct batch_job *job = &j->list[i]->job;
        if (strcmp(job->id, id) != 0 || job_has_ended(job->status))
            continue;
        if (job->status == JOB_VALIDATING || job->status == JOB_IN_PROGRESS)
            become(j, job, JOB_CANCELLING);
        did = true;
    }
    monitor_unlock(j->lock);
    return did;
}

bool jobs_use(struct jobs *j, const char *file)
{
    bool used = false;
    if (!j)
        return false;
    monitor_lock(j->lock);
    for (int i = 0; i < j->n; i++)
        used |= !job_has_ended(j->list[i]->job.status) && strcmp(j->list[i]->job.input, file) == 0;
    monitor_unlock(j->lock);
    return used;
}

void jobs_count(struct jobs *j, struct jobs_counts *out)
{
    *out = (struct jobs_counts){0};
    monitor_lock(j->lock);
    for (int i = 0; i < j->n; i++)
        out->by_status[j->list[i]->job.status]++;
    out->done = j->done;
    out->failed = j->failed;
    monitor_unlock(j->lock);
}
