#include "engine/pulse.h"

#include <string.h>

void pulse_clear(struct pulse *p, int64_t now_ns)
{
    p->n = 0;
    p->missed = 0;
    p->since_ns = now_ns;
}

static struct pulse_row *row_of(struct pulse *p, int group, struct layout layout)
{
    for (int i = p->n - 1; i >= 0; i--) /* newest first: mostly the one before */
        if (p->rows[i].group == group && layout_equal(p->rows[i].layout, layout))
            return &p->rows[i];
    if (p->n == PULSE_ROWS)
        return NULL;
    p->rows[p->n] = (struct pulse_row){.group = group, .layout = layout};
    return &p->rows[p->n++];
}

void pulse_note(struct pulse *p, int group, struct layout layout, int rows, int64_t ns)
{
    struct pulse_row *r = row_of(p, group, layout);
    if (!r) {
        p->missed++;
        return;
    }
    r->steps++;
    r->rows += (uint64_t)rows;
    r->ns += ns;
}
