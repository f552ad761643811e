#include "engine/cli/policy_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/cli/opts.h"
#include "engine/base/places.h"
#include "lua/host.h"

enum { POLL_MS = 200, MAX_FILES = 1000 };
static const char spec_end[] = "_spec.lua";

extern char **environ;

static const char no_module[] = "the Lua module (moonshift.so) is not beside this program: cmake --build build "
                                "--target module, or install it with cmake --install build";

/* What there is to run, in the order of names. */
struct found {
    struct strings policies, specs,
        shared;            /* shared: what lies beside specs in spec/, and libraries in lib/, to be watched */
    char folder[PATH_MAX]; /* of the policies */
};

/* ---- which files */

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

static void add(struct strings *l, const char *folder, const char *name)
{
    struct buf b = {0};
    buf_printf(&b, "%s/%s", folder, name);
    l->items = mem_resize(l->items, (size_t)l->n + 1, sizeof *l->items);
    l->items[l->n++] = buf_take(&b);
}

static void drop(struct strings *l)
{
    for (int i = 0; i < l->n; i++)
        mem_free(l->items[i]);
    mem_free(l->items);
    *l = (struct strings){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(struct strings *l)
{
    if (l->n)
        qsort(l->items, (size_t)l->n, sizeof *l->items, by_name);
}

/* The Lua files of a folder: specs to one list, the others to another. NULL: they are left out. */
static void list_folder(const char *folder, struct strings *policies, struct strings *specs)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *f; d && n < MAX_FILES && (f = readdir(d));) {
        struct strings *to = f->d_name[0] == '.' || !ends_in(f->d_name, ".lua") ? NULL
                             : ends_in(f->d_name, spec_end)                     ? specs
                                                                                : policies;
        if (to) {
            add(to, folder, f->d_name);
            n++;
        }
    }
    if (d)
        closedir(d);
}

static void list_specs_of(const char *folder, const char *policy, struct strings *specs)
{
    char name[PATH_MAX], path[PATH_MAX + 8];
    const char *slash = strrchr(policy, '/');
    const char *base = slash ? slash + 1 : policy;
    int stem = (int)strlen(base) - (ends_in(base, ".lua") ? 4 : 0);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s%.*s%s", i ? "spec/" : "", stem, base, spec_end);
        if (snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && access(path, R_OK) == 0)
            add(specs, folder, name);
    }
}

static int find(const char *path, struct found *f, struct err *e)
{
    struct stat st;
    char under[PATH_MAX];
    *f = (struct found){0};
    if (strlen(path) >= PATH_MAX - 40)
        return err_set(e, E_INPUT, "the path is too long: %.60s...", path);
    if (stat(path, &st) < 0)
        return err_set(e, E_NOTFOUND, "%s: %s", path, strerror(errno));
    const char *slash = strrchr(path, '/');
    if (S_ISDIR(st.st_mode)) {
        snprintf(f->folder, sizeof f->folder, "%s", path);
        list_folder(path, &f->policies, &f->specs);
    } else {
        snprintf(f->folder, sizeof f->folder, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");
        add(ends_in(path, spec_end) ? &f->specs : &f->policies, f->folder, slash ? slash + 1 : path);
        if (!f->specs.n)
            list_specs_of(f->folder, path, &f->specs);
    }
    snprintf(under, sizeof under, "%.4000s/spec", f->folder);
    list_folder(under, &f->shared, S_ISDIR(st.st_mode) ? &f->specs : NULL);
    snprintf(under, sizeof under, "%.4000s/lib", f->folder);
    list_folder(under, &f->shared, NULL);
    if (!f->policies.n && !f->specs.n)
        return err_set(e, E_NOTFOUND, "%s has no policy (NAME.lua) and no spec (NAME_spec.lua, here or in spec/)",
                       path);
    sort(&f->policies);
    sort(&f->specs);
    sort(&f->shared);
    return 0;
}

static void forget(struct found *f)
{
    drop(&f->policies);
    drop(&f->specs);
    drop(&f->shared);
}

/* ---- a policy's own tests */

static int own_tests(const char *path, struct lua_watchdog *dog)
{
    struct buf source = {0}, report = {0};
    struct err e = {0};
    const char *slash = strrchr(path, '/');
    char name[NAME_MAX + 1];
    char folder[PATH_MAX];
    file_folder(path, folder, sizeof folder);
    struct lua_opts o = {.watchdog = dog, .quiet = true, .folder = folder};
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : path);
    int rc = file_read(&source, path, LUA_SOURCE_BYTES, &e);
    if (!rc)
        rc = lua_policy_test(name, source.data ? source.data : "", source.len, &o, &report, &e);
    printf("%s\n%s", strncmp(path, "./", 2) ? path : path + 2, report.len ? report.data : "");
    if (rc && !report.len)
        printf("  FAIL %s\n", e.text);
    buf_free(&source);
    buf_free(&report);
    return rc ? POLICY_TEST_FAILED : POLICY_TEST_PASSED;
}

/* ---- the specs */

/* A program of PATH, where and with what it runs. */
struct program {
    char *const *argv;
    char *const *env;
    const char *folder; /* NULL: here, and what it says is not shown */
};

/* Runs it to its end. Its exit status, 128 + the signal that ended it, or -1: there is none of that name. */
static int run(const struct program *p)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    pid_t pid;
    int status = 0;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    if (p->folder) {
        posix_spawn_file_actions_addchdir_np(&files, p->folder);
    } else {
        posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
        posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    }
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attr, &none);
    int rc = posix_spawnp(&pid, p->argv[0], &files, &attr, p->argv, p->env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    if (rc)
        return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool is_there(const char *name, const char *flag)
{
    char *argv[] = {(char *)(uintptr_t)name, (char *)(uintptr_t)flag, NULL};
    return run(&(struct program){.argv = argv, .env = environ}) == 0;
}

/* What the specs lack to be run; NULL: nothing. */
static const char *lacking(const char *module)
{
    if (!module[0])
        return no_module;
    if (!is_there("luajit", "-v"))
        return "luajit is not here: apt-get install luajit (Debian, Ubuntu), dnf install luajit (Fedora), pacman -S "
               "luajit (Arch)";
    if (!is_there("busted", "--version"))
        return "busted is not here: apt-get install lua-busted (Debian, Ubuntu), dnf install lua-busted (Fedora), "
               "pacman -S busted (Arch), or luarocks install busted";
    return NULL;
}

/* NAME=before, and what the environment has of that name, or Lua's own (an empty element) where it has nothing. */
static char *prepended(const char *name, const char *before)
{
    struct buf b = {0};
    size_t n = strlen(name);
    const char *had = ";";
    for (char **v = environ; *v; v++)
        if (!strncmp(*v, name, n) && (*v)[n] == '=')
            had = *v + n + 1;
    buf_printf(&b, "%s=%s;%s", name, before, had);
    return buf_take(&b);
}

/* This environment, but for the two: Lua looks there first. busted's own flags for it go through a shell unquoted. */
static char **lua_environment(const char *cpath, const char *path)
{
    int n = 0, k = 0;
    while (environ[n])
        n++;
    char **env = mem_new_array((size_t)n + 3, sizeof *env);
    env[k++] = prepended("LUA_CPATH", cpath);
    env[k++] = prepended("LUA_PATH", path);
    for (int i = 0; i < n; i++)
        if (strncmp(environ[i], "LUA_CPATH=", 10) != 0 && strncmp(environ[i], "LUA_PATH=", 9) != 0)
            env[k++] = environ[i];
    return env;
}

/* In the folder of the policies: there a spec finds its policy by its name. */
static int run_specs(const struct found *f)
{
    char module[PATH_MAX];
    places_module(module);
    const char *why = lacking(module);
    if (why) {
        printf("specs: %d not run: %s\n", f->specs.n, why);
        return POLICY_TEST_NO_BUSTED;
    }
    struct buf cpath = {0};
    buf_printf(&cpath, "%s/?.so", module);
    char **env = lua_environment(cpath.data, "./?.lua;./spec/?.lua"),
         **argv = mem_new_array((size_t)f->specs.n + 4, sizeof *argv);
    int n = 0;
    argv[n++] = (char *)"busted";
    argv[n++] = (char *)"--lua=luajit";
    argv[n++] = (char *)"--pattern=_spec";
    for (int i = 0; i < f->specs.n; i++) {
        argv[n++] = f->specs.items[i] + strlen(f->folder) + 1;
        printf("%s%s", argv[n - 1], i + 1 < f->specs.n ? " " : "\n");
    }
    fflush(stdout);
    int rc = run(&(struct program){argv, env, f->folder});
    if (rc > 128)
        printf("specs: busted was ended by signal %d\n", rc - 128);
    mem_free(env[0]);
    mem_free(env[1]);
    mem_free(env);
    mem_free(argv);
    buf_free(&cpath);
    return rc == 0 ? POLICY_TEST_PASSED : POLICY_TEST_FAILED;
}

static int run_all(const struct found *f, struct lua_watchdog *dog)
{
    int n_bad = 0, specs = POLICY_TEST_PASSED;
    for (int i = 0; i < f->policies.n; i++)
        n_bad += own_tests(f->policies.items[i], dog) != POLICY_TEST_PASSED;
    if (f->specs.n)
        specs = run_specs(f);
    static const char *const words[] = {
        [POLICY_TEST_PASSED] = "passed", [POLICY_TEST_FAILED] = "FAILED", [POLICY_TEST_NO_BUSTED] = "not run"};
    printf("policies: %d passed, %d failed; specs: %s\n", f->policies.n - n_bad, n_bad,
           f->specs.n ? words[specs] : "none");
    fflush(stdout);
    return n_bad || specs == POLICY_TEST_FAILED ? POLICY_TEST_FAILED : specs;
}

/* ---- watching */

/* What would tell that something has changed: names, sizes, times. */
static void put_state(const struct strings *l, struct buf *out)
{
    struct stat st;
    for (int i = 0; i < l->n; i++)
        if (stat(l->items[i], &st) == 0)
            buf_printf(out, "%s %lld %lld %lld.%09ld\n", l->items[i], (long long)st.st_ino, (long long)st.st_size,
                       (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

static struct sha256 state_of(const char *path)
{
    struct found f;
    struct buf b = {0};
    if (find(path, &f, NULL) == 0) {
        put_state(&f.policies, &b);
        put_state(&f.specs, &b);
        put_state(&f.shared, &b);
    }
    forget(&f);
    struct sha256 sum = hash_sha256(b.len ? b.data : "", b.len);
    buf_free(&b);
    return sum;
}

static bool same(const struct sha256 *a, const struct sha256 *b)
{
    return !memcmp(a, b, sizeof *a);
}

/* True: a file has changed and stayed so for a moment (editors write in pieces). False: a signal. */
static bool wait_for_change(const char *path, const struct sha256 *tested, const sigset_t *signals)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    struct sha256 last = *tested;
    for (;;) {
        if (sigtimedwait(signals, NULL, &pause) > 0)
            return false;
        struct sha256 now = state_of(path);
        if (!same(&now, tested) && same(&now, &last))
            return true;
        last = now;
    }
}

static int test_once(const char *path, struct lua_watchdog *dog, int *status, struct err *e)
{
    struct found f;
    int rc = find(path, &f, e);
    if (!rc)
        *status = run_all(&f, dog);
    forget(&f);
    return rc;
}

static void watch(const char *path, const sigset_t *signals, struct lua_watchdog *dog, int *status)
{
    for (;;) {
        struct sha256 tested = state_of(path);
        struct err mine = {0};
        if (test_once(path, dog, status, &mine))
            printf("%s\n", mine.text); /* a file that is being replaced may be missing for a moment */
        printf("Waiting for changes; Ctrl-C ends.\n");
        fflush(stdout);
        if (!wait_for_change(path, &tested, signals)) {
            *status = POLICY_TEST_PASSED;
            return;
        }
        printf("\n");
    }
}

int policy_test(const char *path, bool again, int *status, struct err *e)
{
    struct lua_watchdog *dog;
    struct found f;
    sigset_t signals, before;
    int rc = find(path, &f, e); /* a name that is wrong from the beginning is not waited for */
    forget(&f);
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    if (!rc && again)
        pthread_sigmask(SIG_BLOCK, &signals, &before); /* first: the watchdog's thread has them blocked, too */
    if (rc || (rc = lua_watchdog_start(&dog, e)) != 0)
        return rc;
    if (again)
        watch(path, &signals, dog, status);
    else
        rc = test_once(path, dog, status, e);
    lua_watchdog_stop(dog);
    if (again)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* ---- for other tools */

/* For a shell: the pattern in single quotes, before those that are there, or before Lua's own. */
int policy_test_path(bool pattern, struct err *e)
{
    char module[PATH_MAX];
    places_module(module);
    if (!module[0])
        return err_set(e, E_NOTFOUND, "%s", no_module);
    if (pattern) {
        printf("%s/?.so\n", module);
        return 0;
    }
    printf("export LUA_CPATH='");
    for (const char *c = module; *c; c++)
        printf(*c == '\'' ? "'\\''" : "%c", *c);
    printf("/?.so;'\"${LUA_CPATH:-;}\"\n");
    return 0;
}
