/* Which pre-tokenizer a tokenizer.json describes, by the name that GGUF files use for it. Its description is compared
 * with those of the published models, character by character. Pure, any thread. Invariant: a name is given only when
 * every step agrees. */
#ifndef MODELS_TOKENIZER_HF_PRETOK_H
#define MODELS_TOKENIZER_HF_PRETOK_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/base/json.h"

/* pre_tokenizer: that member of the file. nfc: its normalizer composes; ignore_merges: of its model. NULL with
 * E_UNSUPPORTED. */
const char *hf_pretok_name(const struct json *pre_tokenizer, bool nfc, bool ignore_merges, struct err *e);
/* Is there a ByteLevel step? */
bool hf_pretok_is_byte_level(const struct json *pre_tokenizer);

#endif
