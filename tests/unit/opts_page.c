/* Whatever the option table has stands in the man page and in both completions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/cli/opts_page.h"
#include "engine/cli/opts_table.h"

/* The part of text from begin up to end; the caller frees it. */
static char *part(const char *text, const char *begin, const char *end)
{
    const char *from = strstr(text, begin);
    assert_non_null(from);
    const char *to = strstr(from + strlen(begin), end);
    assert_non_null(to);
    return mem_strndup(from, (size_t)(to - from));
}

/* text has the word, and neither a letter nor a dash behind it. */
static bool has(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if (!strchr("abcdefghijklmnopqrstuvwxyz-\\0123456789", at[n]) || !at[n])
            return true;
    return false;
}

static void man_has_every_option_and_command(void **state)
{
    (void)state;
    struct buf b = {0};
    opts_man(&b);
    for (const char *line = b.data; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        assert_int_not_equal(*line, '\'');
    char *options = part(b.data, ".SH OPTIONS", ".SH ENVIRONMENT");
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int i = 0; i < n; i++) {
        char word[160];
        size_t len = (size_t)snprintf(word, sizeof word, "\\fB%s", "");
        if (rows[i].letter)
            len += (size_t)snprintf(word + len, sizeof word - len, "\\-%c, ", rows[i].letter);
        len += (size_t)snprintf(word + len, sizeof word - len, "\\-\\-%s", opts_default_on(&rows[i]) ? "no\\-" : "");
        for (const char *c = rows[i].name; *c; c++)
            len += (size_t)snprintf(word + len, sizeof word - len, *c == '-' ? "\\-" : "%c", *c);
        snprintf(word + len, sizeof word - len, "\\fP");
        if (!strstr(options, word))
            fail_msg("the man page has no %s", word);
    }
    mem_free(options);
    char *commands = part(b.data, ".SH COMMANDS", ".SH OPTIONS");
    for (const char *const *c = (const char *const[]){"serve", "run", "batch", "simulate", "tune", "plan", "regret",
                                                      "reproduce", "policy check", "policy test", "policy why",
                                                      "policy step", "policy new", "lua\\-path", NULL};
         *c; c++) {
        char heading[64];
        snprintf(heading, sizeof heading, "\n.SS %s\n", *c);
        assert_non_null(strstr(commands, heading));
    }
    mem_free(commands);
    buf_free(&b);
}

static const char *last_word(enum opts_command c)
{
    const char *name = opts_command_name(c), *blank = strchr(name, ' ');
    return blank ? blank + 1 : name;
}

/* The case of a command: up to the next one's label, which is four blanks in. */
static char *case_of(const char *text, enum opts_command c)
{
    char label[64];
    snprintf(label, sizeof label, "\n    %s)\n", last_word(c));
    const char *from = strstr(text, label);
    if (!from)
        fail_msg("no case for %s", label);
    const char *to = from + strlen(label);
    while (strncmp(to, "\n    ", 5) || to[5] == ' ') {
        to = strchr(to + 1, '\n');
        if (!to || !strncmp(to, "\nesac", 5))
            break;
    }
    return to ? mem_strndup(from, (size_t)(to - from)) : mem_strdup(from);
}

static void completes(void (*write)(struct buf *))
{
    struct buf b = {0};
    write(&b);
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int c = CMD_SERVE; c < CMD_HELP; c++) {
        char flag[160], *mine = case_of(b.data, (enum opts_command)c);
        for (int i = 0; i < n; i++) {
            bool offered = rows[i].where & opts_where((enum opts_command)c);
            snprintf(flag, sizeof flag, "--%s%s", opts_default_on(&rows[i]) ? "no-" : "", rows[i].name);
            if (offered && !has(mine, flag))
                fail_msg("%s is not completed behind %s", flag, opts_command_name((enum opts_command)c));
        }
        mem_free(mine);
    }
    buf_free(&b);
}

static void bash_completes_every_option(void **state)
{
    (void)state;
    completes(opts_bash);
}

static void zsh_completes_every_option(void **state)
{
    (void)state;
    completes(opts_zsh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(man_has_every_option_and_command),
        cmocka_unit_test(bash_completes_every_option),
        cmocka_unit_test(zsh_completes_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
