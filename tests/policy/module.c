/* The Lua module of specs under a host of its own, so that the sanitizers see it: random and hostile sequences of calls
 * (tests/spec/hostile.lua) end in values or in errors with a text, and leave nothing behind. */
#include <lauxlib.h>
#include <lualib.h>

#include "tests/rig/policy_rig.h"

int luaopen_moonshift(lua_State *L);

static lua_State *host(void)
{
    lua_State *L = luaL_newstate();
    assert_non_null(L);
    luaL_openlibs(L);
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, luaopen_moonshift);
    lua_setfield(L, -2, "moonshift");
    lua_pushliteral(L, "./tests/spec/?.lua");
    lua_setfield(L, -3, "path");
    lua_settop(L, 0);
    return L;
}

static void lua(lua_State *L, const char *code)
{
    if (luaL_loadstring(L, code) || lua_pcall(L, 0, 0, 0))
        fail_msg("%s", lua_tostring(L, -1));
}

static void what_was_submitted_and_never_ran_is_taken_back(void **state)
{
    (void)state;
    lua_State *L = host();
    lua(L, "local e = require('moonshift').engine { policy = 'policies/fcfs.lua' }\n"
           "e:submit { prompt = 10 } e:submit { prompt = 10, at = 3 } e:close() e:close()");
    lua(L, "local e = require('moonshift').engine {} e:submit { prompt = 10 }");
    lua_close(L);
}

static void a_spec_that_leaves_by_an_error_leaves_nothing_behind(void **state)
{
    (void)state;
    lua_State *L = host();
    lua(L, "local moonshift = require('moonshift')\n"
           "local ok = pcall(function() local e = moonshift.engine {} e:submit {} e:run_until(0.001) e:submit {} "
           "error('early') end)\n"
           "assert(not ok) collectgarbage() collectgarbage()\n"
           "assert(not pcall(moonshift.engine, { policy = 'policies/README.md' }))\n"
           "assert(not pcall(moonshift.engine, { source = 'return {}' }))\n"
           "assert(not pcall(moonshift.engine, { policy = 'policies/fcfs.lua', params = { budget = -1 } }))");
    lua_close(L);
}

static void no_calls_in_any_order_end_the_process(void **state)
{
    (void)state;
    lua_State *L = host();
    lua(L, "local hostile, moonshift, done, refused = require('hostile'), require('moonshift'), 0, 0\n"
           "for seed = 1001, 1040 do local d, r = hostile.round(moonshift, seed, 25) done, refused = done + d, refused "
           "+ r end\n"
           "assert(done > 150 and refused > 150, done .. ' done, ' .. refused .. ' refused')");
    lua_close(L);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_submitted_and_never_ran_is_taken_back),
        cmocka_unit_test(a_spec_that_leaves_by_an_error_leaves_nothing_behind),
        cmocka_unit_test(no_calls_in_any_order_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
