/* Which rank stays on which NUMA node, over trees of files like those of the system; and a thread that stays. */
#include <sched.h>

#include "engine/base/numa.h"
#include "engine/base/thread.h"
#include "tests/rig/system_tree.h"

/* The nodes, and those of CPUs 0 .. end-1 that may be used. */
static void look(int end, struct numa *out)
{
    bool may[CORES_MOST_CPUS] = {false};
    for (int i = 0; i < end; i++)
        may[i] = true;
    numa_look(folder, may, out);
}

/* Two sockets of four cores with two hardware threads each, numbered as Linux does: 0-3 and 8-11, 4-7 and 12-15. */
static void put_two_sockets(void)
{
    put("/sys/devices/system/node/online", "0-1\n");
    put("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    put("/sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
    for (int i = 0; i < 16; i++) {
        char path[100], list[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(list, sizeof list, "%d,%d\n", i % 8, i % 8 + 8);
        put(path, list);
    }
}

static void ranks_stay_on_a_socket_each(void **state)
{
    (void)state;
    struct numa n;
    char says[200];
    put_two_sockets();
    look(16, &n);
    assert_int_equal(n.n_nodes, 2);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(n.nodes[0].cpus[i], i % 8 < 4);
        assert_int_equal(n.nodes[1].cpus[i], i % 8 >= 4);
    }
    assert_true(n.nodes[0].cores == 4 && n.nodes[1].cores == 4 && n.nodes[1].number == 1);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(numa_of_rank(&n, r, 4), r / 2); /* neighbours share a node */
        assert_int_equal(numa_threads(&n, r, 4, 8), 2);
    }
    assert_int_equal(numa_of_rank(&n, 1, 3), 0);
    assert_int_equal(numa_threads(&n, 1, 3, 8), 2);
    assert_int_equal(numa_threads(&n, 2, 3, 8), 2); /* alone on its node, but ranks are equals */
    assert_int_equal(numa_threads(&n, 0, 2, 8), 4);
    assert_int_equal(numa_threads(&n, 0, 2, 3), 1);  /* the control group has the time of three */
    assert_int_equal(numa_threads(&n, 0, 16, 8), 1); /* more ranks than cores */
    numa_say(&n, 4, says, sizeof says);
    assert_string_equal(says, "ranks 0 to 1 on NUMA node 0 (4 cores), ranks 2 to 3 on NUMA node 1 (4 cores)");
    numa_say(&n, 2, says, sizeof says);
    assert_string_equal(says, "rank 0 on NUMA node 0 (4 cores), rank 1 on NUMA node 1 (4 cores)");
    char few[20];
    numa_say(&n, 4, few, sizeof few); /* as much of it as there is room for */
    assert_string_equal(few, "ranks 0 to 1 on NUM");
}

static void fewer_ranks_than_nodes_run_anywhere(void **state)
{
    (void)state;
    struct numa n;
    char says[200];
    put_two_sockets();
    look(16, &n);
    assert_int_equal(numa_of_rank(&n, 0, 1), -1);
    assert_int_equal(numa_threads(&n, 0, 1, 8), 8);
    numa_say(&n, 1, says, sizeof says);
    assert_non_null(strstr(says, "2 NUMA nodes"));
    assert_non_null(strstr(says, "--ranks 2"));
}

/* What the process may not use, what has no CPUs, and what is no equal of the others is left out. */
static void nodes_that_are_no_use_are_left_out(void **state)
{
    (void)state;
    struct numa n;
    char says[200];
    put_two_sockets();
    look(4, &n); /* of one socket alone */
    assert_true(n.n_nodes == 1 && numa_of_rank(&n, 1, 4) == -1);
    numa_say(&n, 4, says, sizeof says);
    assert_string_equal(says, "");
    look(5, &n); /* and one core of the other */
    assert_true(n.n_nodes == 1 && n.nodes[0].number == 0 && n.nodes[0].cores == 4);
    look(6, &n); /* and two */
    assert_true(n.n_nodes == 2 && n.nodes[1].cores == 2);
    put("/sys/devices/system/node/online", "0-2,4\n");
    put("/sys/devices/system/node/node2/cpulist", "\n"); /* memory alone; of node 4 there is no file */
    look(16, &n);
    assert_int_equal(n.n_nodes, 2);
    put("/sys/devices/system/node/online", "nonsense");
    look(16, &n);
    assert_int_equal(n.n_nodes, 0);
    numa_look("/no/such/folder", (bool[CORES_MOST_CPUS]){true, true}, &n);
    assert_true(n.n_nodes == 0 && numa_of_rank(&n, 0, 4) == -1 && numa_threads(&n, 0, 4, 8) == 2);
    numa_say(&n, 4, says, sizeof says);
    assert_string_equal(says, "");
}

/* A CPU of this process. */
static int some_cpu(int which)
{
    bool may[CORES_MOST_CPUS];
    cores_allowed(may);
    int last = -1;
    for (int i = 0; i < CORES_MOST_CPUS; i++)
        if (may[i] && which-- >= 0)
            last = i;
    assert_true(last >= 0);
    return last;
}

static void child(void *arg)
{
    cpu_set_t *set = arg;
    sched_getaffinity(0, sizeof *set, set);
}

static void stay(void *arg)
{
    struct numa_node node = {.number = 3};
    struct thread *t;
    struct err e = {0};
    node.cpus[some_cpu(1)] = true;
    if (numa_stay(&node, &e) || thread_start(&t, "child", child, arg, &e))
        fail_msg("%s", e.text);
    thread_join(t);
}

static void a_thread_and_what_it_starts_stay(void **state)
{
    (void)state;
    cpu_set_t set, own, before;
    struct thread *t;
    struct err e = {0};
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(thread_start(&t, "stays", stay, &set, &e), 0);
    thread_join(t);
    assert_true(CPU_COUNT(&set) == 1 && CPU_ISSET(some_cpu(1), &set));
    sched_getaffinity(0, sizeof own, &own);
    assert_true(CPU_EQUAL(&own, &before)); /* the others do not */
    assert_int_equal(numa_stay(&(struct numa_node){.number = 7}, &e), E_SYS);
    assert_non_null(strstr(e.text, "NUMA node 7"));
    assert_non_null(strstr(e.text, "--numa off"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_stay_on_a_socket_each, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(fewer_ranks_than_nodes_run_anywhere, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(nodes_that_are_no_use_are_left_out, make_folder, drop_folder),
        cmocka_unit_test(a_thread_and_what_it_starts_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
