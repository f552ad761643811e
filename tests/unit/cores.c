/* Which CPUs count as cores, over trees of files like those of the system. */
#include "engine/base/cores.h"
#include "tests/rig/system_tree.h"

static void put_cpu(int cpu, const char *file, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, file);
    put(path, text);
}

/* Of CPUs first .. end-1. */
static struct cores look(int first, int end)
{
    bool may[CORES_MOST_CPUS] = {false};
    struct cores c;
    for (int i = first; i < end; i++)
        may[i] = true;
    cores_look(folder, may, &c);
    return c;
}

static void without_facts_each_cpu_is_a_core(void **state)
{
    (void)state;
    struct cores c = look(0, 6);
    assert_int_equal(c.usable, 6);
    assert_int_equal(c.cpus, 6);
    char words[200] = "x";
    cores_say(&c, words, sizeof words);
    assert_string_equal(words, "");
    assert_int_equal(look(0, 0).usable, 1);
    assert_true(cores_usable() >= 1);
}

static void second_threads_of_a_core_do_not_count(void **state)
{
    (void)state;
    static const char *const lists[] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};
    for (int i = 0; i < 8; i++)
        put_cpu(i, "topology/thread_siblings_list", lists[i % 4]);
    struct cores c = look(0, 8);
    assert_int_equal(c.usable, 4);
    assert_int_equal(c.siblings, 4);
    assert_int_equal(look(2, 6).usable, 4); /* the other threads of two of these cores are not ours */
    assert_int_equal(look(4, 8).usable, 4);
    char words[200];
    cores_say(&c, words, sizeof words);
    assert_string_equal(words, "4 of 8 CPUs, 4 share cores with others");
    for (int i = 0; i < 8; i++)
        put_cpu(i, "topology/thread_siblings_list", i < 4 ? "0-3" : "4-7");
    assert_int_equal(look(0, 8).usable, 2);
}

static void efficiency_cores_do_not_count(void **state)
{
    (void)state;
    put("/sys/devices/cpu_core/cpus", "0-3\n");
    assert_int_equal(look(0, 12).usable, 4);
    assert_int_equal(look(0, 12).slow, 8);
    assert_int_equal(look(6, 12).usable, 6); /* there are no others for us */
    put("/sys/devices/cpu_core/cpus", "");
    for (int i = 0; i < 8; i++)
        put_cpu(i, "cpu_capacity", i < 4 ? "446" : i < 7 ? "871" : "1024");
    assert_int_equal(look(0, 8).usable, 4);
    assert_int_equal(look(0, 4).usable, 4);
}

static void a_control_group_limits_time(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/pod/box\n");
    put("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    assert_int_equal(look(0, 8).usable, 8);
    put("/sys/fs/cgroup/pod/box/cpu.max", "250000 100000\n");
    struct cores c = look(0, 8);
    assert_int_equal(c.usable, 2);
    assert_true(c.quota == 2.5);
    char words[200];
    cores_say(&c, words, sizeof words);
    assert_string_equal(words, "2 of 8 CPUs, the control group has the time of 2.5");
    put("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"); /* what holds it holds it, too */
    assert_int_equal(look(0, 8).usable, 1);
    put("/sys/fs/cgroup/pod/cpu.max", "50000 100000\n");
    assert_int_equal(look(0, 8).usable, 1);
    assert_int_equal(look(0, 1).usable, 1);
    put("/proc/self/cgroup", "0::/elsewhere/on/the/host\n"); /* as in a container: its own group is the root */
    assert_int_equal(look(0, 8).usable, 8);
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    assert_int_equal(look(0, 8).usable, 3);
}

static void groups_of_the_first_version(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "9:memory:/a\n4:cpu,cpuacct:/docker/x\n1:cpuset:/y\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(look(0, 8).usable, 8);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(look(0, 8).usable, 4);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(look(0, 8).usable, 2);
}

static void nonsense_limits_nothing(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "x\n::\n0:\n0::nowhere\n7:cpu\n");
    put("/sys/fs/cgroup/cpu.max", "-3 0\n");
    put("/sys/devices/cpu_core/cpus", "a-b,,9-\n");
    for (int i = 0; i < 4; i++) {
        put_cpu(i, "topology/thread_siblings_list", "-,1-");
        put_cpu(i, "cpu_capacity", "-7");
    }
    assert_int_equal(look(0, 4).usable, 4);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, make_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        EACH(without_facts_each_cpu_is_a_core), EACH(second_threads_of_a_core_do_not_count),
        EACH(efficiency_cores_do_not_count),    EACH(a_control_group_limits_time),
        EACH(groups_of_the_first_version),      EACH(nonsense_limits_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
