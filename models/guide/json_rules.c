#include "models/guide/json_rules.h"

#include <string.h>

#include "models/guide/regex.h"

enum { MOST_INDENT = 40 };

void json_rules_init(struct json_rules *s)
{
    *s = (struct json_rules){
        .spaces = -1, .character = -1, .text = -1, .number = -1, .integer = -1, .any = -1, .object = -1, .array = -1};
}

int32_t rule_spaces(struct json_rules *s, int32_t next)
{
    struct grammar_maker *m = &s->m;
    if (s->spaces < 0) {
        const struct grammar_set blank = {{(uint64_t)1 << ' ' | (uint64_t)1 << '\t'}};
        int32_t end = grammar_end(m), indent = end;
        for (int i = 0; i < MOST_INDENT; i++)
            indent = grammar_split(m, grammar_set(m, &blank, indent), end);
        s->spaces = grammar_rule(m);
        grammar_make_rule(
            m, s->spaces,
            grammar_split(m, end, grammar_split(m, grammar_byte(m, ' ', end), grammar_byte(m, '\n', indent))));
    }
    return grammar_call(m, s->spaces, next);
}

static int32_t hex_digit(struct grammar_maker *m, int32_t next)
{
    return grammar_split(m, grammar_range(m, '0', '9', next),
                         grammar_split(m, grammar_range(m, 'a', 'f', next), grammar_range(m, 'A', 'F', next)));
}

/* Four digits behind \u, of no half of a surrogate pair. */
static int32_t code_unit(struct grammar_maker *m, int32_t next)
{
    int32_t one = hex_digit(m, next), two = hex_digit(m, one), three = hex_digit(m, two),
            d = grammar_split(m, grammar_byte(m, 'd', grammar_range(m, '0', '7', two)),
                              grammar_byte(m, 'D', grammar_range(m, '0', '7', two)));
    int32_t low = grammar_split(m, grammar_range(m, 'a', 'c', three), grammar_range(m, 'e', 'f', three)),
            high = grammar_split(m, grammar_range(m, 'A', 'C', three), grammar_range(m, 'E', 'F', three));
    return grammar_split(m, grammar_split(m, grammar_range(m, '0', '9', three), d), grammar_split(m, low, high));
}

/* One character of a string. */
int32_t rule_character(struct json_rules *s, int32_t next)
{
    struct grammar_maker *m = &s->m;
    if (s->character < 0) {
        struct grammar_set plain = {{0}}, escaped = {{0}};
        for (int b = ' '; b < 0x80; b++)
            if (b != '"' && b != '\\')
                plain.bits[b >> 6] |= (uint64_t)1 << (b & 63);
        for (const char *p = "\"\\/bfnrt"; *p; p++)
            escaped.bits[*p >> 6] |= (uint64_t)1 << (*p & 63);
        int32_t end = grammar_end(m),
                behind = grammar_split(m, grammar_set(m, &escaped, end), grammar_byte(m, 'u', code_unit(m, end)));
        s->character = grammar_rule(m);
        grammar_make_rule(m, s->character,
                          grammar_split(m, grammar_set(m, &plain, end),
                                        grammar_split(m, grammar_wide(m, end), grammar_byte(m, '\\', behind))));
    }
    return grammar_call(m, s->character, next);
}

int32_t rule_text(struct json_rules *s, int32_t next)
{
    struct grammar_maker *m = &s->m;
    if (s->text < 0) {
        int32_t loop = grammar_open(m, grammar_byte(m, '"', grammar_end(m)));
        grammar_close(m, loop, rule_character(s, loop));
        s->text = grammar_rule(m);
        grammar_make_rule(m, s->text, grammar_byte(m, '"', loop));
    }
    return grammar_call(m, s->text, next);
}

/* A rule that a regular expression of ours makes. */
static int32_t by_regex(struct json_rules *s, int32_t *rule, const char *pattern, int32_t next)
{
    struct err e;
    int32_t first;
    if (*rule < 0 && !regex_make(&s->m, pattern, false, grammar_end(&s->m), &first, &e)) {
        *rule = grammar_rule(&s->m);
        grammar_make_rule(&s->m, *rule, first);
    }
    return grammar_call(&s->m, *rule, next);
}

int32_t rule_number(struct json_rules *s, int32_t next)
{
    static const char pattern[] = "-?(0|[1-9][0-9]{0,15})([.][0-9]{1,15})?([eE][-+]?[0-9]{1,2})?";
    return by_regex(s, &s->number, pattern, next);
}

int32_t rule_integer(struct json_rules *s, int32_t next)
{
    return by_regex(s, &s->integer, "-?(0|[1-9][0-9]{0,15})", next);
}

int32_t rule_word(struct json_rules *s, const char *w, int32_t next)
{
    return grammar_text(&s->m, w, strlen(w), next);
}

/* Members or items, any number of them, with commas between: one(next) makes one of them. */
static int32_t list_of(struct json_rules *s, int32_t (*one)(struct json_rules *, int32_t), char open, char close)
{
    struct grammar_maker *m = &s->m;
    int32_t end = grammar_byte(m, (unsigned char)close, grammar_end(m)), more = grammar_open(m, rule_spaces(s, end));
    grammar_close(m, more, grammar_byte(m, ',', rule_spaces(s, one(s, more))));
    return grammar_byte(m, (unsigned char)open, rule_spaces(s, grammar_split(m, one(s, more), end)));
}

static int32_t any_member(struct json_rules *s, int32_t next)
{
    return rule_text(s, grammar_byte(&s->m, ':', rule_spaces(s, rule_value(s, next))));
}

int32_t rule_object(struct json_rules *s, int32_t next)
{
    if (s->object < 0) {
        s->object = grammar_rule(&s->m);
        grammar_make_rule(&s->m, s->object, list_of(s, any_member, '{', '}'));
    }
    return grammar_call(&s->m, s->object, next);
}

static int32_t any_array(struct json_rules *s, int32_t next)
{
    if (s->array < 0) {
        s->array = grammar_rule(&s->m);
        grammar_make_rule(&s->m, s->array, list_of(s, rule_value, '[', ']'));
    }
    return grammar_call(&s->m, s->array, next);
}

int32_t rule_value(struct json_rules *s, int32_t next)
{
    struct grammar_maker *m = &s->m;
    if (s->any < 0) {
        int32_t end = grammar_end(m);
        s->any = grammar_rule(m);
        int32_t words = grammar_split(m, rule_word(s, "true", end),
                                      grammar_split(m, rule_word(s, "false", end), rule_word(s, "null", end))),
                plain = grammar_split(m, rule_text(s, end), grammar_split(m, rule_number(s, end), words));
        grammar_make_rule(m, s->any, grammar_split(m, grammar_split(m, rule_object(s, end), any_array(s, end)), plain));
    }
    return grammar_call(m, s->any, next);
}
