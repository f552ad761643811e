/* A chart as SVG text: a frame with two axes, lines and marks in it, a legend below. Each style is a colour, a dash and
 * a mark of its own, so that lines which lie on one another can be told apart, on paper too. Pure: bytes from numbers,
 * the same on every machine. Owned by whoever made it, one thread. Invariant: all text and marks lie inside the
 * picture. */
#ifndef LAB_CHART_H
#define LAB_CHART_H

#include <stdbool.h>

#include "engine/base/buf.h"

enum { CHART_WIDTH = 900, CHART_STYLES = 8, CHART_MOST_ENTRIES = 64, CHART_TEXT = 96 };

struct chart_axis {
    double min, max;
    bool is_log;
    const char *name;
};

enum chart_key { KEY_LINE, KEY_AREA, KEY_SWITCH, KEY_LIMIT };

struct chart_entry {
    enum chart_key key;
    int style;
    char text[CHART_TEXT];
};

struct chart {
    struct buf svg;
    struct chart_axis x, y;
    const char *title, *caption;
    int left, top, bottom; /* of the frame; its right side is CHART_WIDTH - 20 */
    struct chart_entry entries[CHART_MOST_ENTRIES];
    int n_entries;
};

struct chart_point {
    double x, y;
};

/* Nothing is drawn yet: a place in the legend, which sets the height of the picture. */
void chart_add_entry(struct chart *c, enum chart_key key, int style, const char *text);
/* The picture, its title, axes (y rounded outwards; y.name NULL: x alone) and legend. left, top and bottom may have
 * been set before; 0: as usual. */
void chart_open(struct chart *c);
void chart_line(struct chart *c, int style, int n_styles, const struct chart_point *points, int n);
/* A horizontal bar from x0 to x1, in pixels from y on. */
void chart_bar(struct chart *c, int style, double x0, double x1, int y, int height);
/* At x, in pixels from y on: something changed there. */
void chart_switch(struct chart *c, int style, double x, int y, int height);
/* A vertical line through the frame, with words. */
void chart_limit(struct chart *c, double x, const char *text);
/* Right of x, in pixels; cut to `width` pixels where it is longer. */
void chart_label(struct chart *c, int y, int width, const char *text);
void chart_close(struct chart *c);
/* So many pixels a text takes at most, in the size that all but the title have. */
double chart_text_width(const char *text);

#endif
