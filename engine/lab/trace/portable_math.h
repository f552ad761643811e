/* Logarithm, exponential and cosine that have the same bits on every machine: only additions, multiplications and
 * divisions of IEEE doubles in a fixed order, no C library (whose last bit differs from one to the next). Within about
 * one unit in the last place of the true value. Pure, any thread. Invariant: results do not depend on the compiler's
 * flags (the build forbids contraction). */
#ifndef LAB_TRACE_PORTABLE_MATH_H
#define LAB_TRACE_PORTABLE_MATH_H

double portable_ln(double x);        /* x > 0 and normal */
double portable_exp(double x);       /* |x| < 700 */
double portable_cos_turns(double u); /* cos(2 pi u), 0 <= u <= 1 */

#endif
