#include <string.h>

#include "engine/base/mem.h"
#include "engine/cli/opts_table.h"

enum { TEXT_COLUMN = 36, WIDTH = 100 };

/* Text from a column on, wrapped at blanks. */
static void wrapped(struct buf *out, const char *text, size_t at)
{
    while (*text) {
        size_t len = strcspn(text, " ");
        if (at + len + 1 > WIDTH && at > TEXT_COLUMN) {
            buf_printf(out, "\n%*s", TEXT_COLUMN, "");
            at = TEXT_COLUMN;
        } else if (at > TEXT_COLUMN) {
            buf_putc(out, ' ');
            at++;
        }
        buf_put(out, text, len);
        at += len;
        text += len + (text[len] == ' ');
    }
}

bool opts_default_on(const struct opt_row *r)
{
    return r->kind == OPT_SWITCH && r->fallback && !strcmp(r->fallback, "true");
}

void opts_row_text(const struct opt_row *r, struct buf *out)
{
    size_t before = out->len;
    if (opts_default_on(r))
        buf_puts(out, "off: ");
    if (r->doc)
        buf_puts(out, r->doc);
    if (r->choices)
        buf_printf(out, "%s%s", out->len > before ? "; one of " : "one of ", r->choices);
    if (r->fallback && r->kind != OPT_SWITCH)
        buf_printf(out, "%s(default %s)", out->len > before ? " " : "", r->fallback);
    if (r->alias)
        buf_printf(out, " (also --%s)", r->alias);
}

static void row_help(struct buf *out, const struct opt_row *r)
{
    struct buf left = {0}, right = {0};
    buf_puts(&left, "  ");
    if (r->letter)
        buf_printf(&left, "-%c, ", r->letter);
    buf_printf(&left, "--%s%s", opts_default_on(r) ? "no-" : "", r->name);
    if (r->value)
        buf_printf(&left, " %s", r->value);
    opts_row_text(r, &right);
    if (left.len >= TEXT_COLUMN - 1) {
        buf_printf(out, "%s\n%*s", left.data, TEXT_COLUMN, "");
    } else {
        buf_printf(out, "%-*s", TEXT_COLUMN, left.data);
    }
    wrapped(out, right.len ? right.data : "", TEXT_COLUMN);
    buf_putc(out, '\n');
    buf_free(&left);
    buf_free(&right);
}

static void flags_help(struct buf *out, int bit)
{
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int g = 0; g < GROUP_COUNT; g++) {
        bool titled = false;
        for (int i = 0; i < n; i++) {
            if ((int)rows[i].group != g || !(rows[i].where & bit))
                continue;
            if (!titled)
                buf_printf(out, "\n%s\n", opts_group_name((enum opt_group)g));
            titled = true;
            row_help(out, &rows[i]);
        }
    }
}

static const char overview[] =
    "moonshift: serves language models, scheduled by Lua scripts that can be edited while it serves.\n"
    "\n"
    "  moonshift serve MODEL [flags]          an OpenAI-compatible server\n"
    "  moonshift run MODEL [PROMPT] [flags]   one answer, or a chat at the terminal\n"
    "  moonshift batch MODEL -i F -o F        a file of requests, without a server\n"
    "  moonshift simulate --trace T [flags]   what would policies do to this traffic? in virtual time\n"
    "  moonshift tune --objective M [flags]   which params of a policy are best for this traffic?\n"
    "  moonshift plan --shape S [flags]       which layouts, weights and policy suit this traffic?\n"
    "  moonshift regret --trace T [flags]     how much do policies leave on the table?\n"
    "  moonshift reproduce [flags]            published numbers beside simulated ones\n"
    "  moonshift policy check FILE            would this policy be accepted, and what does it cost?\n"
    "  moonshift policy test FILE|FOLDER      run a policy's own tests and its busted specs\n"
    "  moonshift policy why ID                where the time of a request went, and why it waited\n"
    "  moonshift policy step N --recording F  what a recorded decision rests on, line by line\n"
    "  moonshift policy new NAME              write a policy to begin with\n"
    "  moonshift policy push FILE             send a policy to a running server; also: what-if, shadow, canary,\n"
    "                                         list, show, diff, activate, rollback, log\n"
    "  moonshift state                        what a running server does, on one page\n"
    "  moonshift top                          the same, as it changes\n"
    "  moonshift limits [--set NAME=VALUE]    the limits of a running server, and how to change them\n"
    "  moonshift lua-path                     where busted finds the module that specs use\n"
    "  moonshift --version\n"
    "\n"
    "moonshift COMMAND --help lists the flags of each. MODEL is a GGUF file or a Hugging Face folder.\n";

static const char serve_head[] =
    "moonshift serve MODEL [flags]\n"
    "\n"
    "Serves MODEL (a GGUF file or a folder) over HTTP with OpenAI's API: /v1/chat/completions, /v1/completions,\n"
    "/v1/models, /tokenize, /metrics and more. SIGTERM or Ctrl-C lets the running answers end first; a second one\n"
    "stops at once.\n"
    "\n"
    "  moonshift serve model.gguf --port 8000 --max-model-len 8k --policy fair\n"
    "\n"
    "Counts take suffixes: 32k = 32,000, 32K = 32,768, 2GiB. Each flag can also be set as MOONSHIFT_FLAG_NAME in\n"
    "the environment (a MOONSHIFT_ variable that names no flag is an error), or as \"flag-name: value\" in a file\n"
    "named by --config; the command line wins, then the environment.\n";

static const char run_head[] =
    "moonshift run MODEL [PROMPT] [flags]\n"
    "\n"
    "Answers PROMPT and exits. Text from standard input, when that is not a terminal, goes before PROMPT, or is the\n"
    "prompt. Without either it chats, with line editing and a history: Ctrl-C stops an answer, Ctrl-D or /quit ends\n"
    "the chat, /help lists the rest. NO_COLOR is respected.\n"
    "\n"
    "  moonshift run model.gguf \"What is the capital of France?\"\n"
    "  moonshift run model.gguf --system \"Answer in one word.\" --temperature 0\n"
    "  cat notes.txt | moonshift run model.gguf \"Sum this up in a sentence.\"\n";

static const char simulate_head[] =
    "moonshift simulate --trace FILE|GENERATOR [--policy NAME|FILE ...] [flags]\n"
    "\n"
    "Replays recorded or generated traffic through the real engine in virtual time, once for each policy, and\n"
    "compares what clients would have seen. Only the time of a step is modelled; requests, queue, KV cache, policy\n"
    "and layouts are the server's own. The same flags give the same bytes, on any machine.\n"
    "\n"
    "  moonshift simulate --hardware h200x8 --model llama-3.3-70b-fp8 --trace last-night.csv --policy shift --policy "
    "static:dp=8\n"
    "\n"
    "A recording of serve --record has its own machine and limits. Under the policy that was live then, every\n"
    "decision is compared with the recorded one (exit status 1 where they differ); under any other, steps take the\n"
    "time that a model fitted to the recorded ones predicts.\n"
    "\n"
    "  moonshift simulate --trace tuesday.rec --policy flying --policy flying:many=2\n";

static const char reproduce_head[] =
    "moonshift reproduce [--only WORD ...] [--bars] [flags]\n"
    "\n"
    "Prints numbers that papers published beside what moonshift simulate says of the same machines, models, traffic\n"
    "and policies, with the error; and what cannot be reproduced, with the reason. Simulated numbers are\n"
    "predictions of a fitted model, never measurements.\n"
    "\n"
    "  moonshift reproduce --only \"Table 5\"\n"
    "  moonshift reproduce --hardware h200x8 --markdown table.md\n";

static const char tune_head[] =
    "moonshift tune --policy NAME|FILE --trace FILE|GENERATOR --objective METRIC [--subject-to \"METRIC <= VALUE\"]\n"
    "[flags]\n"
    "\n"
    "Searches the params that a policy declares for the values that are best for the objective on this traffic, in\n"
    "virtual time; prints the Pareto front that was found and writes the best as a file for --policy-params-file.\n"
    "The same flags and seed give the same bytes. All flags of moonshift simulate work here. Ctrl-C shows what was\n"
    "found so far.\n"
    "\n"
    "  moonshift tune --policy shift --hardware h200x8 --model llama-3.3-70b-fp8 --trace last-night.csv \\\n"
    "    --objective \"p99 TTFT\" --subject-to \"p99 TPOT <= 50ms\" --budget 40 --params-out best.json\n";

static const char plan_head[] =
    "moonshift plan --hardware NAME --model NAME --trace FILE|GENERATOR|--shape in=N,out=N,rate=R|batch=N [flags]\n"
    "\n"
    "Tries the layouts of a node and the ways its weights can lie on this traffic: all by a closed formula, the best\n"
    "in virtual time. Prints the best five for throughput, for the time to the first token and for that of each\n"
    "further one, with what a rank holds and the flags that start each. The flags of moonshift simulate work here,\n"
    "but for those that this command chooses.\n"
    "\n"
    "  moonshift plan --hardware h200x8 --model llama-3.3-70b-fp8 --shape in=4096,out=250,rate=4 --slo-ttft 2000\n";

static const char regret_head[] =
    "moonshift regret --trace FILE|GENERATOR [--policy NAME|FILE ...] [--metric METRIC ...] [flags]\n"
    "\n"
    "Simulates policies (default: all in the policy folder), fixed partitions, and schedules of partitions that are\n"
    "searched with the trace known. Prints how much worse than the best of all each policy is, its regret, and when\n"
    "the requests came that suffered from it. The same flags give the same bytes. Ctrl-C shows what was found so far.\n"
    "\n"
    "  moonshift regret --hardware h200x8 --model llama-3.3-70b-fp8 --trace last-night.csv --policy flying\n";

static const char check_head[] =
    "moonshift policy check FILE [--policy-param NAME=VALUE ...]\n"
    "\n"
    "Loads a policy as a server would: parses it, runs its own tests, lets it decide made-up situations twice, and\n"
    "reports what it declares and what each of its functions costs. Exit status 0: it would be accepted.\n";

static const char test_head[] =
    "moonshift policy test FILE|FOLDER [--watch]\n"
    "\n"
    "Runs the tests of a policy: those in its own file (and the made-up situations of policy check), and its busted\n"
    "specs, NAME_spec.lua beside NAME.lua or in spec/ there. A folder: all policies and specs in it, and the specs\n"
    "in its spec/. A spec runs alone. policies/TESTING.md shows how to write them.\n"
    "\n"
    "  moonshift policy test short.lua --watch\n"
    "\n"
    "Exit status 0: all passed; 1: something failed, or there is nothing to test; 2: the command line is wrong; 3:\n"
    "what was run has passed, but specs could not be run: busted or what it needs is missing (the output says what\n"
    "to install).\n";

#define REMOTE_STATUS                                                                                                  \
    "\nExit status 0: done; 1: the server refused, or what was verified is wrong; 2: the command line or a file is\n"  \
    "wrong; 3: the server does not answer. docs/policy-life.md tells more.\n"

static const char why_head[] =
    "moonshift policy why [ID] [--server URL | --recording FILE | --file TIMELINE.json]\n"
    "\n"
    "Where the time of a request went, and why it waited: the parts of its time to first token with a bar for\n"
    "each, then each span in its order. ID is the answer's id, or the X-Request-Id; without one, the slowest that\n"
    "a running server knows of. --recording replays what serve --record wrote, and answers as that server would\n"
    "have; there ID may also be the number that decisions give a request. --file reads what /admin/requests has\n"
    "answered before (- is stdin).\n"
    "\n"
    "  moonshift policy why cmpl-order-66\n"
    "  moonshift policy why --slowest 3 --recording tuesday.rec\n"
    "  curl -s 'http://127.0.0.1:8001/admin/requests?slowest=3' | moonshift policy why --file -\n" REMOTE_STATUS;

static const char step_head[] =
    "moonshift policy step N --recording FILE [--policy FILE ...] [flags]\n"
    "moonshift policy step --at SECONDS --recording FILE [--policy FILE ...] [flags]\n"
    "\n"
    "Replays what serve --record wrote up to one decision and shows it as a debugger would: the plan beside the\n"
    "recorded one, the facts that the policy saw, what it logged, and its source with a count beside each line that\n"
    "ran. N counts decisions from 1 on, as moonshift simulate counts them. The policy has to be the one that was\n"
    "live, to the byte.\n"
    "\n"
    "  moonshift policy step 31 --recording tuesday.rec\n"
    "\n"
    "In the source, 3x: it was begun three times; -: it has code, and was not reached.\n";

static const char new_head[] =
    "moonshift policy new NAME [--from NAME|FILE]\n"
    "\n"
    "Writes NAME.lua: a commented policy with tests that pass, to be changed. With --from it is a copy of another\n"
    "policy, and the libraries that it names are copied into lib/ beside it. A file that is there is never changed.\n"
    "\n"
    "  moonshift policy new mine\n"
    "  moonshift policy new policies/mine.lua --from prefix\n";

static const char push_head[] =
    "moonshift policy push FILE [--name NAME] [--no-activate] [--try [--seconds S]] [--server URL]\n"
    "\n"
    "Sends a policy to a running server: it is loaded, tried, kept as a version, and live from the next step on.\n"
    "With --try it is first simulated on the server's own last traffic, as by policy what-if.\n"
    "\n"
    "  moonshift policy push short.lua\n" REMOTE_STATUS;

static const char what_if_head[] =
    "moonshift policy what-if FILE|NAME [--sha SHA] [--seconds S] [--server URL]\n"
    "\n"
    "What would this policy have done to the last traffic of a running server? The server simulates it, and the live\n"
    "one, on the requests that it keeps in memory, beside its serving; nothing goes live. A file has a / or .lua in\n"
    "its name; else it is a version that the server keeps. A policy that fails in it is exit status 1.\n"
    "\n"
    "  moonshift policy what-if ./short.lua --seconds 300\n" REMOTE_STATUS;

static const char list_head[] =
    "moonshift policy list [--server URL]\n"
    "\n"
    "The versions that a running server keeps, and which of them is live, was live before, is\n"
    "the last good one, was refused, or is in quarantine.\n" REMOTE_STATUS;

static const char show_head[] = "moonshift policy show NAME [--sha SHA] [--server URL]\n"
                                "\n"
                                "The source of a version that a running server keeps.\n" REMOTE_STATUS;

static const char diff_head[] =
    "moonshift policy diff A [B] [--server URL]\n"
    "\n"
    "How A differs from the live policy, or B from A, as diff -u says it (which has to be installed). A and B are\n"
    "files (with a / or .lua in them), or NAME or NAME@SHA of a version that the server keeps.\n"
    "\n"
    "  moonshift policy diff ./short.lua\n" REMOTE_STATUS;

static const char activate_head[] =
    "moonshift policy activate NAME [--sha SHA] [--server URL]\n"
    "\n"
    "A version that a running server keeps goes live: the newest of that name, or another.\n" REMOTE_STATUS;

static const char rollback_head[] =
    "moonshift policy rollback [--to SHA] [--server URL]\n"
    "\n"
    "The version before the live one goes live again, or any earlier one.\n" REMOTE_STATUS;

static const char log_head[] =
    "moonshift policy log [FILE] [--verify] [--server URL]\n"
    "\n"
    "Who changed policies, when, and how it went: of a running server, or of FILE, the audit.jsonl of a --state-dir.\n"
    "\n"
    "  moonshift policy log --verify state/audit.jsonl\n" REMOTE_STATUS;

static const char shadow_head[] =
    "moonshift policy shadow [FILE|NAME] [--sha SHA] [--for SECONDS] [--end] [--server URL]\n"
    "\n"
    "A policy is asked beside the live one and changes nothing: at each decision what it would do is compared with\n"
    "what is done. FILE (with a / or .lua in it) is sent and kept, NAME is a version that the server keeps. Without\n"
    "either it shows what came of the one that runs, or ran last.\n"
    "\n"
    "  moonshift policy shadow ./short.lua --for 300\n"
    "  moonshift policy shadow\n" REMOTE_STATUS;

static const char canary_head[] =
    "moonshift policy canary [FILE|NAME] [--groups ID,ID] [--sha SHA] [--for SECONDS] [--end] [--server URL]\n"
    "\n"
    "A policy decides for some groups while the live one goes on with the others, and requests of both are compared.\n"
    "FILE (with a / or .lua in it) is sent and kept, NAME is a version that the server keeps. Without either it shows\n"
    "how requests fare on both sides of the one that runs, or ran last.\n"
    "\n"
    "  moonshift policy canary ./short.lua --groups 1,66 --for 900\n"
    "  moonshift policy canary\n" REMOTE_STATUS;

static const char limits_head[] =
    "moonshift limits [--set NAME=VALUE ...] [--server URL]\n"
    "\n"
    "The limits of a running server: as they are, as it was started, and what they may be set to. --set changes\n"
    "them while requests run; nobody is thrown out by a lower one.\n"
    "\n"
    "  moonshift limits --set max-num-seqs=64 --set max-num-queued-reqs=200\n" REMOTE_STATUS;

static const char state_head[] =
    "moonshift state [--server URL]\n"
    "\n"
    "What a running server does right now, on one page: the policy, requests, rates over half a second, limits, the\n"
    "queue by priority, whom the policy holds and why, groups and their layouts, KV by rank and tier.\n" REMOTE_STATUS;

static const char top_head[] =
    "moonshift top [--server URL]\n"
    "\n"
    "The page of moonshift state, once a second, until q or Ctrl-C. Where standard output is no terminal it is\n"
    "printed once.\n" REMOTE_STATUS;

static const char batch_head[] =
    "moonshift batch MODEL -i LINES.jsonl -o ANSWERS.jsonl [flags]\n"
    "\n"
    "Answers a file of requests, OpenAI's batch lines for /v1/chat/completions, /v1/completions, /v1/responses and,\n"
    "with an encoder, /v1/embeddings, without a server.\n"
    "Answers come in the order of the input, those of refused requests in ANSWERS.jsonl.errors. A job that was\n"
    "killed goes on with the same command, and no line is answered twice or lost.\n"
    "\n"
    "  moonshift batch model.gguf -i lines.jsonl -o answers.jsonl --max-num-seqs 256\n"
    "  moonshift batch encoder.gguf -i texts.jsonl -o vectors.jsonl\n";

static const char path_head[] = "moonshift lua-path [--cpath]\n"
                                "\n"
                                "Tells a shell where require(\"moonshift\") finds its module, from any folder:\n"
                                "\n"
                                "  eval \"$(moonshift lua-path)\"\n"
                                "  busted --lua=luajit --cpath=\"$(moonshift lua-path --cpath)\" short_spec.lua\n";

const char *opts_head(enum opts_command command)
{
    static const char *const heads[] = {[CMD_SERVE] = serve_head,
                                        [CMD_RUN] = run_head,
                                        [CMD_BATCH] = batch_head,
                                        [CMD_POLICY_CHECK] = check_head,
                                        [CMD_POLICY_TEST] = test_head,
                                        [CMD_LUA_PATH] = path_head,
                                        [CMD_SIMULATE] = simulate_head,
                                        [CMD_REPRODUCE] = reproduce_head,
                                        [CMD_TUNE] = tune_head,
                                        [CMD_PLAN] = plan_head,
                                        [CMD_REGRET] = regret_head,
                                        [CMD_POLICY_PUSH] = push_head,
                                        [CMD_POLICY_LIST] = list_head,
                                        [CMD_POLICY_SHOW] = show_head,
                                        [CMD_POLICY_DIFF] = diff_head,
                                        [CMD_POLICY_ACTIVATE] = activate_head,
                                        [CMD_POLICY_ROLLBACK] = rollback_head,
                                        [CMD_POLICY_LOG] = log_head,
                                        [CMD_POLICY_SHADOW] = shadow_head,
                                        [CMD_POLICY_CANARY] = canary_head,
                                        [CMD_LIMITS] = limits_head,
                                        [CMD_STATE] = state_head,
                                        [CMD_TOP] = top_head,
                                        [CMD_POLICY_WHAT_IF] = what_if_head,
                                        [CMD_POLICY_WHY] = why_head,
                                        [CMD_POLICY_STEP] = step_head,
                                        [CMD_POLICY_NEW] = new_head,
                                        [CMD_HELP] = overview,
                                        [CMD_VERSION] = overview};
    return heads[command];
}

void opts_help(enum opts_command command, struct buf *out)
{
    buf_puts(out, opts_head(command));
    if (command < CMD_HELP)
        flags_help(out, opts_where(command));
}

static void show_value(const struct opts *o, const struct opt_row *r, struct buf *out)
{
    const void *at = (const char *)o + r->offset;
    const struct strings *l = at;
    switch (r->kind) {
    case OPT_TEXT:
    case OPT_CHOICE:
        buf_printf(out, "%s--%s %s", out->len ? " " : "", r->name, *(char *const *)at);
        return;
    case OPT_LIST:
        for (int i = 0; i < l->n; i++)
            buf_printf(out, "%s--%s %s", out->len ? " " : "", r->name, r->where & SECRET ? "***" : l->items[i]);
        return;
    case OPT_COUNT:
        buf_printf(out, "%s--%s %lld", out->len ? " " : "", r->name, (long long)*(const int64_t *)at);
        return;
    case OPT_SEED:
        buf_printf(out, "%s--%s %llu", out->len ? " " : "", r->name, (unsigned long long)*(const uint64_t *)at);
        return;
    case OPT_NUMBER:
        buf_printf(out, "%s--%s %g", out->len ? " " : "", r->name, *(const double *)at);
        return;
    case OPT_SWITCH:
        buf_printf(out, "%s--%s%s", out->len ? " " : "", *(const bool *)at ? "" : "no-", r->name);
        return;
    }
}

void opts_show(const struct opts *o, struct buf *out)
{
    int n;
    const struct opt_row *rows = opts_rows(&n);
    for (int g = 0; g < o->given.n; g++)
        for (int i = 0; i < n; i++)
            if (!strcmp(rows[i].name, o->given.items[g]) && (rows[i].where & opts_where(o->command)))
                show_value(o, &rows[i], out);
}

static void add_word(struct strings *out, struct buf *word)
{
    out->items = mem_resize(out->items, (size_t)out->n + 1, sizeof *out->items);
    out->items[out->n++] = buf_take(word);
}

static void add_words(const struct opts *o, const struct opt_row *r, struct strings *out)
{
    const void *at = (const char *)o + r->offset;
    const struct strings *l = at;
    struct buf b = {0};
    int n = r->kind == OPT_LIST ? l->n : 1;
    for (int i = 0; i < n; i++) {
        buf_printf(&b, "--%s%s=", r->kind == OPT_SWITCH && !*(const bool *)at ? "no-" : "", r->name);
        switch (r->kind) {
        case OPT_TEXT:
        case OPT_CHOICE:
            buf_puts(&b, *(char *const *)at);
            break;
        case OPT_LIST:
            buf_puts(&b, l->items[i]);
            break;
        case OPT_COUNT:
            buf_printf(&b, "%lld", (long long)*(const int64_t *)at);
            break;
        case OPT_SEED:
            buf_printf(&b, "%llu", (unsigned long long)*(const uint64_t *)at);
            break;
        case OPT_NUMBER:
            buf_printf(&b, "%.17g", *(const double *)at);
            break;
        case OPT_SWITCH:
            b.data[--b.len] = 0;
            break; /* it takes no value */
        }
        add_word(out, &b);
    }
}

void opts_args(const struct opts *o, enum opts_command command, const char *const *but, struct strings *out)
{
    int n;
    const struct opt_row *rows = opts_rows(&n);
    struct buf first = {0};
    buf_puts(&first, opts_command_name(command));
    add_word(out, &first);
    for (int g = 0; g < o->given.n; g++) {
        bool left = false;
        for (int i = 0; but[i]; i++)
            left = left || !strcmp(but[i], o->given.items[g]);
        for (int i = 0; i < n && !left; i++)
            if (!strcmp(rows[i].name, o->given.items[g]) && (rows[i].where & opts_where(command)))
                add_words(o, &rows[i], out);
    }
}
