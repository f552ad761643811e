/* The steps of a recording as the fit of step times takes them: with what was in each batch and how many groups ran
 * beside it, which the plans say, and with the time that went by around it. A pure reader, any one thread. */
#ifndef LAB_RECORDING_RECORDING_STEPS_H
#define LAB_RECORDING_RECORDING_STEPS_H

#include "engine/lab/fit/step_fit.h"
#include "engine/lab/recording/recording.h"
#include "models/load/model.h"

/* Fitted to all steps that ended well. c: the recorded model. The caller frees it. */
int recording_fit_steps(struct step_fit **out, const char *path, const struct model_config *c, struct err *e);
/* Times are after the recorded engine's start. */
typedef void (*recording_step_fn)(void *ctx, const struct fit_step *s);
int recording_each_step(struct recording *r, recording_step_fn fn, void *ctx, struct err *e);

#endif
