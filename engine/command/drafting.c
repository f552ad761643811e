/* Where draft tokens come from, as the settings have it: suffix trees of what was said, prompt lookup, and what
 * --draft-model names. */
#include <inttypes.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/cli/draft_files.h"
#include "engine/command/app.h"

static struct suffix_vocabulary vocabulary_of(const struct tokenizer *t)
{
    struct suffix_vocabulary v = {.n_tokens = tokenizer_n_vocab(t)};
    struct buf all = {0};
    for (int32_t id = 0; id < v.n_tokens; id++) {
        size_t at = all.len;
        tokenizer_piece(t, id, &all);
        uint32_t n = (uint32_t)(all.len - at);
        buf_put(&all, &n, sizeof n);
    }
    v.sum = hash_sha256(all.data, all.len);
    buf_free(&all);
    return v;
}

static int open_suffix(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    bool prompts = strcmp(o->draft_from, "outputs") != 0, outputs = strcmp(o->draft_from, "prompts") != 0;
    struct suffix_opts suffix = {.bytes = (size_t)o->draft_bytes, .prompts = prompts, .no_outputs = !outputs};
    if (!o->draft_bytes)
        return 0;
    if (o->draft_file && !o->dry_run) {
        suffix.file = o->draft_file;
        suffix.vocabulary = vocabulary_of(a->tokenizer);
    }
    int rc = suffix_open(&a->suffix, &suffix, e);
    if (rc)
        return err_prefix(e, rc, "%s", suffix.file ? "--draft-file" : "--draft-memory");
    suffix_source(a->suffix, &a->drafts.items[a->drafts.n++]);
    return 0;
}

static int open_heads(struct app *a, struct err *e)
{
    TRY(speculator_open(&a->speculator, a->opts.draft_model, e));
    if (a->opts.draft_tokens)
        TRY(speculator_limit(a->speculator, a->opts.draft_tokens, e));
    heads_source(&a->drafts.items[a->drafts.n++]);
    return 0;
}

static int size_cache(const struct app *a, const struct engine_setup *s, int *n_blocks, struct err *e)
{
    const struct model_config *c = model_config(a->draft_model);
    size_t block = drafter_block_bytes(s->ops, c, s->kv_dtype), n = (size_t)a->opts.draft_kv_bytes / block;
    if (n < 1)
        return err_set(e, E_INPUT, "--draft-kv-memory %" PRId64 ": %d tokens of the draft model take %zu bytes",
                       a->opts.draft_kv_bytes, DRAFTER_BLOCK, block);
    *n_blocks = n > 1 << 24 ? 1 << 24 : (int)n;
    if (!s->quiet)
        log_info("main", "Draft model: %s, with %.2f GiB for the KV of %" PRId64 " tokens", c->name,
                 (double)block * *n_blocks / 0x1p30, (int64_t)*n_blocks * DRAFTER_BLOCK);
    return 0;
}

static int open_model(struct app *a, const struct engine_setup *s, struct err *e)
{
    const struct opts *o = &a->opts;
    if (!s->ops->draft)
        return err_set(e, E_UNSUPPORTED, "a draft model is for --device cpu; %s runs none", s->ops->name);
    if (o->draft_tokens > MOST_HEADS)
        return err_set(e, E_INPUT, "%d tokens are asked for, and a draft model guesses at most %d", o->draft_tokens,
                       MOST_HEADS);
    TRY(draft_files_open(&a->draft_model, o->draft_model, a->model, a->tokenizer, e));
    if (model_note(a->draft_model))
        log_info("main", "%s", model_note(a->draft_model));
    int n_blocks = 0;
    TRY(size_cache(a, s, &n_blocks, e));
    a->drafter = (struct drafter_plan){a->draft_model, s->kv_dtype, n_blocks};
    a->model_drafts = model_drafts_new(
        &(struct model_drafts_setup){n_blocks, DRAFTER_BLOCK, model_config(a->draft_model)->context, o->draft_tokens});
    model_drafts_source(a->model_drafts, &a->drafts.items[a->drafts.n++]);
    return 0;
}

/* A method names one kind; the files may be of the other. */
static int open_beside(struct app *a, const struct engine_setup *s, struct err *e)
{
    const char *path = a->opts.draft_model, *wanted = a->opts.draft_kind;
    bool generates = draft_files_generate(path);
    if (wanted && strcmp(wanted, generates ? "model" : "heads") != 0)
        return err_set(e, E_INPUT, "%.200s is %s, and the method of --speculative-config takes %s", path,
                       generates ? "a model" : "no model that generates text",
                       generates ? "draft heads: the method draft_model takes a model" : "one");
    return generates ? open_model(a, s, e) : open_heads(a, e);
}

int app_open_drafts(struct app *a, struct engine_setup *s, struct err *e)
{
    TRY(open_suffix(a, e));
    int rc = a->opts.draft_model ? open_beside(a, s, e) : 0;
    if (rc)
        return err_prefix(e, rc, "--draft-model");
    draft_lookup_source(&a->drafts.items[a->drafts.n++]);
    s->drafts = &a->drafts;
    s->speculator = a->speculator;
    s->drafter = a->draft_model ? &a->drafter : NULL;
    return 0;
}

void app_keep_drafts(struct app *a)
{
    struct suffix_file_count n;
    struct err e = {0};
    if (!a->suffix || !a->opts.draft_file || a->opts.dry_run)
        return;
    if (suffix_save(a->suffix, &n, &e))
        log_error("main", "--draft-file: %s", e.text);
    else
        log_info("main", "%s has %" PRId64 " texts of %" PRId64 " tokens", a->opts.draft_file, n.sequences, n.tokens);
}

void app_close_drafts(struct app *a)
{
    suffix_close(a->suffix);
    model_drafts_free(a->model_drafts);
    model_close(a->draft_model);
    speculator_close(a->speculator);
}
