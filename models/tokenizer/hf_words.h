/* The tokenizer and chat template of a Hugging Face folder, translated to the keys of a GGUF file, so that one reader
 * serves both: tokenizer.json (byte-pair encoding, byte-level or in SentencePiece's form, and WordPiece),
 * tokenizer_config.json, generation_config.json, chat_template.jinja. The texts are untrusted. Pure, any thread.
 * Invariant: a normalizer, pre-tokenizer or post-processor that is not understood is refused. */
#ifndef MODELS_TOKENIZER_HF_WORDS_H
#define MODELS_TOKENIZER_HF_WORDS_H

#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "models/load/gguf.h"

enum hf_file { HF_TOKENIZER, HF_TOKENIZER_CONFIG, HF_GENERATION_CONFIG, HF_CHAT_TEMPLATE, HF_FILES };

/* The texts of the files; data NULL: there is no such file. tokenizer.json must be there. */
struct hf_text {
    const char *data;
    size_t n;
};

/* Appends the GGUF file to out. E_INPUT for what contradicts itself, E_UNSUPPORTED for tokenizers of other kinds; out
 * is then as it was. */
int hf_words_write(struct buf *out, const struct hf_text files[HF_FILES], struct err *e);
/* The same of dir's files, opened. E_NOTFOUND: dir has no tokenizer.json. */
int hf_words_open(struct gguf **out, const char *dir, struct err *e);

#endif
