/* Completions for shells: a case for each command, with its flags; of a flag's values the choices, else files. */
#include <string.h>

#include "engine/cli/opts_page.h"
#include "engine/cli/opts_table.h"

#define POLICY_VERBS "check test why new push what-if list show diff activate rollback log"

/* What comes behind a flag. */
enum behind { NOTHING, A_CHOICE, A_FILE, A_FOLDER, A_TEXT };

static enum behind behind(const struct opt_row *r)
{
    if (r->kind == OPT_SWITCH)
        return NOTHING;
    if (r->choices)
        return A_CHOICE;
    if (r->value && !strcmp(r->value, "FOLDER"))
        return A_FOLDER;
    return r->value && strstr(r->value, "FILE") ? A_FILE : A_TEXT;
}

/* The words of a command: "serve", "check" (of policy), ... */
static const char *last_word(enum opts_command c)
{
    const char *name = opts_command_name(c), *blank = strchr(name, ' ');
    return blank ? blank + 1 : name;
}

static void choices(struct buf *out, const char *list)
{
    for (; *list; list++)
        buf_putc(out, *list == '|' ? ' ' : *list);
}

/* ---- bash */

/* Patterns of a case label: every spelling of the flag. */
static void bash_spellings(struct buf *out, const struct opt_row *r)
{
    buf_printf(out, "--%s", r->name);
    if (r->alias)
        buf_printf(out, "|--%s", r->alias);
    if (r->letter)
        buf_printf(out, "|-%c", r->letter);
}

static void bash_value(struct buf *out, const struct opt_row *r)
{
    buf_puts(out, "            ");
    bash_spellings(out, r);
    buf_puts(out, ") ");
    if (behind(r) == A_CHOICE) {
        buf_puts(out, "COMPREPLY=($(compgen -W '");
        choices(out, r->choices);
        buf_puts(out, "' -- \"$cur\")) ;;\n");
    } else if (behind(r) == A_TEXT) {
        buf_puts(out, "COMPREPLY=() ;;\n");
    } else {
        buf_printf(out, "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -%c -- \"$cur\")) ;;\n",
                   behind(r) == A_FOLDER ? 'd' : 'f');
    }
}

/* The flags of a command: their values, then the flags themselves, then the files of its words. */
static void bash_command(struct buf *out, enum opts_command c)
{
    int n, bit = opts_where(c);
    const struct opt_row *rows = opts_rows(&n);
    buf_printf(out, "    %s)\n        case $prev in\n", last_word(c));
    for (int i = 0; i < n; i++)
        if ((rows[i].where & bit) && behind(&rows[i]) != NOTHING)
            bash_value(out, &rows[i]);
    buf_puts(out, "            *) case $cur in\n                -*) COMPREPLY=($(compgen -W '--help");
    for (int i = 0; i < n; i++)
        if (rows[i].where & bit) {
            buf_printf(out, " --%s%s", opts_default_on(&rows[i]) ? "no-" : "", rows[i].name);
            if (rows[i].alias)
                buf_printf(out, " --%s", rows[i].alias);
        }
    buf_puts(out, "' -- \"$cur\")) ;;\n                *) compopt -o filenames 2>/dev/null; "
                  "COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n                esac ;;\n        esac ;;\n");
}

static bool is_verb(enum opts_command c)
{
    return strncmp(opts_command_name(c), "policy ", 7) == 0;
}

static void first_words(struct buf *out)
{
    for (int c = CMD_SERVE; c < CMD_HELP; c++)
        if (!is_verb((enum opts_command)c))
            buf_printf(out, "%s ", opts_command_name((enum opts_command)c));
    buf_puts(out, "policy help version");
}

/* COMP_WORDS has a '=' for a word of its own. */
static const char bash_start[] =
    "# bash completion for moonshift, written by `moonshift help --completion bash`\n"
    "# shellcheck shell=bash disable=SC2207\n"
    "_moonshift() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} at=1\n"
    "    [[ $command != policy ]] || command=${COMP_WORDS[2]} at=2\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == = ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    COMPREPLY=()\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        COMPREPLY=($(compgen -W '";

void opts_bash(struct buf *out)
{
    buf_puts(out, bash_start);
    first_words(out);
    buf_puts(out, " --help --version' -- \"$cur\"))\n        return\n    elif ((COMP_CWORD == 2 && at == 2)); then\n"
                  "        COMPREPLY=($(compgen -W '" POLICY_VERBS "' -- \"$cur\"))\n        return\n    fi\n"
                  "    case $command in\n");
    for (int c = CMD_SERVE; c < CMD_HELP; c++)
        bash_command(out, (enum opts_command)c);
    buf_puts(out, "    esac\n} && complete -F _moonshift moonshift\n");
}

/* ---- zsh */

/* Inside single quotes, in the brackets of _arguments: quotes, brackets and colons mean something there. */
static void zsh_text(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            buf_puts(out, "'\\'");
        else if (strchr("[]:\\", *text))
            buf_putc(out, '\\');
        buf_putc(out, *text);
    }
}

static void zsh_spec(struct buf *out, const struct opt_row *r, const char *name)
{
    buf_printf(out, "            '%s--%s%s%s[", r->kind == OPT_LIST ? "*" : "", opts_default_on(r) ? "no-" : "", name,
               behind(r) == NOTHING ? "" : "=");
    zsh_text(out, r->doc ? r->doc : "");
    buf_puts(out, "]");
    if (behind(r) != NOTHING) {
        buf_puts(out, ":");
        zsh_text(out, r->value);
        buf_puts(out, ":");
    }
    if (behind(r) == A_CHOICE) {
        buf_putc(out, '(');
        choices(out, r->choices);
        buf_putc(out, ')');
    } else if (behind(r) == A_FILE || behind(r) == A_FOLDER) {
        buf_puts(out, behind(r) == A_FOLDER ? "_files -/" : "_files");
    }
    buf_puts(out, "' \\\n");
}

static void zsh_command(struct buf *out, enum opts_command c)
{
    int n, bit = opts_where(c);
    const struct opt_row *rows = opts_rows(&n);
    buf_printf(out, "    %s)\n        _arguments \\\n", last_word(c));
    for (int i = 0; i < n; i++)
        if (rows[i].where & bit) {
            zsh_spec(out, &rows[i], rows[i].name);
            if (rows[i].alias)
                zsh_spec(out, &rows[i], rows[i].alias);
        }
    buf_puts(out, "            '--help[what this command takes]' '*: :_files' ;;\n");
}

void opts_zsh(struct buf *out)
{
    buf_puts(out, "#compdef moonshift\n# written by `moonshift help --completion zsh`\nlocal command=$words[2]\n"
                  "if ((CURRENT == 2)); then\n    compadd -- ");
    first_words(out);
    buf_puts(out,
             " --help --version\n    return\nfi\nif [[ $command == policy ]]; then\n    if ((CURRENT == 3)); then\n"
             "        compadd -- " POLICY_VERBS "\n        return\n    fi\n    command=$words[3]\n    shift words\n"
             "    ((CURRENT--))\nfi\nshift words\n((CURRENT--))\ncase $command in\n");
    for (int c = CMD_SERVE; c < CMD_HELP; c++)
        zsh_command(out, (enum opts_command)c);
    buf_puts(out, "esac\n");
}
