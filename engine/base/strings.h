/* A list of strings. Who owns it, and what the strings are, says whoever holds one; plain values, any thread. */
#ifndef BASE_STRINGS_H
#define BASE_STRINGS_H

struct strings {
    char **items;
    int n;
};

#endif
