#include "models/load/rope.h"

#include <math.h>

static const double two_pi = 6.283185307179586;

struct rope_rule rope_rule_plain(double base)
{
    return (struct rope_rule){
        .kind = ROPE_PLAIN, .base = base, .factor = 1, .beta_fast = 32, .beta_slow = 1, .attention_factor = 1};
}

double rope_yarn_attention(double factor)
{
    return factor > 1 ? 0.1 * log(factor) + 1 : 1;
}

/* The bounds are wide: they keep the arithmetic finite, no more. Written so that NaN fails. */
static int check(const struct rope_rule *r, struct err *e)
{
    if (!(r->base >= 1 && r->base <= 1e15))
        return err_set(e, E_INPUT, "RoPE base %g is out of range (1 to 1e15)", r->base);
    if (r->kind != ROPE_PLAIN && !(r->factor >= 1 && r->factor <= 65536))
        return err_set(e, E_INPUT, "RoPE scaling factor %g is out of range (1 to 65536)", r->factor);
    if ((r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN) && !(r->original >= 1 && r->original <= 1 << 24))
        return err_set(e, E_INPUT, "RoPE scaling: original context %g is out of range (1 to %d)", r->original, 1 << 24);
    if (r->kind == ROPE_LLAMA3 && !(r->low_freq > 0 && r->high_freq > r->low_freq && r->high_freq <= 65536))
        return err_set(e, E_INPUT, "RoPE scaling: low and high frequency factors %g and %g must satisfy 0 < low < high",
                       r->low_freq, r->high_freq);
    if (r->kind == ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast > r->beta_slow && r->beta_fast <= 65536))
        return err_set(e, E_INPUT, "RoPE scaling: beta_fast and beta_slow %g and %g must satisfy 0 < slow < fast",
                       r->beta_fast, r->beta_slow);
    if (r->kind == ROPE_YARN && !(r->attention_factor > 0 && r->attention_factor <= 64))
        return err_set(e, E_INPUT, "RoPE scaling: attention factor %g is out of range (0 to 64)", r->attention_factor);
    return 0;
}

/* Llama 3: low frequencies are divided by the factor, high ones kept, those in between blended. */
static double stretch_llama3(const struct rope_rule *r, double f)
{
    double turns = r->original * f / two_pi;
    if (turns < r->low_freq)
        return f / r->factor;
    if (turns > r->high_freq)
        return f;
    double keep = (turns - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - keep) * f / r->factor + keep * f;
}

/* The index of the frequency that makes `turns` rotations within the original context. */
static double yarn_index(const struct rope_rule *r, int dim, double turns)
{
    return dim * log(r->original / (turns * two_pi)) / (2 * log(r->base));
}

static double stretch_yarn(const struct rope_rule *r, int dim, int i, double f)
{
    double low = fmax(floor(yarn_index(r, dim, r->beta_fast)), 0);
    double high = fmin(ceil(yarn_index(r, dim, r->beta_slow)), dim - 1);
    double ramp = (i - low) / fmax(high - low, 0.001);
    double keep = 1 - fmin(fmax(ramp, 0), 1);
    return (1 - keep) * f / r->factor + keep * f;
}

int rope_build(const struct rope_rule *r, int dim, float *inv_freq, float *scale, struct err *e)
{
    TRY(check(r, e));
    if (r->kind == ROPE_YARN && r->base <= 1)
        return err_set(e, E_INPUT, "RoPE scaling: yarn needs a base above 1");
    for (int i = 0; i < dim / 2; i++) {
        double f = pow(r->base, -2.0 * i / dim);
        if (r->kind == ROPE_LINEAR)
            f /= r->factor;
        else if (r->kind == ROPE_LLAMA3)
            f = stretch_llama3(r, f);
        else if (r->kind == ROPE_YARN)
            f = stretch_yarn(r, dim, i, f);
        inv_freq[i] = (float)f;
    }
    *scale = r->kind == ROPE_YARN ? (float)r->attention_factor : 1.0f;
    return 0;
}
