/* What the command line says of the model, opened: a GGUF file, a Hugging Face folder or a dummy, and whose tokenizer
 * and chat template go with it. Main thread, before any other starts. Invariant: an opened model has a tokenizer. */
#ifndef CLI_MODEL_FILES_H
#define CLI_MODEL_FILES_H

#include "engine/base/hash.h"
#include "engine/cli/opts.h"
#include "models/load/model.h"
#include "models/tokenizer/tokenizer.h"

struct model_files {
    struct model *model;
    struct gguf *tokenizer_gguf; /* of --tokenizer, or of the folder; NULL: the model's own */
    struct tokenizer *tokenizer;
};

/* The caller closes what is not NULL, also after a failure. */
int model_files_open(struct model_files *out, const struct opts *o, struct err *e);
/* Of the model that was opened so: changes with its weights. */
int model_files_identity(const struct opts *o, const struct model *m, struct sha256 *out, struct err *e);
/* --kv-cache-dtype; halves: auto is bfloat16, as which attention multiplies. --dummy-dtype, whose fp8 has scales. */
int opts_cache_type(const char *name, bool halves, enum dtype *out, struct err *e);
int opts_matrix_type(const char *name, enum dtype *out, struct err *e);

#endif
