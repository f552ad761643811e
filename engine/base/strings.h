/* A list of strings. Its holder says who owns it and what the strings are; plain values, any thread. */
#ifndef BASE_STRINGS_H
#define BASE_STRINGS_H

struct strings {
    char **items;
    int n;
};

#endif
