/* The table of settings: one row each. Constant data, any thread. Invariant: every setting is a row. */
#ifndef CLI_OPTS_TABLE_H
#define CLI_OPTS_TABLE_H

#include "engine/cli/opts.h"

enum opt_kind {
    OPT_TEXT,
    OPT_LIST,   /* may be given several times; each adds */
    OPT_CHOICE, /* text, one of choices */
    OPT_COUNT,  /* int64, human sizes allowed */
    OPT_SEED,   /* uint64 */
    OPT_NUMBER, /* double */
    OPT_SWITCH, /* bool: --x, --no-x; a config file says true or false */
};

enum opt_group {
    GROUP_MODEL,
    GROUP_SCHEDULING,
    GROUP_MEMORY,
    GROUP_MACHINE,
    GROUP_TRAFFIC,
    GROUP_SERVER,
    GROUP_LOGS,
    GROUP_CHAT,
    GROUP_RESULTS,
    GROUP_COUNT
};

enum {
    IN_SERVE = 1,
    IN_RUN = 2,
    IN_CHECK = 4,
    SECRET = 8,
    IN_SIMULATE = 16,
    IN_REPRODUCE = 32,
    IN_TUNE = 64,
    IN_TEST = 128,
    IN_PATH = 256,
    IN_BATCH = 512,
    IN_PLAN = 1024,
    IN_REGRET = 2048,
    IN_ONE = 4096, /* simulate, and no search over simulations */
    IN_PUSH = 1 << 13,
    IN_LIST = 1 << 14,
    IN_SHOW = 1 << 15,
    IN_DIFF = 1 << 16,
    IN_ACTIVATE = 1 << 17,
    IN_ROLLBACK_OF = 1 << 18,
    IN_LOG = 1 << 19,
    IN_WHY = 1 << 20,
    IN_NEW = 1 << 21,
    IN_STEP = 1 << 22,
    IN_SHADOW_OF = 1 << 23,
    IN_LIMITS_OF = 1 << 24,
    IN_STATE_OF = 1 << 25,
    IN_TOP = 1 << 26,
    IN_WHAT_IF = 1 << 27,
    IN_CANARY_OF = 1 << 28,
    IN_REVISIT = IN_STEP | IN_WHY, /* looks into a recording */
    IN_REMOTE = IN_PUSH | IN_LIST | IN_SHOW | IN_DIFF | IN_ACTIVATE | IN_ROLLBACK_OF | IN_LOG | IN_WHY | IN_SHADOW_OF |
                IN_LIMITS_OF | IN_STATE_OF | IN_TOP | IN_WHAT_IF | IN_CANARY_OF
};

struct opt_row {
    const char *name;  /* without the dashes */
    const char *alias; /* another long name, or NULL */
    char letter;       /* -c; 0: none */
    enum opt_kind kind;
    enum opt_group group;
    int where;            /* IN_SERVE | ... | SECRET */
    size_t offset;        /* into struct opts */
    const char *value;    /* how --help names the value */
    const char *fallback; /* the default, as text; NULL: none */
    double min, max;      /* of counts and numbers */
    const char *choices;  /* separated by | */
    const char *doc;
};

/* A flag of vLLM's that is known and not offered. */
struct opt_foreign {
    const char *name; /* all its spellings, separated by | ; long ones without dashes, short ones with one */
    bool takes_value;
    const char *harmless; /* the value with which it changes nothing here; "*": any; NULL: none */
    const char *why;
};

const struct opt_row *opts_rows(int *n);
const char *opts_command_name(enum opts_command c);
int opts_where(enum opts_command c); /* the bit of a command: IN_SERVE, ... */
const struct opt_foreign *opts_foreign(int *n);
const char *opts_group_name(enum opt_group g);
const char *opts_head(enum opts_command c);                   /* what --help says before the flags */
bool opts_default_on(const struct opt_row *r);                /* a switch that is true unless --no-NAME is given */
void opts_row_text(const struct opt_row *r, struct buf *out); /* its doc, choices, default and alias, in one line */
char *opts_keep(struct opts *o, const char *text, size_t n);  /* a copy that lives as long as o */
void opts_list_add(struct strings *l, char *item);
/* --speculative-config in words of this program: --policy arctic and its parameter. E_UNSUPPORTED: a way to draft that
 * is not offered. */
int opts_take_speculative(struct opts *o, struct err *e);
/* What no single row can know: settings that need or exclude one another. */
int opts_cross_check(struct opts *o, struct err *e);

#endif
