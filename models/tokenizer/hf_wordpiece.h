/* What a tokenizer.json says of WordPiece: the normalizer, the words, the pieces and what goes around a text. The file
 * is untrusted. Pure, any thread. Invariant: a part that is not understood is refused. */
#ifndef MODELS_TOKENIZER_HF_WORDPIECE_H
#define MODELS_TOKENIZER_HF_WORDPIECE_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "models/load/gguf_write.h"

struct hf_wordpiece {
    bool clean_text, split_chinese, strip_accents, lower;
    int max_chars;
    const char *prefix, *unknown; /* of the file's text */
    const char *cls, *sep;        /* around a text, and after each of a pair; NULL: nothing goes there */
};

bool hf_is_wordpiece(const struct json *model); /* that member of the file */
/* tokenizer: the whole file. E_INPUT, E_UNSUPPORTED. */
int hf_wordpiece_read(struct hf_wordpiece *w, const struct json *tokenizer, struct err *e);
/* The keys of a GGUF file that only WordPiece has. */
void hf_wordpiece_write(struct gguf_writer *out, const struct hf_wordpiece *w);

#endif
