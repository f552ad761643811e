/* Template source to tokens: jinja2's lexer with trim_blocks and lstrip_blocks on. Runs at compile time in the
 * template's arena. Invariant: a token list ends with T_EOF, even after an error. */
#ifndef MODELS_TEMPLATE_LEX_H
#define MODELS_TEMPLATE_LEX_H

#include "models/template/value.h"

enum token_type {
    T_EOF,
    T_DATA,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON
};

struct token {
    enum token_type type;
    int line;
    const char *text; /* data, names and operators as written; strings without escapes */
    size_t len;
    struct value value; /* of numbers */
};

/* What compiling shares: where memory comes from and the first error. */
struct compile {
    struct arena *arena;
    struct err error; /* code 0: none */
    struct token *tokens;
    size_t n_tokens, cap_tokens;
};

int c_fail(struct compile *c, int code, int line, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static inline bool c_failed(const struct compile *c)
{
    return c->error.code != 0;
}
void c_check_size(struct compile *c, int line); /* fails when the template took too much memory to compile */
/* Fills c->tokens. 0 or the error's code. */
int jinja_lex(struct compile *c, const char *source, size_t n);
const char *token_name(enum token_type t); /* for messages: "','", "a name", "the end of the template" */

#endif
