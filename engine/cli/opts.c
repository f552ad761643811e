#include "engine/cli/opts.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/cli/opts_env.h"
#include "engine/cli/opts_table.h"
#include "engine/base/nearest.h"

enum { CONFIG_BYTES = 1 << 20, MAX_NAMES = 256, NAME_MAX_BYTES = 80 };

/* Where a setting came from; a weaker source never overrides a stronger one. */
enum source { FROM_NOWHERE, FROM_DEFAULT, FROM_CONFIG, FROM_ENV, FROM_LINE };

struct parse {
    struct opts *o;
    const struct opt_row *rows;
    int n_rows;
    unsigned char *set_by; /* [n_rows] enum source */
    const struct opts_input *in;
    int at;      /* next word of the command line */
    int n_words; /* words that are no flags, so far */
    struct err *e;
};

void opts_list_add(struct strings *l, char *item)
{
    l->items = mem_resize(l->items, (size_t)l->n + 1, sizeof *l->items);
    l->items[l->n++] = item;
}

static void list_drop(struct strings *l)
{
    mem_free(l->items);
    *l = (struct strings){0};
}

/* A copy that lives as long as o. */
char *opts_keep(struct opts *o, const char *text, size_t n)
{
    char *copy = mem_strndup(text, n);
    opts_list_add(&o->owned, copy);
    return copy;
}

static int set_count(const struct opt_row *r, void *at, const char *name, const char *v, struct err *e)
{
    int64_t n;
    if (opts_human(v, &n))
        return err_set(e, E_INPUT, "%s wants a whole number (like 4096, 32k, 2GiB), not '%.40s'", name, v);
    if ((double)n < r->min || (double)n > r->max)
        return err_set(e, E_INPUT, "%s must be between %.0f and %.0f, not %.40s", name, r->min, r->max, v);
    *(int64_t *)at = n;
    return 0;
}

static int set_number(const struct opt_row *r, void *at, const char *name, const char *v, struct err *e)
{
    char *end;
    double x = strtod(v, &end);
    if (end == v || *end || !(x >= r->min && x <= r->max))
        return err_set(e, E_INPUT, "%s must be a number between %g and %g, not '%.40s'", name, r->min, r->max, v);
    *(double *)at = x;
    return 0;
}

static int set_seed(void *at, const char *name, const char *v, struct err *e)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(v, &end, 10);
    if (!isdigit((unsigned char)v[0]) || *end || errno)
        return err_set(e, E_INPUT, "%s must be a whole number from 0 to 2^64 - 1, not '%.40s'", name, v);
    *(uint64_t *)at = n;
    return 0;
}

static int set_choice(struct parse *p, const struct opt_row *r, void *at, const char *name, const char *v)
{
    const char *words[16];
    int n = 0;
    for (const char *c = r->choices; n < 16;) {
        size_t len = strcspn(c, "|");
        char *word = opts_keep(p->o, c, len);
        words[n++] = word;
        if (!strcmp(word, v)) {
            *(char **)at = word;
            return 0;
        }
        if (!c[len])
            break;
        c += len + 1;
    }
    const char *near = nearest_word(v, words, n);
    return err_set(p->e, E_INPUT, "%s must be one of %s, not '%.40s'%s%s%s", name, r->choices, v,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* --allowed-origins also takes vLLM's form, a JSON list of strings. */
static int set_list(struct parse *p, struct strings *l, const char *name, const char *v)
{
    if (v[0] != '[') {
        if (!v[0])
            return err_set(p->e, E_INPUT, "%s may not be empty", name);
        opts_list_add(l, opts_keep(p->o, v, strlen(v)));
        return 0;
    }
    for (const char *c = v + 1; *c != ']';) {
        c += strspn(c, " ,");
        size_t len = *c == '"' ? strcspn(c + 1, "\"\\") : 0;
        if (*c != '"' || c[1 + len] != '"')
            return err_set(p->e, E_INPUT, "%s: '%.60s' is not a list of strings", name, v);
        opts_list_add(l, opts_keep(p->o, c + 1, len));
        c += len + 2;
        c += strspn(c, " ");
    }
    return 0;
}

static int set_switch(void *at, const char *name, const char *v, struct err *e)
{
    static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no", "off"};
    for (int i = 0; i < 4; i++) {
        if (!strcmp(v, yes[i]) || !strcmp(v, no[i])) {
            *(bool *)at = !strcmp(v, yes[i]);
            return 0;
        }
    }
    return err_set(e, E_INPUT, "%s must be true or false, not '%.40s'", name, v);
}

static int assign(struct parse *p, const struct opt_row *r, const char *name, const char *v, enum source from)
{
    unsigned char *set_by = &p->set_by[r - p->rows];
    if (*set_by > from)
        return 0;
    void *at = (char *)p->o + r->offset;
    if (r->kind == OPT_LIST && *set_by < from)
        list_drop(at); /* a stronger source replaces the list, it does not add to it */
    *set_by = (unsigned char)from;
    for (int i = 0; i < p->n_rows; i++) /* another name of the same setting */
        if (p->rows[i].offset == r->offset && p->set_by[i] < from)
            p->set_by[i] = (unsigned char)from;
    switch (r->kind) {
    case OPT_TEXT:
        *(char **)at = opts_keep(p->o, v, strlen(v));
        return 0;
    case OPT_LIST:
        return set_list(p, at, name, v);
    case OPT_CHOICE:
        return set_choice(p, r, at, name, v);
    case OPT_COUNT:
        return set_count(r, at, name, v, p->e);
    case OPT_SEED:
        return set_seed(at, name, v, p->e);
    case OPT_NUMBER:
        return set_number(r, at, name, v, p->e);
    case OPT_SWITCH:
        return set_switch(at, name, v, p->e);
    }
    return 0;
}

/* ---- names */

/* The row of a long name (n bytes), '_' counting as '-'; *negated for --no-x. */
static const struct opt_row *find_row(const struct parse *p, const char *name, size_t n, bool *negated)
{
    char word[NAME_MAX_BYTES];
    if (n >= sizeof word)
        return NULL;
    for (size_t i = 0; i < n; i++)
        word[i] = name[i] == '_' ? '-' : name[i];
    word[n] = 0;
    int bit = opts_where(p->o->command);
    for (int i = 0; i < p->n_rows; i++) {
        const struct opt_row *r = &p->rows[i];
        *negated = r->kind == OPT_SWITCH && !strncmp(word, "no-", 3) && !strcmp(word + 3, r->name);
        if ((r->where & bit) && (*negated || !strcmp(word, r->name) || (r->alias && !strcmp(word, r->alias))))
            return r;
    }
    *negated = false;
    return NULL;
}

static const struct opt_row *find_letter(const struct parse *p, char letter)
{
    int bit = opts_where(p->o->command);
    for (int i = 0; i < p->n_rows; i++)
        if (p->rows[i].letter == letter && (p->rows[i].where & bit))
            return &p->rows[i];
    return NULL;
}

static const struct opt_foreign *find_foreign(const char *spelling, size_t n)
{
    int count;
    const struct opt_foreign *rows = opts_foreign(&count);
    for (int i = 0; i < count; i++)
        for (const char *c = rows[i].name; *c;) {
            size_t len = strcspn(c, "|");
            size_t dashes = c[0] == '-' ? 0 : 2; /* the table writes long names without theirs */
            if (n == len + dashes && !strncmp(spelling, "--", dashes) && !strncmp(spelling + dashes, c, len))
                return &rows[i];
            c += len + (c[len] == '|');
        }
    return NULL;
}

static int unknown(struct parse *p, const char *spelling, size_t n)
{
    enum opts_command mine = p->o->command;
    bool negated;
    for (int c = CMD_SERVE; c < CMD_HELP && n > 2; c++) {
        p->o->command = (enum opts_command)c;
        const struct opt_row *r = find_row(p, spelling + 2, n - 2, &negated);
        p->o->command = mine;
        if (r)
            return err_set(p->e, E_INPUT, "--%s belongs to moonshift %s, not to moonshift %s", r->name,
                           opts_command_name((enum opts_command)c), opts_command_name(mine));
    }
    const char *names[2 * MAX_NAMES];
    int count = 0, bit = opts_where(p->o->command);
    for (int i = 0; i < p->n_rows && count < 2 * MAX_NAMES - 2; i++)
        if (p->rows[i].where & bit) {
            names[count++] = p->rows[i].name;
            if (p->rows[i].alias)
                names[count++] = p->rows[i].alias;
        }
    char word[NAME_MAX_BYTES] = {0};
    memcpy(word, spelling, n < sizeof word ? n : sizeof word - 1);
    const char *bare = word + strspn(word, "-");
    const char *near = strlen(bare) > 1 ? nearest_word(bare, names, count) : NULL;
    return err_set(p->e, E_INPUT, "there is no flag %s%s%s%s (moonshift %s --help lists all)", word,
                   near ? "; did you mean --" : "", near ? near : "", near ? "?" : "", opts_command_name(mine));
}

/* ---- the command line */

static const char *next_word(struct parse *p)
{
    return p->at < p->in->argc ? p->in->argv[p->at++] : NULL;
}

/* A flag of another server: taken when it changes nothing, else refused with what to do. */
static int foreign_flag(struct parse *p, const struct opt_foreign *f, const char *spelling, size_t n, const char *value)
{
    if (f->takes_value && !value)
        value = next_word(p);
    if (f->harmless && (!strcmp(f->harmless, "*") || (value && !strcmp(value, f->harmless))))
        return 0;
    if (f->harmless)
        return err_set(p->e, E_UNSUPPORTED, "%.*s %.40s is not offered: %s; only %s is accepted", (int)n, spelling,
                       value ? value : "", f->why, f->harmless);
    return err_set(p->e, E_UNSUPPORTED, "%.*s is not offered: %s", (int)n, spelling, f->why);
}

/* The row of a short spelling of several letters, as vLLM has them: -tp. */
static const struct opt_row *find_short(const struct parse *p, const char *letters)
{
    bool negated;
    for (int i = 0; i < p->n_rows && letters[0] && letters[1]; i++)
        if (p->rows[i].alias && strlen(letters) == 2 && !strcmp(p->rows[i].alias, letters))
            return find_row(p, letters, 2, &negated);
    return NULL;
}

static int flag(struct parse *p, const char *word)
{
    bool is_long = word[1] == '-', negated = false;
    size_t n = is_long ? strcspn(word, "=") : 2;
    const char *value = is_long ? (word[n] ? word + n + 1 : NULL) : (word[2] ? word + 2 : NULL);
    const struct opt_foreign *f = find_foreign(word, is_long ? n : strlen(word)); /* first: -tp is not -t p */
    const struct opt_row *r = is_long ? find_row(p, word + 2, n - 2, &negated) : find_letter(p, word[1]);
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
        p->o->help_for = p->o->command;
        p->o->command = CMD_HELP;
        return 0;
    }
    if (f)
        return foreign_flag(p, f, word, is_long ? n : strlen(word), is_long ? value : NULL);
    const struct opt_row *several = is_long ? NULL : find_short(p, word + 1);
    if (several) {
        r = several;
        n = strlen(word);
        value = NULL;
    }
    if (!r)
        return unknown(p, word, is_long ? n : strlen(word));
    char name[NAME_MAX_BYTES + 2] = {0};
    memcpy(name, word, n);
    if (r->kind == OPT_SWITCH) {
        if (negated && value)
            return err_set(p->e, E_INPUT, "%s takes no value", name);
        return assign(p, r, name, negated ? "false" : value ? value : "true", FROM_LINE);
    }
    if (!value)
        value = next_word(p);
    if (!value)
        return err_set(p->e, E_INPUT, "%s needs a value (%s)", name, r->value);
    int rc = assign(p, r, name, value, FROM_LINE);
    if (r->where & SECRET) /* a copy is kept; this one everybody on the machine can read */
        memset((char *)(uintptr_t)value, '*', strlen(value));
    return rc;
}

/* A word that is no flag: the model, then the prompt (run); the file (policy check). */
static int plain_word(struct parse *p, const char *word)
{
    int i = p->n_words++;
    struct opts *o = p->o;
    bool one_file = o->command == CMD_POLICY_CHECK || o->command == CMD_POLICY_TEST || o->command == CMD_POLICY_NEW ||
                    o->command == CMD_POLICY_STEP || (o->command >= CMD_POLICY_PUSH && o->command < CMD_LIMITS);
    if (o->command == CMD_POLICY_DIFF && i == 1) {
        o->file2 = opts_keep(o, word, strlen(word));
        return 0;
    }
    if (one_file && i == 0 && o->command != CMD_POLICY_LIST && o->command != CMD_POLICY_ROLLBACK) {
        o->file = opts_keep(o, word, strlen(word));
        return 0;
    }
    if (o->command == CMD_POLICY_WHY && i == 0) {
        o->why_id = opts_keep(o, word, strlen(word));
        return 0;
    }
    if (o->command == CMD_REPRODUCE)
        return err_set(p->e, E_INPUT, "there is a word too many: '%.60s' (--only WORD chooses)", word);
    if (opts_where(o->command) & IN_SIMULATE)
        return err_set(p->e, E_INPUT,
                       "there is a word too many: '%.60s' (the traffic goes after --trace, the policy after --policy)",
                       word);
    if (!one_file && o->command != CMD_LUA_PATH && o->command != CMD_POLICY_WHY && o->command < CMD_LIMITS && i == 0) {
        bool negated;
        return assign(p, find_row(p, "model", 5, &negated), "the model", word, FROM_LINE);
    }
    if (o->command == CMD_RUN && i == 1) {
        o->prompt = opts_keep(o, word, strlen(word));
        return 0;
    }
    return err_set(p->e, E_INPUT, "there is a word too many: '%.60s'%s", word,
                   o->command == CMD_RUN ? " (a prompt of several words goes in quotes)" : "");
}

static int command_line(struct parse *p)
{
    bool only_words = false;
    for (const char *w; p->o->command != CMD_HELP && (w = next_word(p));) {
        if (!only_words && !strcmp(w, "--"))
            only_words = true;
        else if (only_words || w[0] != '-' || !w[1])
            TRY(plain_word(p, w));
        else
            TRY(flag(p, w));
    }
    return 0;
}

/* ---- the weaker sources */

/* "true" becomes "false" and back; anything else is refused by whoever reads it. */
static const char *opposite(const char *v)
{
    bool on = false;
    return set_switch(&on, "", v, NULL) ? v : on ? "false" : "true";
}

static int environment(struct parse *p)
{
    for (char *const *entry = p->in->env; entry && *entry; entry++) {
        struct env_variable v;
        bool negated = false;
        if (!opts_env_read(*entry, &v))
            continue;
        const struct opt_row *r = find_row(p, v.name, strlen(v.name), &negated);
        if (r)
            TRY(assign(p, r, v.spelling, negated ? opposite(v.value) : v.value, FROM_ENV));
        else
            TRY(opts_env_unknown(&v, p->e));
    }
    return 0;
}

/* One line of a config file, "name: value", the value in quotes or not; '#' begins a comment. */
static int config_line(struct parse *p, char *line, const char *path, int number)
{
    line += strspn(line, " \t");
    size_t n = strcspn(line, ":");
    if (!*line || *line == '#' || !strcmp(line, "---"))
        return 0;
    if (!line[n])
        return err_set(p->e, E_INPUT, "%s:%d: expected \"flag-name: value\"", path, number);
    char *v = line + n + 1;
    v += strspn(v, " \t");
    if (*v == '"' || *v == '\'') {
        char *end = strchr(v + 1, *v);
        if (!end || (end[1 + strspn(end + 1, " \t")] && end[1 + strspn(end + 1, " \t")] != '#'))
            return err_set(p->e, E_INPUT, "%s:%d: the quotes do not match", path, number);
        *end = 0;
        v++;
    } else {
        char *comment = strstr(v, " #");
        if (comment)
            *comment = 0;
        for (size_t len = strlen(v); len && isspace((unsigned char)v[len - 1]);)
            v[--len] = 0;
    }
    bool negated;
    const struct opt_row *r = find_row(p, line, n, &negated);
    if (!r || negated || !strcmp(r->name, "config")) {
        char name[NAME_MAX_BYTES];
        memset(name, '-', 2);
        size_t len = n < sizeof name - 3 ? n : sizeof name - 3;
        memcpy(name + 2, line, len);
        int rc = unknown(p, name, len + 2);
        return err_prefix(p->e, rc, "%s:%d", path, number);
    }
    int rc = assign(p, r, r->name, v, FROM_CONFIG);
    return rc ? err_prefix(p->e, rc, "%s:%d", path, number) : 0;
}

static int config_file(struct parse *p)
{
    const char *path = p->o->config;
    struct buf text = {0};
    int rc = file_read(&text, path, CONFIG_BYTES, p->e), number = 0;
    for (char *line = text.data, *end; !rc && line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        size_t len = strlen(line);
        if (len && line[len - 1] == '\r')
            line[len - 1] = 0;
        rc = config_line(p, line, path, ++number);
    }
    buf_free(&text);
    return rc;
}

/* ---- all of it */

struct command {
    const char *word;
    enum opts_command means;
};

static const struct command commands[] = {
    {"serve", CMD_SERVE},
    {"run", CMD_RUN},
    {"batch", CMD_BATCH},
    {"simulate", CMD_SIMULATE},
    {"reproduce", CMD_REPRODUCE},
    {"tune", CMD_TUNE},
    {"policy", CMD_POLICY_CHECK},
    {"lua-path", CMD_LUA_PATH},
    {"plan", CMD_PLAN},
    {"regret", CMD_REGRET},
    {"help", CMD_HELP},
    {"version", CMD_VERSION},
    {"limits", CMD_LIMITS},
    {"state", CMD_STATE},
    {"top", CMD_TOP},
};
static const struct command policy_verbs[] = {
    {"check", CMD_POLICY_CHECK},   {"test", CMD_POLICY_TEST},         {"why", CMD_POLICY_WHY},
    {"step", CMD_POLICY_STEP},     {"new", CMD_POLICY_NEW},           {"push", CMD_POLICY_PUSH},
    {"list", CMD_POLICY_LIST},     {"show", CMD_POLICY_SHOW},         {"diff", CMD_POLICY_DIFF},
    {"log", CMD_POLICY_LOG},       {"activate", CMD_POLICY_ACTIVATE}, {"rollback", CMD_POLICY_ROLLBACK},
    {"shadow", CMD_POLICY_SHADOW}, {"what-if", CMD_POLICY_WHAT_IF},   {"canary", CMD_POLICY_CANARY}};
enum { N_COMMANDS = sizeof commands / sizeof *commands, N_VERBS = sizeof policy_verbs / sizeof *policy_verbs };

/* NULL: there is none; near: the one that was probably meant, or NULL. */
static const struct command *find_command(const struct command *from, int n, const char *word, const char **near)
{
    const char *words[N_COMMANDS];
    for (int i = 0; i < n; i++) {
        words[i] = from[i].word;
        if (word && !strcmp(word, from[i].word))
            return &from[i];
    }
    *near = word ? nearest_word(word, words, n) : NULL;
    return NULL;
}

static bool is_help(const char *word)
{
    return word && (!strcmp(word, "--help") || !strcmp(word, "-h"));
}

static int policy_verb(struct parse *p)
{
    const char *verb = next_word(p), *near = NULL;
    p->o->help_for = CMD_POLICY_CHECK;
    if (is_help(verb))
        return 0;
    const struct command *c = find_command(policy_verbs, N_VERBS, verb, &near);
    if (!c)
        return err_set(
            p->e, E_INPUT,
            "moonshift policy check, test, new, why, step, push, what-if, shadow, canary, list, show, diff, activate, "
            "rollback and log are what there is"
            "%s%.40s%s%s%s",
            verb ? ", not " : "", verb ? verb : "", near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    p->o->command = c->means;
    return 0;
}

/* moonshift help COMMAND; and what packagers call: moonshift help --man, moonshift help --completion SHELL. */
static int help_words(struct parse *p)
{
    const char *w = next_word(p), *near = NULL;
    if (w && !strcmp(w, "--man")) {
        p->o->form = FORM_MAN;
        return 0;
    }
    if (w && !strcmp(w, "--completion")) {
        w = next_word(p);
        p->o->form = w && !strcmp(w, "bash") ? FORM_BASH : FORM_ZSH;
        if (!w || (p->o->form == FORM_ZSH && strcmp(w, "zsh") != 0))
            return err_set(p->e, E_INPUT, "moonshift help --completion knows bash and zsh%s%.40s", w ? ", not " : "",
                           w ? w : "");
        return 0;
    }
    const struct command *c = find_command(commands, N_COMMANDS, w, &near);
    p->o->help_for = c && c->means != CMD_VERSION ? c->means : CMD_HELP;
    return 0;
}

static int command_word(struct parse *p)
{
    const char *w = next_word(p), *near = NULL;
    struct opts *o = p->o;
    o->command = o->help_for = CMD_HELP;
    if (!w)
        return err_set(
            p->e, E_INPUT,
            "a command is missing: moonshift serve MODEL, moonshift run MODEL, moonshift simulate --trace FILE, "
            "moonshift policy check FILE; "
            "moonshift --help tells more");
    if (!strcmp(w, "--version") || !strcmp(w, "-V")) {
        o->command = CMD_VERSION;
        return 0;
    }
    if (is_help(w))
        return 0;
    const struct command *c = find_command(commands, N_COMMANDS, w, &near);
    if (!c)
        return err_set(p->e, E_INPUT, "there is no command '%.40s'%s%s%s (moonshift --help lists all)", w,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    if (c->means == CMD_HELP)
        return help_words(p);
    if (!strcmp(c->word, "policy"))
        return policy_verb(p);
    o->command = c->means;
    return 0;
}

/* Those of this command first: a setting may have another default in another one. */
static int defaults(struct parse *p)
{
    int here = opts_where(p->o->command);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < p->n_rows; i++)
            if (p->rows[i].fallback && p->set_by[i] == FROM_NOWHERE && ((p->rows[i].where & here) == 0) == (pass == 1))
                TRY(assign(p, &p->rows[i], p->rows[i].name, p->rows[i].fallback, FROM_DEFAULT));
    return 0;
}

static void remember_given(struct parse *p)
{
    for (int i = 0; i < p->n_rows; i++)
        if (p->set_by[i] > FROM_DEFAULT && (p->rows[i].where & opts_where(p->o->command)) &&
            strcmp(p->rows[i].name, "scheduling-policy") != 0)
            opts_list_add(&p->o->given, opts_keep(p->o, p->rows[i].name, strlen(p->rows[i].name)));
}

int opts_parse(struct opts *o, const struct opts_input *in, struct err *e)
{
    struct err local = {0};
    struct parse p = {.o = o, .in = in, .at = 1, .e = e ? e : &local};
    memset(o, 0, sizeof *o);
    p.rows = opts_rows(&p.n_rows);
    TRY(command_word(&p));
    if (o->command == CMD_HELP || o->command == CMD_VERSION)
        return 0;
    p.set_by = mem_new((size_t)p.n_rows);
    int rc = command_line(&p);
    if (!rc && o->command != CMD_HELP)
        rc = environment(&p);
    if (!rc && o->command != CMD_HELP && o->config)
        rc = config_file(&p);
    if (!rc && o->command != CMD_HELP) {
        remember_given(&p);
        rc = defaults(&p);
    }
    if (!rc && o->command != CMD_HELP)
        rc = opts_cross_check(o, p.e);
    mem_free(p.set_by);
    return rc;
}

bool opts_given(const struct opts *o, const char *name)
{
    for (int i = 0; i < o->given.n; i++)
        if (!strcmp(o->given.items[i], name))
            return true;
    return false;
}

void opts_free(struct opts *o)
{
    for (int i = 0; i < o->owned.n; i++)
        mem_free(o->owned.items[i]);
    list_drop(&o->owned);
    list_drop(&o->given);
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int i = 0; i < n; i++) /* the table knows every list; an alias of one finds it empty */
        if (rows[i].kind == OPT_LIST)
            list_drop((struct strings *)(void *)((char *)o + rows[i].offset));
    memset(o, 0, sizeof *o);
}
