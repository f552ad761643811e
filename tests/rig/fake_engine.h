/* An engine that computes nothing: it speaks the message protocol of engine/engine.h on a thread of its own, so that
 * tests of the server are fast and decide what happens. Its vocabulary is tokenizer_bytes: a token is a byte. Tests
 * only. The beginning of the prompt says what it does:
 *
 *   SAY:text   the text, then the eos token (END_STOP), or END_LENGTH at max_tokens
 *   RUN:text   the same, all in one event (EV_TOKENS)
 *   HANG       one token "h", then nothing until it is cancelled
 *   REFUSE     END_REFUSED with 429 and Retry-After 7
 *   FULL       END_REFUSED without a text
 *   ERROR      two tokens "er", then END_ERROR
 *   (other)    as many "x" as max_tokens allows, then END_LENGTH */
#ifndef RIG_FAKE_ENGINE_H
#define RIG_FAKE_ENGINE_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "engine/shadow.h"
#include "engine/canary_order.h"

enum { FAKE_EOS = 257, FAKE_MAX = 4096, FAKE_SEEN = 16 };

struct fake_request {
    struct request_spec *spec;
    int n_output;
    bool hanging;
};

struct fake {
    struct queue *inbox, *outbox;
    struct thread *thread;
    struct fake_request live[FAKE_MAX];
    int n_live;
    bool draining, drained;
    _Atomic int pause_us; /* between two rounds of tokens */
    int prompt_pause_ms;  /* before a sequence's first token */
    struct fake_seen {    /* of the n-th sequence, at n % FAKE_SEEN; written before it counts as submitted */
        char name[NAME_BYTES], tenant[NAME_BYTES], salt[2 * NAME_BYTES];
    } seen[FAKE_SEEN];
    _Atomic int most_live, n_submitted, n_ended, n_cancelled, n_live_now;
    int policy_code; /* what IN_POLICY is answered with */
};

static void fake_emit(struct fake *f, struct engine_event ev)
{
    queue_post(f->outbox, &ev);
}

static void fake_end(struct fake *f, int i, struct engine_event ev)
{
    struct request_spec *s = f->live[i].spec;
    ev.kind = EV_END;
    ev.tag = s->tag;
    ev.n_prompt = s->n_prompt;
    ev.n_output = f->live[i].n_output;
    request_spec_free(s);
    f->live[i] = f->live[--f->n_live];
    atomic_fetch_add(&f->n_ended, 1);
    atomic_store(&f->n_live_now, f->n_live);
    fake_emit(f, ev);
}

static bool fake_says(const struct request_spec *s, const char *word)
{
    int n = (int)strlen(word);
    for (int i = 0; i < n; i++)
        if (i >= s->n_prompt || s->prompt[i] != (unsigned char)word[i])
            return false;
    return true;
}

static void fake_fill(struct token_logprobs *lp, int32_t token, int n)
{
    *lp = (struct token_logprobs){.logprob = -0.5f, .rank = 1, .n_top = n};
    for (int i = 0; i < n; i++) {
        lp->top_ids[i] = i ? 'A' + i : token;
        lp->top_logprobs[i] = -0.5f - (float)i;
    }
}

static void fake_token(struct fake *f, int i, int32_t token)
{
    struct request_spec *s = f->live[i].spec;
    struct engine_event ev = {.kind = EV_TOKEN, .tag = s->tag, .token = token};
    for (int k = 0; k < s->n_stop_ids; k++)
        ev.is_stop |= s->stop_ids[k] == token;
    if (s->sampling.n_logprobs >= 0) {
        struct token_logprobs *lp = mem_new(sizeof *lp);
        fake_fill(lp, token, s->sampling.n_logprobs);
        ev.payload = lp;
    }
    f->live[i].n_output++;
    fake_emit(f, ev);
    if (ev.is_stop)
        fake_end(f, i, (struct engine_event){.code = END_STOP});
    else if (f->live[i].n_output >= s->max_tokens)
        fake_end(f, i, (struct engine_event){.code = END_LENGTH});
}

/* What is left of a prompt after its first word, and the ending. */
static void fake_say_together(struct fake *f, int i)
{
    const struct request_spec *s = f->live[i].spec;
    int left = s->n_prompt - 4 + 1, n = left < s->max_tokens ? left : s->max_tokens;
    struct token_run *run = mem_new(sizeof *run + (size_t)n * (sizeof *run->logprobs + sizeof *run->tokens));
    run->n = n;
    run->logprobs = s->sampling.n_logprobs >= 0 ? (struct token_logprobs *)(run + 1) : NULL;
    run->tokens = (int32_t *)((struct token_logprobs *)(run + 1) + n);
    for (int k = 0; k < n; k++) {
        run->tokens[k] = 4 + k < s->n_prompt ? s->prompt[4 + k] : FAKE_EOS;
        if (run->logprobs)
            fake_fill(&run->logprobs[k], run->tokens[k], s->sampling.n_logprobs);
    }
    bool ended = n == left;
    f->live[i].n_output = n;
    fake_emit(f, (struct engine_event){.kind = EV_TOKENS, .tag = s->tag, .is_stop = ended, .payload = run});
    fake_end(f, i, (struct engine_event){.code = ended ? END_STOP : END_LENGTH});
}

static void fake_prompt_logprobs(struct fake *f, const struct request_spec *s)
{
    struct prompt_logprobs *p = mem_new(sizeof *p + (size_t)s->n_prompt * sizeof p->items[0]);
    p->n = s->n_prompt;
    for (int i = 1; i < p->n; i++)
        fake_fill(&p->items[i], s->prompt[i], s->sampling.n_prompt_logprobs);
    fake_emit(f, (struct engine_event){.kind = EV_PROMPT_LOGPROBS, .tag = s->tag, .payload = p});
}

/* The next token of a sequence, or its ending. */
static void fake_advance(struct fake *f, int i)
{
    struct fake_request *r = &f->live[i];
    const struct request_spec *s = r->spec;
    if (r->hanging)
        return;
    if (r->n_output == 0 && s->sampling.n_prompt_logprobs >= 0)
        fake_prompt_logprobs(f, s);
    if (s->max_tokens == 0)
        fake_end(f, i, (struct engine_event){.code = END_LENGTH});
    else if (fake_says(s, "REFUSE"))
        fake_end(f, i,
                 (struct engine_event){
                     .code = END_REFUSED, .http_status = 429, .retry_after_s = 7, .payload = mem_strdup("not now")});
    else if (fake_says(s, "FULL"))
        fake_end(f, i, (struct engine_event){.code = END_REFUSED, .retry_after_s = -1});
    else if (fake_says(s, "ERROR") && r->n_output == 2)
        fake_end(
            f, i,
            (struct engine_event){.code = END_ERROR, .http_status = 500, .payload = mem_strdup("the device failed")});
    else if (fake_says(s, "ERROR"))
        fake_token(f, i, r->n_output ? 'r' : 'e');
    else if (fake_says(s, "HANG")) {
        r->hanging = true;
        fake_token(f, i, 'h');
    } else if (fake_says(s, "RUN:"))
        fake_say_together(f, i);
    else if (fake_says(s, "SAY:"))
        fake_token(f, i, 4 + r->n_output < s->n_prompt ? s->prompt[4 + r->n_output] : FAKE_EOS);
    else
        fake_token(f, i, 'x');
}

static void fake_reply(struct fake *f, uint64_t tag, int code, const char *text)
{
    fake_emit(f, (struct engine_event){
                     .kind = EV_REPLY, .tag = tag, .code = code, .payload = mem_strdup(text), .n = strlen(text)});
}

static void fake_cancel(struct fake *f, uint64_t tag, int code)
{
    for (int i = 0; i < f->n_live; i++)
        if (f->live[i].spec->tag == tag) {
            atomic_fetch_add(&f->n_cancelled, 1);
            fake_end(f, i, (struct engine_event){.code = code});
            return;
        }
}

static void fake_policy(struct fake *f, const struct engine_message *m)
{
    struct policy *p = m->payload;
    char text[1000];
    snprintf(text, sizeof text, "{\"active\":{\"name\":\"%s\",\"sha256\":\"%s\",\"libs\":\"%s\"}}", p->name, p->sha256,
             p->libs);
    if (p->ops && p->ops->destroy)
        p->ops->destroy(p->ctx);
    mem_free(p);
    fake_reply(f, m->tag, f->policy_code, f->policy_code ? "start: error" : text);
}

static void fake_look(struct fake *f, const struct request_spec *s)
{
    struct fake_seen *seen = &f->seen[f->n_submitted % FAKE_SEEN];
    snprintf(seen->name, sizeof seen->name, "%s", s->name);
    snprintf(seen->tenant, sizeof seen->tenant, "%s", s->tenant);
    snprintf(seen->salt, sizeof seen->salt, "%.127s", s->salt);
}

/* Policies beside the live one: any may begin, and none runs. */
static void fake_beside(struct fake *f, const struct engine_message *m)
{
    struct policy *p = m->kind == IN_SHADOW   ? &((struct shadow_order *)m->payload)->policy
                       : m->kind == IN_CANARY ? &((struct canary_order *)m->payload)->policy
                                              : NULL;
    if (p && p->ops->destroy)
        p->ops->destroy(p->ctx);
    if (p)
        fake_reply(f, m->tag, 0, "{\"state\":\"on\"}");
    else if (m->kind == IN_SHADOW_END || m->kind == IN_CANARY_END)
        fake_reply(f, m->tag, E_NOTFOUND, "no policy decides beside the live one");
    else
        fake_reply(f, m->tag, 0, "{\"state\":\"none\"}");
    mem_free(m->payload);
}

/* false: stop. */
static bool fake_take(struct fake *f, struct engine_message *m)
{
    switch (m->kind) {
    case IN_SUBMIT:
        fake_look(f, m->payload);
        f->live[f->n_live++] = (struct fake_request){.spec = m->payload};
        atomic_fetch_add(&f->n_submitted, 1);
        f->most_live = f->n_live > f->most_live ? f->n_live : f->most_live;
        atomic_store(&f->n_live_now, f->n_live);
        if (f->prompt_pause_ms)
            usleep((unsigned)f->prompt_pause_ms * 1000);
        break;
    case IN_CANCEL:
        fake_cancel(f, m->tag, m->code);
        break;
    case IN_METRICS:
        fake_reply(f, m->tag, 0, "# TYPE fake gauge\nfake 1\n");
        break;
    case IN_STATE:
        fake_reply(f, m->tag, 0, "{\"policy\":{\"active\":{\"name\":\"fake\"}}}");
        break;
    case IN_PULSE:
    case IN_PROFILE:
        fake_reply(f, m->tag, 0, "{}");
        break;
    case IN_STORY: /* it knows nobody */
        fake_reply(f, m->tag, E_NOTFOUND, "no request is known by that id");
        mem_free(m->payload);
        break;
    case IN_DECISIONS:
        fake_reply(f, m->tag, 0, "{\"decisions\":[]}");
        mem_free(m->payload);
        break;
    case IN_POLICY:
        fake_policy(f, m);
        break;
    case IN_SHADOW:
    case IN_SHADOW_END:
    case IN_SHADOW_STATE:
    case IN_CANARY:
    case IN_CANARY_END:
    case IN_CANARY_STATE:
        fake_beside(f, m);
        break;
    case IN_ROLLBACK:
        fake_reply(f, m->tag, E_NOTFOUND, "there is no previous policy to go back to");
        break;
    case IN_PARAMS:
        mem_free(m->payload);
        fake_reply(f, m->tag, 0, "{}");
        break;
    case IN_LIMITS:
        fake_reply(f, m->tag, 0,
                   "{\"limits\":{\"max_num_seqs\":8,\"max_num_batched_tokens\":64,\"max_num_queued_reqs\":4},"
                   "\"changed\":\"max_num_seqs 4 -> 8\"}");
        mem_free(m->payload);
        break;
    case IN_RESET_PREFIX_CACHE:
        fake_reply(f, m->tag, 0, "{}");
        break;
    case IN_DRAIN:
        f->draining = true;
        break;
    case IN_STOP:
        while (f->n_live)
            fake_end(f, 0, (struct engine_event){.code = END_ABORT});
        return false;
    case IN_STEP_DONE:
    case IN_MOVE_DONE:
    case IN_REPLICA_DONE:
    case IN_RESHARD_DONE:
    case IN_DISK_DONE:
        break;
    case IN_POLICY_REFUSED:
        mem_free(m->payload);
        break;
    }
    return true;
}

static void fake_run(void *arg)
{
    struct fake *f = arg;
    struct engine_message m;
    for (;;) {
        bool busy = false;
        for (int i = 0; i < f->n_live; i++)
            busy |= !f->live[i].hanging;
        if (!busy)
            queue_wait(f->inbox, -1);
        while (queue_take(f->inbox, &m))
            if (!fake_take(f, &m))
                return;
        for (int i = f->n_live - 1; i >= 0; i--)
            fake_advance(f, i);
        if (f->draining && !f->drained && f->n_live == 0) {
            f->drained = true;
            fake_emit(f, (struct engine_event){.kind = EV_DRAINED});
        }
        if (f->pause_us)
            usleep((unsigned)f->pause_us);
    }
}

static inline void fake_start(struct fake *f)
{
    f->inbox = queue_create(sizeof(struct engine_message), 0, false);
    f->outbox = queue_create(sizeof(struct engine_event), 0, true);
    thread_start(&f->thread, "fake-engine", fake_run, f, NULL);
}

/* The thread's end; the queues go in fake_free, after the server. */
static inline void fake_stop(struct fake *f)
{
    struct engine_message m = {.kind = IN_STOP};
    queue_post(f->inbox, &m);
    thread_join(f->thread);
    f->thread = NULL;
}

static inline void fake_free(struct fake *f)
{
    struct engine_message m;
    while (queue_take(f->inbox, &m))
        if (m.kind == IN_SUBMIT)
            request_spec_free(m.payload);
    queue_destroy(f->inbox);
    queue_destroy(f->outbox);
}

#endif
