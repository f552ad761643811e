#include "engine/serve/front/text.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct lane {
    struct text *text;
    struct queue *inbox; /* of struct text_job *; NULL ends the lane */
    struct thread *thread;
    int64_t budget_ns; /* of a job; 0: no bound */
};

struct text {
    struct lane lanes[TEXT_LANES];
    struct queue *back; /* of struct text_job * */
    int max_jobs, pending[TEXT_LANES];
    size_t bytes[TEXT_LANES]; /* of bodies handed over and not collected */
    struct list jobs;         /* under way; front thread */
};

/* Which lane it runs on travels in the message: a job knows nothing of lanes. */
struct slip {
    struct text_job *job;
    int lane;
    size_t bytes;
};

static void run_lane(void *arg)
{
    struct lane *l = arg;
    struct slip s;
    for (;;) {
        if (!queue_take(l->inbox, &s)) {
            queue_wait(l->inbox, -1);
            continue;
        }
        if (!s.job)
            return;
        cancel_begin(&s.job->cancel, l->budget_ns);
        if (!cancel_asked(&s.job->cancel))
            s.job->run(s.job);
        queue_post(l->text->back, &s);
    }
}

int text_create(struct text **out, const struct text_limits *limits, struct err *e)
{
    static const char *const names[] = {"text-short", "text-long", "text-policy"};
    struct text *t = mem_new(sizeof *t);
    t->max_jobs = limits->jobs;
    list_init(&t->jobs);
    t->lanes[TEXT_SHORT].budget_ns = (int64_t)(limits->short_s * 1e9);
    t->lanes[TEXT_LONG].budget_ns = (int64_t)(limits->long_s * 1e9);
    t->back = queue_create(sizeof(struct slip), 0, true);
    int rc = t->back ? 0 : err_set(e, E_SYS, "no queue for the text workers");
    for (int i = 0; i < TEXT_LANES && !rc; i++) {
        t->lanes[i].text = t;
        t->lanes[i].inbox = queue_create(sizeof(struct slip), 0, false);
        rc = t->lanes[i].inbox ? thread_start(&t->lanes[i].thread, names[i], run_lane, &t->lanes[i], e)
                               : err_set(e, E_SYS, "no queue for a text worker");
    }
    *out = rc ? NULL : t;
    if (rc)
        text_destroy(t);
    return rc;
}

void text_destroy(struct text *t)
{
    if (!t)
        return;
    struct slip s, end = {0};
    LIST_EACH(at, &t->jobs)
    cancel_ask(&LIST_ENTRY(at, struct text_job, under_way)->cancel);
    for (int i = 0; i < TEXT_LANES; i++) {
        if (t->lanes[i].inbox) {
            while (queue_take(t->lanes[i].inbox, &s)) /* the lane may take some meanwhile: they come back as usual */
                queue_post(t->back, &s);
            queue_post(t->lanes[i].inbox, &end);
        }
        thread_join(t->lanes[i].thread);
        queue_destroy(t->lanes[i].inbox);
    }
    if (t->back)
        text_collect(t);
    queue_destroy(t->back);
    mem_free(t);
}

int text_post(struct text *t, enum text_lane lane, struct text_job *job)
{
    if (t->pending[lane] >= t->max_jobs || (t->bytes[lane] && t->bytes[lane] + job->bytes > TEXT_MAX_BYTES))
        return E_FULL;
    t->pending[lane]++;
    t->bytes[lane] += job->bytes;
    list_push_back(&t->jobs, &job->under_way);
    struct slip s = {job, lane, job->bytes};
    queue_post(t->lanes[lane].inbox, &s);
    return 0;
}

int text_fd(const struct text *t)
{
    return queue_fd(t->back);
}

void text_collect(struct text *t)
{
    queue_fd_clear(t->back);
    struct slip s;
    while (queue_take(t->back, &s)) {
        t->pending[s.lane]--;
        t->bytes[s.lane] -= s.bytes;
        list_remove(&s.job->under_way);
        s.job->done(s.job);
    }
}

int text_pending(const struct text *t)
{
    return !t ? 0 : t->pending[TEXT_SHORT] + t->pending[TEXT_LONG] + t->pending[TEXT_POLICY];
}
