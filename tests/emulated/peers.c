/* What a device says of the other GPUs of its group, on machines of several kinds. */
#include "kernels/cuda/device.h"
#include "tests/emulator/machine.h"
#include "tests/rig/unified.h"

static struct device_facts facts;
static struct err err;

/* Device `index` with these peers. */
static int open_with(const struct emulated_machine *m, int index, uint64_t peers)
{
    const struct backend_ops *ops = backend_cuda();
    const struct device_opts o = {.index = index, .peers = peers, .max_rows = 4, .max_logits = 4};
    struct device *d;
    err = (struct err){0};
    facts = (struct device_facts){0};
    emulator_machine(m);
    int rc = ops->open(&d, &o, &err);
    if (!rc) {
        ops->facts(d, &facts);
        ops->close(d);
    }
    emulator_machine(NULL);
    return rc;
}

static void links_are_said(void **state)
{
    (void)state;
    struct emulated_machine m = {.n_devices = 8};
    assert_int_equal(open_with(&m, 1, 1 << 1), 0);
    assert_string_equal(facts.link, "");
    assert_int_equal(open_with(&m, 1, 0xff), 0);
    assert_string_equal(facts.link, "GPU 0, 2, 3, 4, 5, 6, 7 by NVLink");
    for (int i = 4; i < 8; i++)
        m.pcie[1][i] = true;
    assert_int_equal(open_with(&m, 1, 0xff), 0);
    assert_string_equal(facts.link, "GPU 0, 2, 3 by NVLink, GPU 4, 5, 6, 7 over PCIe");
    assert_string_equal(facts.lacks, "");
}

static void memory_out_of_reach_is_refused(void **state)
{
    (void)state;
    struct emulated_machine m = {.n_devices = 4};
    m.apart[0][2] = true;
    assert_int_equal(open_with(&m, 0, 3), 0);
    assert_int_equal(open_with(&m, 0, 7), E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "GPU 0 cannot read the memory of GPU 2"));
    assert_non_null(strstr(err.text, "--devices 0 and --devices 2"));
}

static void the_odd_one_out_says_so(void **state)
{
    (void)state;
    const struct emulated_machine m = {.n_devices = 3, .names = {"NVIDIA H100", "NVIDIA H100", "NVIDIA A100"}};
    assert_int_equal(open_with(&m, 0, 7), 0);
    assert_string_equal(facts.lacks, "");
    assert_int_equal(open_with(&m, 1, 7), 0);
    assert_string_equal(facts.lacks, "");
    assert_int_equal(open_with(&m, 2, 7), 0);
    assert_non_null(strstr(facts.lacks, "GPU 0 is another model (NVIDIA H100)"));
}

static void slices_are_told_from_missing_gpus(void **state)
{
    (void)state;
    const struct emulated_machine slice = {.n_devices = 1, .names = {"NVIDIA H100 80GB HBM3 MIG 3g.40gb"}},
                                  whole = {.n_devices = 1};
    assert_int_equal(open_with(&slice, 0, 1), 0);
    assert_int_equal(open_with(&slice, 1, 3), E_INPUT);
    assert_non_null(strstr(err.text, "there is no GPU 1"));
    assert_non_null(strstr(err.text, "(MIG)"));
    assert_int_equal(open_with(&slice, 0, 3), E_INPUT); /* what the first rank says is what is heard */
    assert_non_null(strstr(err.text, "(MIG)"));
    assert_int_equal(open_with(&whole, 1, 3), E_INPUT);
    assert_null(strstr(err.text, "MIG"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_said), cmocka_unit_test(memory_out_of_reach_is_refused),
        cmocka_unit_test(the_odd_one_out_says_so), cmocka_unit_test(slices_are_told_from_missing_gpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
