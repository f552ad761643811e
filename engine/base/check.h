/* Checks that stay on in every build. ASSERT is for bugs of this program only: nothing that arrives from outside may
 * reach one. A failed ASSERT prints where and aborts. Any thread. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#define ASSERT(cond)                                                                                                   \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0))                                                                              \
            check_failed(#cond, __FILE__, __LINE__);                                                                   \
    } while (0)
#define UNREACHABLE() check_failed("unreachable", __FILE__, __LINE__)

_Noreturn void check_failed(const char *what, const char *file, int line);

#endif
