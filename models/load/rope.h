/* The RoPE frequencies of a model: its base, and how they are scaled for longer contexts. Pure, any thread. */
#ifndef MODELS_LOAD_ROPE_H
#define MODELS_LOAD_ROPE_H

#include "engine/base/err.h"

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_rule {
    enum rope_kind kind;
    double base;
    double factor;               /* how many times longer the context is: linear, llama3, yarn */
    double original;             /* context before scaling, in tokens: llama3, yarn */
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double attention_factor;     /* yarn: multiplies cos and sin */
};

/* No scaling, with yarn's usual betas filled in. */
struct rope_rule rope_rule_plain(double base);
/* yarn's attention_factor for models that do not give one. */
double rope_yarn_attention(double factor);
/* Fills inv_freq[0 .. dim/2) and *scale. E_INPUT when a number of the rule is out of its range; dim is even and > 0. */
int rope_build(const struct rope_rule *r, int dim, float *inv_freq, float *scale, struct err *e);

#endif
