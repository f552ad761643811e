/* What --draft-model names: the folder of a speculator's heads, or a model that generates text, as a GGUF file or a
 * Hugging Face folder; which of them is decided by what is there. Main thread, before any other starts. Invariant: an
 * opened draft model has the vocabulary of the model that it drafts for. */
#ifndef CLI_DRAFT_FILES_H
#define CLI_DRAFT_FILES_H

#include "models/load/model.h"
#include "models/tokenizer/tokenizer.h"

/* Is it a model by itself? A folder is one if its config.json names a family of models; what else is in it, or is not,
 * their readers say. */
bool draft_files_generate(const char *path);
/* A model that drafts for this one. E_INPUT: its vocabulary is another one, and the first difference; where the files
 * have no tokenizer, only its size is compared. */
int draft_files_open(struct model **out, const char *path, const struct model *model, const struct tokenizer *words,
                     struct err *e);
/* The same vocabulary? Numbers of tokens, and the text of each. */
int draft_files_compare(const struct tokenizer *draft, const struct tokenizer *words, struct err *e);

#endif
