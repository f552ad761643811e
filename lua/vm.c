#include "lua/vm.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <luajit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

enum {
    SLOT_ENTRY = 1,
    SLOT_HANDLER = 2, /* what lies at the bottom of the stack for ever */
    INSTRUCTIONS_PER_US = 100,
    GRACE_PIECES = 4,
    TICK = 100,     /* bytecodes from one look at the clock to the next */
    LATE_TICK = 10, /* the same of a call that is late */
    TICKED = 1000,  /* bytecodes of a call after which the watchdog looks instead */
    LOOPED = 5000,  /* bytecodes after a call was found late for the first time: it is not the machine that is slow */
};

/* ---- memory */

static void note_where(struct vm *vm, lua_State *L);

static void *allocate(void *ud, void *p, size_t old, size_t n)
{
    struct vm *vm = ud;
    if (!p)
        old = 0; /* then it is not a size */
    if (!n) {
        free(p);
        vm->used -= old;
        return NULL;
    }
    size_t limit = vm->floor + vm->cap + (vm->hosting ? VM_RESERVE_BYTES : 0);
    bool fits = n <= old || vm->used - old + n <= limit;
    /* Not from base/mem: a VM that gets no memory is a verdict, and what Lua asks for need not be zeroed. */
    void *q = fits ? realloc(p, n) : NULL;
    if (!q) {
        if (n <= old)
            return p; /* Lua takes for granted that shrinking never fails */
        if (!vm->denied && vm->L)
            note_where(vm, vm->L);
        vm->denied = true;
        return NULL;
    }
    vm->used += n - old;
    if (vm->used > vm->peak)
        vm->peak = vm->used;
    return q;
}

void vm_set_floor(struct vm *vm)
{
    lua_gc(vm->L, LUA_GCCOLLECT, 0);
    lua_gc(vm->L, LUA_GCSTOP, 0);
    vm->floor = vm->used;
}

/* ---- where and why */

void vm_escape(char *out, size_t cap, const char *text, size_t n)
{
    utf8_show(out, cap, text, n);
}

/* The innermost frame that has a line. Allocates nothing. */
static void note_where(struct vm *vm, lua_State *L)
{
    lua_Debug ar;
    vm->where[0] = 0;
    for (int level = 0; level < 12 && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
        if (ar.currentline > 0) {
            snprintf(vm->where, sizeof vm->where, "%s:%d", ar.short_src, ar.currentline);
            return;
        }
    }
}

/* pcall's handler: the stack is still the one that failed. */
static int on_error(lua_State *L)
{
    struct vm *vm = vm_of(L);
    if (!vm->killed && !vm->denied)
        note_where(vm, L);
    return 1;
}

static int on_panic(lua_State *L)
{
    (void)L;
    check_failed("Lua raised outside protected mode", __FILE__, __LINE__);
}

static void describe(struct vm *vm, enum verdict v, struct err *e)
{
    lua_State *L = vm->L;
    char text[220];
    if (v == VERDICT_HEAVY)
        snprintf(text, sizeof text, "executed some %" PRId64 " bytecodes: more than %" PRId64, vm->gauge.bytecodes,
                 vm->budget.soft.bytecodes);
    else if (v == VERDICT_SLOW)
        snprintf(text, sizeof text, "took %.0f us of CPU time: more than %.0f us, and more than 1%% of the time",
                 (double)vm->gauge.cpu_ns * 1e-3, (double)vm->budget.soft.cpu_ns * 1e-3);
    else if (v == VERDICT_TIMEOUT)
        snprintf(text, sizeof text, "still running after %.6g ms: stopped", (double)vm->budget.hard_ns / 1e6);
    else if (v == VERDICT_OOM)
        snprintf(text, sizeof text, "out of memory: the policy's heap holds %zu KiB", vm->cap >> 10);
    else if (lua_type(L, -1) == LUA_TSTRING) {
        size_t n;
        const char *s = lua_tolstring(L, -1, &n);
        vm_escape(text, sizeof text, s, n);
    } else if (lua_type(L, -1) == LUA_TNUMBER)
        snprintf(text, sizeof text, "error %.14g", lua_tonumber(L, -1));
    else
        snprintf(text, sizeof text, "the error value is a %s, not a text", lua_typename(L, lua_type(L, -1)));
    if (vm->where[0] && strncmp(text, vm->where, strlen(vm->where)) != 0)
        err_set(e, E_POLICY, "%s: %s", vm->where, text);
    else
        err_set(e, E_POLICY, "%s", text);
}

/* ---- time */

static void on_late(lua_State *L, lua_Debug *ar);

/* From here on every instruction raises, so that nothing can swallow the stop. */
static void stop_here(struct vm *vm, lua_State *L)
{
    if (!vm->killed)
        note_where(vm, L);
    vm->killed = true;
    vm->ticking = false;
    lua_sethook(L, on_late, LUA_MASKCOUNT, 1);
    luaL_error(L, "stopped");
}

static void on_late_tick(lua_State *L, lua_Debug *ar);

static void watch_closely(struct vm *vm, lua_State *L)
{
    vm->late_bytecodes = vm->gauge.bytecodes;
    if (vm->line)
        return;
    vm->ticking = false;
    lua_sethook(L, on_late_tick, LUA_MASKCOUNT, LATE_TICK);
}

/* Being late on the wall is not enough, as the thread may just not have been running: the call gets half its budget
 * more, in CPU time, of which one stretch counts for a quarter at most: a virtual machine that stands still calls that
 * CPU time. One whose host has too much to do stands still many times, and next to nothing is executed between: then
 * the call gets four times as much. */
static void be_late(struct vm *vm, lua_State *L)
{
    int64_t cpu = gauge_cpu(&vm->gauge), grace = vm->budget.hard_ns / 2, piece = grace / GRACE_PIECES;
    if (vm->late_cpu_ns)
        vm->grace_ns += cpu - vm->late_cpu_ns < piece ? cpu - vm->late_cpu_ns : piece;
    else
        watch_closely(vm, L);
    vm->late_cpu_ns = cpu;
    bool loops = vm->gauge.bytecodes - vm->late_bytecodes >= LOOPED;
    if (vm->grace_ns >= (loops ? grace : 4 * grace))
        stop_here(vm, L);
    vm->deadline_ns = clock_now(&vm->clock) + piece;
}

static void on_late_tick(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    struct vm *vm = vm_of(L);
    vm->gauge.bytecodes += LATE_TICK;
    if (clock_now(&vm->clock) >= vm->deadline_ns)
        be_late(vm, L);
}

/* Runs on the VM's own thread, at its next instruction after the watchdog fired. */
static void on_late(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    struct vm *vm = vm_of(L);
    if (vm->killed)
        stop_here(vm, L);
    watch_shut(vm->watch);
    vm->watching = false;
    be_late(vm, L);
}

static void arm(lua_State *L)
{
    lua_sethook(L, on_late, LUA_MASKCOUNT, 1);
}

/* Whoever follows the call is told of its next line. */
static bool is_line(struct vm *vm, lua_State *L, lua_Debug *ar)
{
    if (ar->event != LUA_HOOKLINE)
        return false;
    if (vm->line && !vm->killed)
        vm->line(L, ar, vm->line_ctx);
    return true;
}

/* A good call is over before the watchdog could be of use, and waking that takes longer than the call. So it begins
 * under a hook, which counts, too; only a long one that need not be counted to its end goes on without, at full speed.
 */
static void on_tick(lua_State *L, lua_Debug *ar)
{
    struct vm *vm = vm_of(L);
    if (is_line(vm, L, ar))
        return;
    vm->gauge.bytecodes += vm->line ? 1 : TICK;
    if (clock_now(&vm->clock) >= vm->deadline_ns) {
        be_late(vm, L);
        return;
    }
    if (vm->gauge.counting || vm->line || vm->gauge.bytecodes < TICKED)
        return;
    vm->ticking = false;
    lua_sethook(L, NULL, 0, 0);
    vm->watching = true;
    watch_open(vm->watch, vm->deadline_ns);
}

static void on_count(lua_State *L, lua_Debug *ar)
{
    struct vm *vm = vm_of(L);
    if (is_line(vm, L, ar))
        return;
    if (vm->killed || ++vm->instructions > (uint64_t)vm->budget.hard_ns * INSTRUCTIONS_PER_US / 1000)
        stop_here(vm, L);
}

/* The hook under which a call begins. It stays from call to call: setting one costs more than a good call runs. */
static void hook(struct vm *vm)
{
    vm->ticking = true;
    lua_sethook(vm->L, vm->watch ? on_tick : on_count, LUA_MASKCOUNT | (vm->line ? LUA_MASKLINE : 0),
                vm->watch && !vm->line ? TICK : 1);
}

void vm_follow(struct vm *vm, vm_line line, void *ctx)
{
    vm->line = line;
    vm->line_ctx = ctx;
    hook(vm);
}

/* ---- the call */

static size_t heap_of_policy(const struct vm *vm)
{
    return vm->used > vm->floor ? vm->used - vm->floor : 0;
}

static int entry(lua_State *L)
{
    struct vm *vm = vm_of(L);
    if (heap_of_policy(vm) > vm->cap / 4 * 3) {
        /* The idle collector did not keep up. Lua itself never collects when memory runs out, so it is now or
         * not at all. */
        vm_host_enter(vm);
        lua_gc(L, LUA_GCCOLLECT, 0);
        lua_gc(L, LUA_GCSTOP, 0);
        vm_host_leave(vm);
    }
    vm->body(L, vm->arg);
    return 0;
}

static void begin(struct vm *vm, struct vm_budget b)
{
    vm->budget = b;
    vm->late_cpu_ns = vm->grace_ns = 0;
    vm->killed = vm->denied = false;
    vm->hosting = 0;
    vm->where[0] = 0;
    vm->instructions = 0;
}

/* soft: what the gauge says of a call that stands. */
static enum verdict classify(const struct vm *vm, int status, enum verdict soft)
{
    if (vm->killed)
        return VERDICT_TIMEOUT;
    if (status == LUA_ERRMEM || (status && vm->denied))
        return VERDICT_OOM;
    return status ? VERDICT_ERROR : soft;
}

enum verdict vm_call(struct vm *vm, struct vm_budget b, vm_body body, void *arg, struct err *e)
{
    lua_State *L = vm->L;
    begin(vm, b);
    vm->body = body;
    vm->arg = arg;
    int64_t t0 = clock_now(&vm->clock);
    vm->deadline_ns = t0 + b.hard_ns;
    gauge_begin(&vm->gauge, &b.soft, t0);
    lua_pushvalue(L, SLOT_ENTRY);
    int status = lua_pcall(L, 0, 0, SLOT_HANDLER);
    if (vm->watching)
        watch_shut(vm->watch);
    vm->watching = false;
    if (!vm->ticking)
        hook(vm);
    int64_t t1 = clock_now(&vm->clock);
    vm->last_ns = t1 - t0;
    enum verdict v = classify(vm, status, gauge_end(&vm->gauge, &b.soft, t1));
    bool told = e && e->text[0] && verdict_stands(v); /* the body has found something worse to say */
    if (v != VERDICT_OK && !told)
        describe(vm, v, e);
    lua_settop(L, SLOT_HANDLER);
    return v;
}

/* 8 KiB a step keeps pace with what good policies allocate; one that leaves more gets more. After a whole round
 * the next one waits for some garbage: a round visits all that lives, however little has died. */
static void collect(lua_State *L, void *arg)
{
    struct vm *vm = arg;
    size_t mine = heap_of_policy(vm);
    vm_host_enter(vm); /* the collector may resize tables of its own */
    if (lua_gc(L, LUA_GCSTEP, mine > vm->cap / 2 ? 256 : mine > vm->cap / 8 ? 64 : 8))
        vm->rest_until = heap_of_policy(vm) + vm->cap / 8;
    lua_gc(L, LUA_GCSTOP, 0); /* a step sets the collector going again */
    vm_host_leave(vm);
}

bool vm_wants_rest(const struct vm *vm)
{
    size_t mine = heap_of_policy(vm);
    return mine >= vm->rest_until || mine >= vm->cap / 2;
}

int64_t vm_collect(struct vm *vm)
{
    if (!vm_wants_rest(vm))
        return 0;
    vm->rest_until = 0;
    int64_t last = vm->last_ns;
    vm_call(vm, (struct vm_budget){.hard_ns = 50000000}, collect, vm, NULL);
    int64_t took = vm->last_ns;
    vm->last_ns = last;
    return took;
}

int vm_create(struct vm *vm, struct lua_watchdog *watchdog, size_t heap_bytes, struct err *e)
{
    memset(vm, 0, sizeof *vm);
    clock_init_real(&vm->clock);
    vm->cap = heap_bytes;
    vm->floor = (size_t)1 << 20; /* until vm_set_floor: room for the libraries */
    lua_State *L = lua_newstate(allocate, vm);
    if (!L)
        return err_set(e, E_FULL, "no memory for a Lua machine");
    vm->L = L;
    lua_atpanic(L, on_panic);
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    lua_gc(L, LUA_GCSTOP, 0);
    lua_pushcfunction(L, entry);
    lua_pushcfunction(L, on_error);
    if (watchdog && !(vm->watch = watch_new(watchdog, L, arm))) {
        vm_destroy(vm);
        return err_set(e, E_FULL, "too many Lua machines at once");
    }
    hook(vm);
    return 0;
}

void vm_destroy(struct vm *vm)
{
    watch_free(vm->watch);
    vm->watch = NULL;
    if (vm->L)
        lua_close(vm->L);
    vm->L = NULL;
}
