/* What tells two models apart whose KV must not be mixed: their files, and the shape of their tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "models/load/identity.h"

static char folder[64];

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/unit_identity-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static void put(const char *name, const char *text, long seconds)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    struct timespec t[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void discard(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(unlink(path), 0);
}

/* Is it the one that is kept? Keeps it. */
static bool same_as_before(struct buf *kept)
{
    struct buf now = {0};
    assert_int_equal(identity_of_files(&now, folder, NULL), 0);
    bool same = now.len == kept->len && !memcmp(now.data, kept->data, now.len);
    buf_free(kept);
    *kept = now;
    return same;
}

static void a_folder_is_its_files(void **state)
{
    (void)state;
    struct buf kept = {0};
    put("config.json", "{}", 100);
    put("a.safetensors", "1234", 100);
    put("b.safetensors", "5678", 100);
    same_as_before(&kept);
    assert_true(same_as_before(&kept));
    put("notes.txt", "anything", 500);
    assert_true(same_as_before(&kept));
    discard("notes.txt");
    put("a.safetensors", "1234", 101);
    assert_false(same_as_before(&kept));
    put("a.safetensors", "12345", 101);
    assert_false(same_as_before(&kept));
    put("c.safetensors", "5678", 100);
    discard("b.safetensors");
    assert_false(same_as_before(&kept));
    discard("c.safetensors");
    assert_false(same_as_before(&kept));
    discard("a.safetensors");
    discard("config.json");
    rmdir(folder);
    assert_int_equal(identity_of_files(&kept, folder, NULL), E_SYS);
    buf_free(&kept);
}

static void tensors_tell_models_apart(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        enum dtype type;
    } models[] = {{"tests/data/layout_gqa.json", DT_F16},
                  {"tests/data/layout_gqa.json", DT_Q8_0},
                  {"tests/data/layout_9_3.json", DT_F16},
                  {"tests/data/layout_deep.json", DT_F16}};
    struct buf texts[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        struct model *m;
        assert_int_equal(model_open_dummy(&m, models[i].config, models[i].type, 1, NULL), 0);
        identity_of_tensors(&texts[i], m);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(texts[i].data, texts[k].data);
        model_close(m);
    }
    for (int i = 0; i < 4; i++)
        buf_free(&texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_folder_is_its_files, begin),
        cmocka_unit_test(tensors_tell_models_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
