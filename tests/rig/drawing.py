"""Pictures for pages: SVG with a light and a dark set of colours, which the reader's browser chooses between. A picture
brings its own ground, so that it can be read on any page, and says in words what it shows."""

import html

COLOURS = {  # light, dark; all words have a contrast of 4.5 or more with what they stand on
    "ground": ("#ffffff", "#161b22"),
    "ink": ("#1f2933", "#e6edf3"),
    "soft": ("#52606d", "#a9b4c0"),
    "line": ("#7b8794", "#8b949e"),
    "grid": ("#d9dfe5", "#303841"),
    "pale": ("#e8edf2", "#252c35"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#c24e00", "#f0a35e"),
    "green": ("#00785a", "#4cc29a"),
    "purple": ("#8e4585", "#d9a0d0"),
    "pale-blue": ("#d9ebf7", "#15344a"),
}


def style():
    """Class "blue" fills, class "blue-line" draws a line."""
    light = "".join(f".{n}{{fill:{c}}}.{n}-line{{stroke:{c}}}" for n, (c, _) in COLOURS.items())
    dark = "".join(f".{n}{{fill:{c}}}.{n}-line{{stroke:{c}}}" for n, (_, c) in COLOURS.items())
    return f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"


def num(v):
    return f"{v:.1f}".removesuffix(".0")


class Picture:
    def __init__(self, width, height, title, told):
        """told: what a reader learns who cannot see it."""
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" role="img" aria-labelledby="title told">',
            f'<title id="title">{html.escape(title)}</title>',
            f'<desc id="told">{html.escape(told)}</desc>',
            style(),
            '<rect class="ground" width="100%" height="100%" rx="8"/>',
        ]
        self.text(16, 28, title, 17, bold=True)

    def text(self, x, y, words, size=12, colour="ink", anchor="start", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(
            f'<text class="{colour}" x="{num(x)}" y="{num(y)}" font-size="{size}"{place}{weight}>'
            f"{html.escape(words)}</text>"
        )

    def rect(self, x, y, w, h, fill, stroke="", rx=0):
        colours, edge = (f"{fill} {stroke}-line", ' stroke-width="1.3"') if stroke else (fill, "")
        turn = f' rx="{rx}"' if rx else ""
        self.parts.append(
            f'<rect class="{colours}" x="{num(x)}" y="{num(y)}" width="{num(w)}" height="{num(h)}"{edge}{turn}/>'
        )

    def line(self, x0, y0, x1, y1, colour="grid", width=1, dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<path class="{colour}-line" d="M{num(x0)} {num(y0)}L{num(x1)} {num(y1)}" stroke-width="{width}"{dash}/>'
        )

    def dot(self, x, y, r, colour, hollow=False):
        how = f'class="ground {colour}-line" stroke-width="1.6"' if hollow else f'class="{colour}"'
        self.parts.append(f'<circle {how} cx="{num(x)}" cy="{num(y)}" r="{num(r)}"/>')

    def diamond(self, x, y, r, colour):
        self.parts.append(f'<path class="{colour}" d="M{num(x - r)} {num(y)}l{r} {-r}l{r} {r}l{-r} {r}z"/>')

    def arrow(self, x0, y0, x1, y1, colour="ink"):
        """Straight, along one axis."""
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        self.line(x0, y0, x1 - 7 * dx, y1 - 7 * dy, colour, 1.6)
        wings = f"l{-8 * dx - 4 * dy} {-8 * dy - 4 * dx}l{8 * dy} {8 * dx}z"
        self.parts.append(f'<path class="{colour}" d="M{num(x1)} {num(y1)}{wings}"/>')

    def svg(self):
        return "\n".join(self.parts) + "\n</svg>\n"
