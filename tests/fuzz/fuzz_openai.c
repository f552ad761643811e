/* Request bodies of the completion routes: parameters, messages, prompts and what they become. The first byte chooses
 * the route; checked is what the engine relies on: every value in range, every id in the vocabulary, prompts that fit.
 */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/serve/messages/answer.h"
#include "engine/serve/openai/frame.h"
#include "engine/serve/openai/order.h"
#include "engine/serve/responses/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 512, LENGTH = 300 };
static const char source[] = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if tools %}{{ "
                             "tools | tojson }}{% endif %}";

static void check_spec(const struct request_spec *s)
{
    const struct sampling *p = &s->sampling;
    ASSERT(s->n_prompt >= 1 && s->max_tokens >= 0 && s->n_prompt + s->max_tokens <= LENGTH &&
           s->min_tokens <= s->max_tokens);
    ASSERT(s->max_tokens > 0 || p->n_prompt_logprobs >= 0);
    for (int i = 0; i < s->n_prompt; i++)
        ASSERT(s->prompt[i] >= 0 && s->prompt[i] < VOCAB);
    for (int i = 0; i < s->n_stop_ids; i++)
        ASSERT(s->stop_ids[i] >= 0 && s->stop_ids[i] < VOCAB);
    for (int i = 0; i < p->n_bias; i++)
        ASSERT(p->bias[i].token >= 0 && p->bias[i].token < VOCAB && (!i || p->bias[i].token > p->bias[i - 1].token));
    for (int i = 0; i < p->n_allowed; i++)
        ASSERT(p->allowed[i] >= 0 && p->allowed[i] < VOCAB && (!i || p->allowed[i] > p->allowed[i - 1]));
    ASSERT(p->temperature >= 0 && p->top_p > 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1 && p->top_k >= 0);
    ASSERT(!s->probe_every == !s->probe_window && s->probe_window <= PROBE_WINDOW && s->probe_every >= 0 &&
           !(s->probe_every && p->n_logprobs >= 0));
    ASSERT(p->repetition_penalty > 0 && p->n_logprobs >= -1 && p->n_logprobs <= SAMPLING_MAX_LOGPROBS);
}

static void check_fault(const struct fault *f)
{
    struct buf out = {0};
    ASSERT(f->status >= 400 && f->status < 600 && f->text[0]);
    fault_put(f, &out);
    struct json *j = json_parse(out.data, out.len, NULL, NULL);
    ASSERT(json_text(json_find(json_find(j, "error"), "message")));
    json_free(j);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct front_text model_text; /* made once: it never changes */
    static struct think_marks marks;
    static struct tokenizer *tokenizer;
    static struct chat_template *chat;
    static const char *const names[] = {"m"};
    static const struct openai_api *const apis[] = {&openai_chat_api, &openai_completions_api, &responses_api,
                                                    &messages_api};
    if (size < 1)
        return 0;
    if (!tokenizer) {
        ASSERT(tokenizer_bytes(&tokenizer, VOCAB, NULL) == 0 &&
               chat_compile(&chat, source, sizeof source - 1, NULL) == 0);
        model_text = (struct front_text){
            tokenizer, chat, (char *)(uintptr_t) "<s>", (char *)(uintptr_t) "</s>", VOCAB, LENGTH, TOOLS_HERMES, &marks,
            true,      true};
        think_marks_set(&marks, "</think>", false);
    }
    struct openai_order *o = mem_new(sizeof *o);
    o->model_text = &model_text;
    o->names = names;
    o->n_names = 1;
    o->api = apis[data[0] % (sizeof apis / sizeof *apis)];
    o->max_specs = 64;
    buf_put(&o->body, data + 1, size - 1);
    openai_order_read(&o->job);
    ASSERT((o->fault.status == 0) == (o->n_specs > 0));
    for (int i = 0; i < o->n_specs; i++)
        check_spec(o->specs[i]);
    if (o->fault.status)
        check_fault(&o->fault);
    openai_order_free(o);
    return 0;
}
