/* How slow a machine was, from one stretch of time to the next, beside what was predicted: 1 is as always. What a
 * stretch shows is believed as far as stretches differ by more than the luck of single steps explains (an analysis of
 * variance); with luck alone it is 1 throughout. Owned by whoever made it, any one thread. Invariant: memory has a
 * bound, whatever the span of time. */
#ifndef LAB_FIT_SPELLS_H
#define LAB_FIT_SPELLS_H

#include <stddef.h>
#include <stdint.h>

struct spell_step {
    int64_t at_ns;
    double ratio; /* measured / predicted, above 0 */
};

struct spells {
    double *slow; /* [n] by stretch */
    size_t n;     /* 0: 1 throughout */
    int64_t from_ns, width_ns;
    double share; /* of the variance of the ratios' logarithms that is between stretches */
};

void spells_fit(struct spells *s, const struct spell_step *steps, size_t n);
void spells_free(struct spells *s);
double spells_at(const struct spells *s, int64_t at_ns); /* beyond its end it begins again */

#endif
