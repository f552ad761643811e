#include "lua/talk.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "lua/script.h"

static const int64_t SLICE_NS = 500000;      /* from one look at a process that is silent to the next */
static const int64_t SILENT_NS = 1000000000; /* a process that is late and does not run either */

void talker_init(struct talker *r)
{
    *r = (struct talker){.eye.looks = thread_cores() > 1};
    clock_init_real(&r->clock);
}

void talker_free(struct talker *r)
{
    mem_free(r->verb.list);
    r->verb.list = NULL;
}

/* False: it may go on. */
static bool is_late(const struct talker *r, struct talk *t, enum heard *how)
{
    int64_t late = clock_now(&r->clock) - t->began_ns - t->most_ns;
    if (late <= 0)
        return false;
    bool over = overtime_is_over(&t->overtime, born_cpu_ns(t->born), t->most_ns);
    *how = over ? HEARD_LATE : HEARD_SILENT;
    return over || late > SILENT_NS;
}

static void say_line(struct talker *r, const struct talk *t, const char *text)
{
    int64_t second = clock_now(&r->clock) / 1000000000;
    if (second != r->said_second)
        r->n_said = 0;
    r->said_second = second;
    if (!t->quiet && r->n_said++ < MAX_LOGS)
        log_info("policy", "%s: %s", t->name, text);
}

/* Words that go into logs, answers and records are words, whatever bytes the process sent. Those of a policy are
 * already, and stay what they are. */
static void clean(struct exchange_verb *v)
{
    char text[VERB_TEXT];
    if (v->call.kind == CALL_SWITCH) {
        vm_escape(text, sizeof v->order.reason, v->order.reason, strlen(v->order.reason));
        memcpy(v->order.reason, text, sizeof v->order.reason);
    } else if (v->call.text) {
        struct admission a;
        size_t cap = v->call.kind == CALL_HOLD     ? REASON_BYTES
                     : v->call.kind == CALL_REFUSE ? sizeof a.why
                                                   : sizeof text;
        vm_escape(text, cap, v->text, strlen(v->text));
        memcpy(v->text, text, cap);
    }
}

static bool do_verb(struct talker *r, struct talk *t)
{
    struct exchange_page *x = t->born->page;
    struct verb_result done = {0};
    if (!exchange_take_verb(x, &r->verb) || !verb_is_lawful(&t->scope, &r->verb.call))
        return false;
    clean(&r->verb);
    if (r->verb.call.kind == CALL_SAY)
        say_line(r, t, r->verb.call.text);
    else
        verb_carry_out(&t->scope, &r->verb.call, &done);
    snprintf(x->reason, sizeof x->reason, "%s", done.reason ? done.reason : "refused");
    done.reason = NULL;
    x->result = done;
    return true;
}

/* A library of the policy's folder. What was read is kept: the policy's text is made of it. */
static bool read_file(struct talk *t)
{
    struct exchange_page *x = t->born->page;
    struct buf asked = {0};
    struct err why = {0};
    char name[NAME_BYTES];
    bool said =
        exchange_take_text(x, &asked) && asked.len && asked.len < NAME_BYTES && !memchr(asked.data, 0, asked.len);
    bool good = said && t->folder && t->libs && t->libs->n < POLICY_LIBS && !script_name(name, asked.data, NULL) &&
                !strcmp(name, asked.data);
    buf_free(&asked);
    if (!good)
        return false;
    struct lib *lib = &t->libs->items[t->libs->n];
    *lib = (struct lib){0};
    snprintf(lib->name, sizeof lib->name, "%s", name);
    int rc = libs_read(t->folder, name, &lib->source, &why);
    x->result = (struct verb_result){.n = rc};
    snprintf(x->reason, sizeof x->reason, "%.250s", why.text);
    x->n_text = (int64_t)lib->source.len;
    memcpy(x->text, lib->source.data ? lib->source.data : "", lib->source.len);
    t->libs->n++;
    return true;
}

static bool await(struct talker *r, struct talk *t, enum heard *how)
{
    struct exchange_eye *eye = &r->eye;
    while (!exchange_wait(t->born->page, TURN_ENGINE, SLICE_NS, eye)) {
        eye = NULL; /* that was long enough */
        if (!born_lives(t->born)) {
            *how = HEARD_GONE;
            return false;
        }
        if (is_late(r, t, how))
            return false;
    }
    return true;
}

static enum heard listen(struct talker *r, struct talk *t)
{
    enum heard how = HEARD_END;
    struct exchange_page *x = t->born->page;
    while (await(r, t, &how)) {
        uint32_t word = *(volatile uint32_t *)&x->word;
        if (word == SAY_ENDED) {
            exchange_take_end(x, &r->end);
            return HEARD_END;
        }
        overtime_turn(&t->overtime);
        if (word == SAY_VERB && do_verb(r, t))
            exchange_say(x, TURN_PROCESS, SAY_VERB_DONE);
        else if (word == SAY_FILE && read_file(t))
            exchange_say(x, TURN_PROCESS, SAY_FILE_READ);
        else
            return HEARD_WRONG;
        if (is_late(r, t, &how))
            return how;
    }
    return how;
}

enum heard talk_wait(struct talker *r, struct talk *t)
{
    t->began_ns = clock_now(&r->clock);
    t->overtime = (struct overtime){0};
    return listen(r, t);
}

enum heard talk(struct talker *r, struct talk *t, enum exchange_word w)
{
    exchange_say(t->born->page, TURN_PROCESS, w);
    return talk_wait(r, t);
}
