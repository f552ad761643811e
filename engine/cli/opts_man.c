/* The man page. The heads of --help become its sections: in them a line with two blanks before it is an example. */
#include <string.h>

#include "engine/base/version.h"
#include "engine/cli/opts_page.h"
#include "engine/cli/opts_table.h"

/* Text as troff reads it: no dash that is no minus, no backslash, and no dot or quote that begins a line. */
static void escaped(struct buf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool first = i == 0 && (out->len == 0 || out->data[out->len - 1] == '\n');
        if (first && (text[i] == '.' || text[i] == '\''))
            buf_puts(out, "\\&");
        if (text[i] == '-')
            buf_puts(out, "\\-");
        else if (text[i] == '|') /* a line may end behind it */
            buf_puts(out, "|\\:");
        else if (text[i] == '\\')
            buf_puts(out, "\\e");
        else if (text[i] == '\'')
            buf_puts(out, "\\(aq");
        else if (text[i] == '~')
            buf_puts(out, "\\(ti");
        else
            buf_putc(out, text[i]);
    }
}

static void plain(struct buf *out, const char *text)
{
    escaped(out, text, strlen(text));
}

/* Lines up to the text's end: paragraphs, filled; examples, as they are. */
static void paragraphs(struct buf *out, const char *text)
{
    bool example = false, gap = true;
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        bool now = n > 2 && !strncmp(text, "  ", 2);
        if (now != example)
            buf_puts(out, now ? (gap ? ".PP\n.EX\n" : ".EX\n") : ".EE\n");
        else if (gap && n)
            buf_puts(out, ".PP\n");
        example = now;
        gap = n == 0;
        if (n) {
            escaped(out, text, n);
            buf_putc(out, '\n');
        }
    }
    if (example)
        buf_puts(out, ".EE\n");
}

/* Its first line is how it is called. */
static void command_section(struct buf *out, enum opts_command c)
{
    const char *head = opts_head(c);
    size_t n = strcspn(head, "\n");
    buf_puts(out, ".SS ");
    plain(out, opts_command_name(c));
    buf_puts(out, "\n\\fB");
    escaped(out, head, n);
    buf_puts(out, "\\fP\n");
    paragraphs(out, head + n);
}

/* "serve, run": who takes it. */
static void takers(struct buf *out, const struct opt_row *r)
{
    const char *comma = "";
    for (int c = CMD_SERVE; c < CMD_HELP; c++)
        if (r->where & opts_where((enum opts_command)c)) {
            buf_puts(out, comma);
            plain(out, opts_command_name((enum opts_command)c));
            comma = ", ";
        }
}

static void option(struct buf *out, const struct opt_row *r)
{
    struct buf text = {0};
    buf_puts(out, ".TP\n\\fB");
    if (r->letter)
        buf_printf(out, "\\-%c, ", r->letter);
    plain(out, opts_default_on(r) ? "--no-" : "--");
    plain(out, r->name);
    buf_puts(out, "\\fP");
    if (r->value) {
        buf_puts(out, " \\fI");
        plain(out, r->value);
        buf_puts(out, "\\fP");
    }
    buf_putc(out, '\n');
    opts_row_text(r, &text);
    if (text.len) {
        plain(out, text.data);
        buf_puts(out, ".\n");
    }
    buf_puts(out, "Commands: ");
    takers(out, r);
    buf_puts(out, ".\n");
    buf_free(&text);
}

static void options(struct buf *out)
{
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int g = 0; g < GROUP_COUNT; g++) {
        buf_printf(out, ".SS %s\n", opts_group_name((enum opt_group)g));
        for (int i = 0; i < n; i++)
            if ((int)rows[i].group == g)
                option(out, &rows[i]);
    }
}

static const char last_sections[] =
    ".SH ENVIRONMENT\n"
    "Each option can be set as \\fBMOONSHIFT_\\fP and its name in capitals, with _ for each dash:\n"
    ".B MOONSHIFT_MAX_MODEL_LEN\n"
    "is \\-\\-max\\-model\\-len. A MOONSHIFT_ variable that names no option is an error. The command line wins.\n"
    ".TP\n.B NO_COLOR\n"
    "No colours at the terminal.\n"
    ".SH FILES\n"
    "Beside the program's folder, in ../share/moonshift: policies, models/catalog, models/hardware and models/papers.\n"
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nDone as asked.\n"
    ".TP\n.B 1\nIt failed. The last line on standard error says why.\n"
    ".TP\n.B 2\nThe command line, the environment or the config file is wrong.\n"
    ".TP\n.B 3\nOf policy test: specs could not be run. Of what asks a running server: it does not answer.\n";

void opts_man(struct buf *out)
{
    const char *text = opts_head(CMD_HELP);
    size_t first = strcspn(text, "\n");
    buf_printf(out, ".TH MOONSHIFT 1 \"\" \"Moonshift %s\" \"User Commands\"\n", version_number);
    buf_puts(out, ".SH NAME\nmoonshift \\- an LLM inference engine whose scheduling is scripted in Lua\n");
    buf_puts(out, ".SH SYNOPSIS\n.B moonshift\n.I command\n[\\fIoptions\\fP]\n.SH DESCRIPTION\n");
    escaped(out, text, first);
    buf_putc(out, '\n');
    paragraphs(out, text + first);
    buf_puts(out, ".SH COMMANDS\n");
    for (int c = CMD_SERVE; c < CMD_HELP; c++)
        command_section(out, (enum opts_command)c);
    buf_puts(out, ".SH OPTIONS\n");
    options(out);
    buf_puts(out, last_sections);
}
