/* A model in Hugging Face form: a folder with config.json and safetensors files. Tensors are found, checked against
 * the config and handed out by role. fp8 matrices become rows of DT_F8_SCALED on the way, whatever form their scales
 * have. The files are untrusted. Immutable once bound, one thread at a time. Invariant: scales for activations are
 * ignored; files only scale weights. */
#ifndef MODELS_LOAD_CHECKPOINT_H
#define MODELS_LOAD_CHECKPOINT_H

#include "engine/base/buf.h"
#include "models/load/model.h"
#include "models/load/safetensors.h"

struct checkpoint;

/* Opens dir's model.safetensors, or the files that its model.safetensors.index.json names; config gets the text of its
 * config.json. */
int checkpoint_open(struct checkpoint **out, const char *dir, struct buf *config, struct err *e);
/* The same over one file's bytes in memory (fuzzing, tests); they must outlive it. */
int checkpoint_open_memory(struct checkpoint **out, const void *data, size_t n, struct err *e);
void checkpoint_close(struct checkpoint *c); /* NULL is fine */

/* For models of other kinds, which need no checkpoint_bind: the tensor of this name (NULL: absent), and the name of one
 * that nobody has asked for (NULL: there is none). */
const struct st_tensor *checkpoint_find(struct checkpoint *c, const char *name);
const char *checkpoint_unseen(const struct checkpoint *c);
/* Finds every tensor that the model needs, with its scales. Tensors that are missing, unknown or of another shape are
 * refused. text: the config.json. */
int checkpoint_bind(struct checkpoint *c, const struct model_config *config, const char *text, size_t n, struct err *e);
const char *checkpoint_note(const struct checkpoint *c); /* a remark for the user, or NULL */
/* The type and scales in which checkpoint_tensor hands the tensor out. */
void checkpoint_type(const struct checkpoint *c, enum tensor_role role, int layer, struct weight_src *out);
/* The tensor's bytes: those of the file, or, for fp8, rows made in `room`, which has rows * dtype_row_bytes. E_INPUT: a
 * weight is NaN. */
int checkpoint_tensor(const struct checkpoint *c, enum tensor_role role, int layer, void *room, const void **out,
                      struct err *e);
const struct file_map *checkpoint_map(const struct checkpoint *c, size_t i); /* NULL: there are no more */
/* Loading is done: the files stay in the page cache alone. */
void checkpoint_drop_pages(const struct checkpoint *c);

#endif
