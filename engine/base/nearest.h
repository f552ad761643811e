/* The nearest right word for a wrong one. Pure functions, any thread. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

/* The candidate at the smallest edit distance; NULL when it is more than a third of the word's length (at
 * least 2) away. */
const char *nearest_word(const char *word, const char *const *candidates, int n);

#endif
