/* The list of published numbers, from any bytes: runs, formulas, bars; nothing is run. */
#include <stddef.h>
#include <stdint.h>

#include "engine/lab/search/paper_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char word[] = "t";
    static char *const only[] = {word};
    for (int i = 0; i < 2; i++) {
        struct paper_choice choice = {.only = only, .n_only = i, .bars = i, .hardware = "h"};
        struct paper_list l;
        struct err e = {0};
        double v;
        if (!paper_list_read(&l, (const char *)data, n, "a/b.json", &choice, &e))
            for (int k = 0; k < l.n_numbers; k++)
                for (int f = 0; f < l.numbers[k].n && l.numbers[k].wanted; f++)
                    (void)paper_list_value(&l, &l.numbers[k], f, &v, &e); /* no run has come to an end */
        paper_list_close(&l);
    }
    return 0;
}
