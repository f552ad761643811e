/* Which model files are these? Not by their bytes, which would take as long as loading them: by their names, sizes and
 * times, and by the shape of every tensor. Equal for what is the same, and different for what was changed by any
 * program that does not hide it. For caches that outlive the server. */
#ifndef MODELS_IDENTITY_H
#define MODELS_IDENTITY_H

#include "engine/base/buf.h"
#include "models/load/model.h"

/* Of the file, or of the .safetensors and .json files in the folder: appended as text. E_SYS: it cannot be looked at.
 */
int identity_of_files(struct buf *out, const char *path, struct err *e);
void identity_of_tensors(struct buf *out, const struct model *m);

#endif
