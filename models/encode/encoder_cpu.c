/* The encoder of the device "cpu": bert.h and decoder.h behind struct encoder_ops. */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "models/encode/bert.h"
#include "models/encode/decoder.h"
#include "models/encode/encoder_inner.h"

struct cpu_encoder {
    struct encoder base;
    struct bert *bert; /* or */
    struct decoder *decoder;
};

struct cpu_replica {
    struct encoder_replica base;
    struct bert_run *bert; /* or */
    struct decoder_run *decoder;
};

static void cpu_close(struct encoder *c)
{
    struct cpu_encoder *own = (struct cpu_encoder *)c;
    bert_close(own->bert);
    decoder_close(own->decoder);
    mem_free(own);
}

static int cpu_replica_new(struct encoder_replica **out, const struct encoder *c, int n_threads, int max_rows,
                           struct err *e)
{
    const struct cpu_encoder *own = (const struct cpu_encoder *)c;
    struct cpu_replica *r = mem_new(sizeof *r);
    int rc = own->bert ? bert_run_open(&r->bert, own->bert, n_threads, max_rows, NULL, e)
                       : decoder_run_open(&r->decoder, own->decoder, n_threads, max_rows, NULL, e);
    if (rc)
        mem_free(r);
    else
        *out = &r->base;
    return rc;
}

static void cpu_replica_free(struct encoder_replica *r)
{
    struct cpu_replica *own = (struct cpu_replica *)r;
    bert_run_close(own->bert);
    decoder_run_close(own->decoder);
    mem_free(own);
}

static int cpu_run(struct encoder_replica *r, const struct encoder_seq *seqs, int n, struct err *e)
{
    struct cpu_replica *own = (struct cpu_replica *)r;
    return own->bert ? bert_run(own->bert, seqs, n, e) : decoder_run(own->decoder, seqs, n, e);
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

static int open_bert(struct cpu_encoder *c, const struct encoder_files *files, struct err *e)
{
    struct safetensors *st = NULL;
    enum dtype type;
    int rc = files->folder ? open_weights(&st, files->path, e) : 0;
    if (!rc)
        rc = bert_open(&c->bert, &files->bert, st, files->gguf, e);
    safetensors_close(st);
    if (rc)
        return rc;
    c->base.facts.matrix_bytes = bert_matrix_bytes(c->bert, &type);
    c->base.facts.matrix_type = dtype_get(type)->name;
    return 0;
}

static int open_decoder(struct cpu_encoder *c, const struct encoder_files *files, struct err *e)
{
    struct model *m;
    enum dtype type;
    TRY(model_open_embedder(&m, files->path, e));
    int rc = decoder_open(&c->decoder, m, &files->card, e);
    model_loaded(m);
    model_close(m);
    if (rc)
        return rc;
    c->base.facts.matrix_bytes = decoder_bytes(c->decoder, &type);
    c->base.facts.matrix_type = dtype_get(type)->name;
    return 0;
}

int encoder_open_cpu(struct encoder **out, const struct encoder_files *files, struct err *e)
{
    static const struct encoder_ops ops = {.close = cpu_close,
                                           .tokenize = encoder_tokenize_pair,
                                           .replica_new = cpu_replica_new,
                                           .replica_free = cpu_replica_free,
                                           .replica_run = cpu_run};
    struct cpu_encoder *c = mem_new(sizeof *c);
    *out = NULL;
    int rc = files->decoder ? open_decoder(c, files, e) : open_bert(c, files, e);
    if (rc) {
        mem_free(c);
        return rc;
    }
    c->base.ops = &ops;
    *out = &c->base;
    return 0;
}
