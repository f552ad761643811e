/* One Lua virtual machine for one version of one policy: a lua_State with its own allocator and cap, compiler off,
 * entered only through vm_call, which runs a body in protected mode under a deadline and says how it ended. Owned by
 * one thread at a time; made and destroyed on control threads. Invariant: a Lua error, an exhausted heap and an endless
 * loop reach the caller only as a verdict. */
#ifndef LUA_VM_H
#define LUA_VM_H

#include <lua.h>

#include "engine/base/clock.h"
#include "engine/policy.h"
#include "lua/gauge.h"
#include "lua/watchdog.h"

enum {
    VM_HEAP_BYTES = 1 << 20,
    VM_HEAP_BYTES_MAX = 4 << 20,
    VM_RESERVE_BYTES = 64 << 10, /* more, while the host itself pushes values */
};

struct vm_budget {
    struct gauge_limits soft; /* past which a call is HEAVY or SLOW; zeros: never */
    int64_t hard_ns;          /* time past which it is stopped */
};

struct vm;
typedef void (*vm_body)(lua_State *L, void *arg);                /* may raise */
typedef void (*vm_line)(lua_State *L, lua_Debug *ar, void *ctx); /* before each line of Lua that runs */

struct vm {
    lua_State *L;
    void *owner;         /* for C functions called by Lua: vm_of(L)->owner */
    struct watch *watch; /* NULL: no watchdog; calls are bounded by instructions instead */
    struct clock clock;
    size_t used, peak; /* bytes of the Lua heap */
    size_t cap;        /* the policy's share, above floor */
    size_t floor;      /* what the sandbox and the host's own tables take */
    size_t rest_until; /* no collector work while the policy's heap is smaller; 0: in the middle of a round */
    int hosting;       /* > 0: host code is pushing; the reserve is open */
    /* the call under way */
    vm_body body;
    void *arg;
    struct vm_budget budget;
    int64_t late_cpu_ns, grace_ns; /* thread CPU time when it was last found late (0: it was not), and what it has had
                                      since the first time */
    int64_t late_bytecodes;        /* what it had executed by then, as far as that was counted */
    int64_t deadline_ns;           /* when it is late, or late again */
    bool killed, denied;
    bool ticking, watching; /* the hook is that of a call's beginning; the watchdog looks on */
    vm_line line;           /* NULL: nobody follows */
    void *line_ctx;
    struct gauge gauge;
    uint64_t instructions; /* counted when there is no watchdog */
    int64_t last_ns;       /* wall time of the last call */
    char where[96];        /* "file.lua:12" of the last error */
};

/* A VM with no libraries. watchdog NULL: an instruction count of 100 per microsecond of the hard budget
 * stands in (exact, and slower). E_FULL: no memory or no free watch. */
int vm_create(struct vm *vm, struct lua_watchdog *watchdog, size_t heap_bytes, struct err *e);
void vm_destroy(struct vm *vm);
/* Everything in use now is the sandbox's own: the policy's cap counts from here. Called by a body. */
void vm_set_floor(struct vm *vm);
static inline struct vm *vm_of(lua_State *L)
{
    void *ud;
    lua_getallocf(L, &ud);
    return ud;
}
/* Runs body protected, with an empty stack of its own. On any verdict but OK the cause is in e, one line,
 * escaped. */
enum verdict vm_call(struct vm *vm, struct vm_budget b, vm_body body, void *arg, struct err *e);
/* From now on calls are followed line by line, and their bytecodes counted to the last one; line NULL: no more. */
void vm_follow(struct vm *vm, vm_line line, void *ctx);
/* Around host code that pushes values on the policy's behalf. */
static inline void vm_host_enter(struct vm *vm)
{
    vm->hosting++;
}
static inline void vm_host_leave(struct vm *vm)
{
    vm->hosting--;
}
/* Collector work in the shadow of the device, when there is any. Returns the nanoseconds it took; 0: none was due. */
int64_t vm_collect(struct vm *vm);
bool vm_wants_rest(const struct vm *vm); /* is any due? */
/* n bytes of text from a policy, made fit for one line of a log (utf8_show). cap >= 16, NUL included. */
void vm_escape(char *out, size_t cap, const char *text, size_t n);

#endif
