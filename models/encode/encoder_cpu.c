/* The encoder of the device "cpu": bert.h behind struct encoder_ops. */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "models/encode/bert.h"
#include "models/encode/encoder_inner.h"

struct cpu_encoder {
    struct encoder base;
    struct bert *bert;
};

struct cpu_replica {
    struct encoder_replica base;
    struct bert_run *run;
};

static void cpu_close(struct encoder *c)
{
    struct cpu_encoder *own = (struct cpu_encoder *)c;
    bert_close(own->bert);
    mem_free(own);
}

static int cpu_replica_new(struct encoder_replica **out, const struct encoder *c, int n_threads, int max_rows,
                           struct err *e)
{
    const struct cpu_encoder *own = (const struct cpu_encoder *)c;
    struct bert_run *run;
    TRY(bert_run_open(&run, own->bert, n_threads, max_rows, NULL, e));
    struct cpu_replica *r = mem_new(sizeof *r);
    r->run = run;
    *out = &r->base;
    return 0;
}

static void cpu_replica_free(struct encoder_replica *r)
{
    struct cpu_replica *own = (struct cpu_replica *)r;
    bert_run_close(own->run);
    mem_free(own);
}

static int cpu_run(struct encoder_replica *r, const struct encoder_seq *seqs, int n, struct err *e)
{
    return bert_run(((struct cpu_replica *)r)->run, seqs, n, e);
}

static int open_weights(struct safetensors **out, const char *dir, struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    if (access(path, F_OK) == 0)
        return err_set(e, E_UNSUPPORTED, "encoders in several safetensors files are not supported; join them");
    if (snprintf(path, sizeof path, "%s/model.safetensors", dir) >= (int)sizeof path)
        return err_set(e, E_INPUT, "the path is too long");
    return safetensors_open(out, path, e);
}

int encoder_open_cpu(struct encoder **out, const struct encoder_files *files, struct err *e)
{
    static const struct encoder_ops ops = {.close = cpu_close,
                                           .tokenize = encoder_tokenize_pair,
                                           .replica_new = cpu_replica_new,
                                           .replica_free = cpu_replica_free,
                                           .replica_run = cpu_run};
    struct safetensors *st = NULL;
    struct bert *bert = NULL;
    *out = NULL;
    int rc = files->folder ? open_weights(&st, files->path, e) : 0;
    if (!rc)
        rc = bert_open(&bert, &files->config, st, files->gguf, e);
    safetensors_close(st);
    if (rc)
        return rc;
    struct cpu_encoder *c = mem_new(sizeof *c);
    c->base.ops = &ops;
    enum dtype type;
    c->bert = bert;
    c->base.facts.matrix_bytes = bert_matrix_bytes(bert, &type);
    c->base.facts.matrix_type = dtype_get(type)->name;
    *out = &c->base;
    return 0;
}
