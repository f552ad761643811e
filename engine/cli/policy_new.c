#include "engine/cli/policy_new.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/cli/policy_ref.h"
#include "lua/host.h"

/* Everything that most policies have, and a test of each decision. */
static const char beginning[] =
    "-- What this policy is for, in a sentence or two. docs/policies-reference.md has all that a policy can do.\n"
    "\n"
    "return {\n"
    "  api = 1,\n"
    "  doc = \"Short prompts first; waiting makes up for length.\", -- one line, shown where policies are listed\n"
    "\n"
    "  -- What an operator can change while it is live: p.NAME.\n"
    "  params = {\n"
    "    patience = { default = 5, min = 0, max = 1000, unit = \"s/1000 tokens\", doc = \"sets a long prompt back\" "
    "},\n"
    "    budget = { default = 2048, min = 1, type = \"integer\", unit = \"tokens/step\", doc = \"the most\" },\n"
    "  },\n"
    "\n"
    "  -- A request arrives: its place in the queue, smaller is sooner. act.refuse and act.hold are possible here.\n"
    "  admit = function(request, view, act, p)\n"
    "    return request.arrival + request.prompt / 1000 * p.patience\n"
    "  end,\n"
    "\n"
    "  -- A group of ranks may take a step: who runs in it.\n"
    "  step = function(view, act, p)\n"
    "    act.widen() -- where no group can hold the first request, a wider one is asked for\n"
    "    for _, group in ipairs(view.idle) do\n"
    "      local batch = act.batch(group)\n"
    "      batch:decodes() -- the next token of each running request\n"
    "      batch:prefill(view.waiting, p.budget) -- then prompts in the queue's order, until the budget is used\n"
    "      if batch.tokens > 0 then act.forward(group, batch) end\n"
    "    end\n"
    "  end,\n"
    "\n"
    "  -- Run at every load: a policy whose tests fail does not go live. t.step makes up a situation.\n"
    "  tests = {\n"
    "    [\"a short prompt goes first\"] = function(t)\n"
    "      local plan = t.step {\n"
    "        max_num_seqs = 1, waiting = { { name = \"long\", prompt = 900 }, { name = \"short\", prompt = 9 } },\n"
    "      }\n"
    "      assert(plan[1].name == \"short\")\n"
    "    end,\n"
    "    [\"a long one that has waited goes first\"] = function(t)\n"
    "      local plan = t.step { now = 60, max_num_seqs = 1, waiting = {\n"
    "        { name = \"long\", prompt = 900, arrival = 10 }, { name = \"short\", prompt = 9, arrival = 59 } } }\n"
    "      assert(plan[1].name == \"long\")\n"
    "    end,\n"
    "  },\n"
    "}\n";

/* A new file, whole or not at all. */
static int create(const char *path, const char *text, size_t n, struct err *e)
{
    FILE *f = fopen(path, "wxe");
    if (!f && errno == EEXIST)
        return err_set(e, E_INPUT, "%.200s is there already: it is left as it is", path);
    if (!f)
        return err_set(e, E_SYS, "%.200s cannot be written: %s", path, strerror(errno));
    bool good = fwrite(text, 1, n, f) == n;
    if (fclose(f) || !good) {
        int rc = err_set(e, E_SYS, "%.200s cannot be written: %s", path, strerror(errno));
        unlink(path);
        return rc;
    }
    printf("%s\n", path);
    return 0;
}

struct template
{
    struct buf source;
    char path[PATH_MAX], libs[POLICY_LIBS_TEXT]; /* "": it is the one to begin with; names with spaces between */
};

/* What a policy is that is to be copied: its text, and the libraries that it takes. */
static int read_template(const struct policy_new *n, struct template *t, struct err *e)
{
    struct policy_ref ref;
    struct policy p = {0};
    char folder[PATH_MAX];
    int rc = policy_ref_read(&ref, n->from, &(struct strings){0}, e);
    if (!rc && (ref.params.n || !strcmp(ref.name, "native")))
        rc = err_set(e, E_INPUT, "--from wants a policy's NAME or FILE, not '%.60s'", n->from);
    if (!rc)
        rc = policy_ref_path(&ref, n->dir, t->path, e);
    if (!rc)
        rc = file_read(&t->source, t->path, LUA_SOURCE_BYTES, e);
    file_folder(t->path, folder, sizeof folder);
    const char *slash = strrchr(t->path, '/');
    struct lua_opts o = {.quiet = true, .again = true, .folder = folder};
    if (!rc)
        rc = lua_policy_load(&p, slash ? slash + 1 : t->path, t->source.data ? t->source.data : "", t->source.len, &o,
                             NULL, e);
    if (!rc) {
        memcpy(t->libs, p.libs, sizeof t->libs);
        p.ops->destroy(p.ctx);
    }
    policy_ref_free(&ref);
    return rc ? err_prefix(e, rc, "--from %.60s", n->from) : 0;
}

/* One library: copied, unless the same is there. */
static int copy_lib(const char *from, const char *to, const char *name, bool write, struct err *e)
{
    struct buf mine = {0}, there = {0};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3000s/lib/%.60s.lua", from, name);
    int rc = file_read(&mine, path, LUA_SOURCE_BYTES, e);
    snprintf(path, sizeof path, "%.3000s/lib/%.60s.lua", to, name);
    bool is_there = access(path, F_OK) == 0;
    if (!rc && is_there)
        rc = file_read(&there, path, LUA_SOURCE_BYTES, e);
    if (!rc && is_there && (there.len != mine.len || (mine.len && memcmp(there.data, mine.data, mine.len) != 0)))
        rc = err_set(e, E_INPUT, "%.200s is there already, and is another one: give the policy a folder of its own",
                     path);
    if (!rc && !is_there && write)
        rc = create(path, mine.data ? mine.data : "", mine.len, e);
    buf_free(&mine);
    buf_free(&there);
    return rc;
}

/* First all are looked at, then those that are missing are written. */
static int copy_libs(const struct template *t, const char *to, struct err *e)
{
    char from[PATH_MAX], lib[PATH_MAX];
    file_folder(t->path, from, sizeof from);
    for (int write = 0; write < 2; write++) {
        snprintf(lib, sizeof lib, "%.4000s/lib", to);
        if (write && t->libs[0] && mkdir(lib, 0777) < 0 && errno != EEXIST)
            return err_set(e, E_SYS, "%.200s cannot be made: %s", lib, strerror(errno));
        for (const char *at = t->libs; *at;) {
            char name[NAME_BYTES];
            size_t len = strcspn(at, " ");
            snprintf(name, sizeof name, "%.*s", (int)len, at);
            TRY(copy_lib(from, to, name, write, e));
            at += len + (at[len] == ' ');
        }
    }
    return 0;
}

/* NAME.lua, where its name is one that a server takes. */
static int read_path(const char *name, char out[PATH_MAX], struct err *e)
{
    struct policy p = {0};
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    size_t len = strlen(name), stem = strlen(base);
    bool has_end = stem > 4 && !strcmp(base + stem - 4, ".lua");
    struct lua_opts o = {.quiet = true, .again = true};
    static const char least[] = "return { api = 1, step = function() end }";
    TRY(lua_policy_load(&p, base, least, sizeof least - 1, &o, NULL, e));
    p.ops->destroy(p.ctx);
    if (len >= PATH_MAX - 40)
        return err_set(e, E_INPUT, "the path is too long: %.60s...", name);
    snprintf(out, PATH_MAX, "%s%s", name, has_end ? "" : ".lua");
    return access(out, F_OK) ? 0 : err_set(e, E_INPUT, "%.200s is there already: it is left as it is", out);
}

int policy_new(const struct policy_new *n, struct err *e)
{
    struct template t = {0};
    char path[PATH_MAX], folder[PATH_MAX];
    TRY(read_path(n->name, path, e));
    file_folder(path, folder, sizeof folder);
    if (!n->from)
        buf_puts(&t.source, beginning);
    int rc = n->from ? read_template(n, &t, e) : 0;
    if (!rc)
        rc = copy_libs(&t, folder, e);
    if (!rc)
        rc = create(path, t.source.data ? t.source.data : "", t.source.len, e);
    if (!rc)
        printf("next: moonshift policy test %s; moonshift simulate --trace FILE --policy fcfs --policy %s%s\n", path,
               strchr(path, '/') ? "" : "./", path);
    buf_free(&t.source);
    return rc;
}
