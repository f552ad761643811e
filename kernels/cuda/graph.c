/* Decode steps as CUDA graphs. A step is captured once for each member, layout and size, and launched with the arrays
 * of the frame. The streams of all members of a group are captured into one graph, which the first member launches:
 * within it a collective is an edge, not a barrier on the host, and no kernel waits for another. A graph has working
 * memory of its own, so it stays valid when other steps make theirs grow. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/graph.h"

static bool is_first(const struct graph_key *k)
{
    return !k->all || k->me == 0;
}

static void graph_free(struct graph *g)
{
    if (!g)
        return;
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    mem_free(g->sampled);
    mem_free(g);
}

void graphs_close(struct device *d)
{
    for (int i = 0; i < d->n_graphs; i++)
        graph_free(d->graphs[i]);
    mem_free(d->graphs);
    for (int i = 0; i < FLIGHTS; i++) {
        if (d->flights[i].begun)
            cudaEventDestroy(d->flights[i].begun);
        if (d->flights[i].ended)
            cudaEventDestroy(d->flights[i].ended);
    }
    frame_close(d);
}

void graph_forget_last(struct device *d)
{
    graph_free(d->graphs[--d->n_graphs]);
}

bool graphs_open(struct device *d, int most_rows)
{
    for (int i = 0; i < FLIGHTS; i++)
        if (!gpu_ok(d, cudaEventCreate(&d->flights[i].begun), "making an event") ||
            !gpu_ok(d, cudaEventCreate(&d->flights[i].ended), "making an event"))
            return false;
    return frame_open(d, most_rows);
}

/* ---- capture */

/* The ops that follow go into the graph. */
static void begin_capture(struct device *d, const struct batch *b)
{
    struct graph *g = d->graph;
    d->batch = b;
    d->work = &d->graph_work;
    d->view = frame_view(&d->frame, g->rows);
    d->block_tokens = g->key.tokens_per_block;
    d->item_rows = 0;
    d->flash.planned = false;
    d->n_sampled = 0;
    d->after_kernel = false;
    d->turns = g->key.all;
    turn_take(d);
    if (is_first(&g->key))
        g->capturing = gpu_ok(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed), "capturing a graph");
    g->member_results[0] = d->frame.results;
    g->n_members = 1;
    if (g->key.all && members_signal(d, g->key.all, g->key.me, FROM_FIRST))
        g->n_members = members_results(g->key.all, g->key.me, g->member_results);
    struct frame_job fetch = frame_fetch(&d->frame, g->rows);
    if (!gpu_failed(d) && gpu_launched(d, launch_fetch_frame(d->stream, &fetch), "fetching a step"))
        step_angles(d, frame_at(&d->frame, d->frame.inv_freq));
}

static void end_capture(struct device *d)
{
    turn_pass(d);
    d->turns = NULL;
    d->graph = NULL;
    d->batch = NULL;
    d->work = &d->step_work;
    d->flash.planned = false;
    d->block_tokens = d->item_rows = d->n_sampled = 0;
}

static int refuse(struct device *d, struct err *e)
{
    struct graph *g = d->graph;
    if (g->capturing) {
        cudaGraph_t nothing = NULL;
        cudaStreamEndCapture(d->stream, &nothing);
        if (nothing)
            cudaGraphDestroy(nothing);
    }
    cudaGetLastError(); /* a failed capture does not break the device */
    graph_free(g);
    end_capture(d);
    return err_set(e, d->error.code, "%s", d->error.text);
}

int cuda_graph_begin(struct device *d, const struct graph_call *c, const struct rope *rope, struct err *e)
{
    const struct batch *b = c->batch;
    memset(&d->error, 0, sizeof d->error);
    if (d->broken.code)
        return err_set(e, d->broken.code, "%s", d->broken.text);
    if (d->no_graphs)
        return err_set(e, E_UNSUPPORTED, "a graph came out wrong when GPU %d was tried", d->index);
    if (b->n_rows > d->frame.most_rows)
        return err_set(e, E_UNSUPPORTED, "a graph of %d rows on a device opened for %d", b->n_rows, d->frame.most_rows);
    gpu_use(d);
    d->rope = *rope;
    d->graph = mem_new(sizeof *d->graph);
    *d->graph = (struct graph){.key = *c->key, .rows = b->n_rows};
    if (!frame_set_angles(d, rope))
        gpu_fail(d, E_UNSUPPORTED, "graphs are for heads of at most 256 rotated elements");
    begin_capture(d, b);
    return gpu_failed(d) ? refuse(d, e) : 0;
}

int cuda_graph_kernels(const struct device *d)
{
    return d->n_graphs > 0 ? d->graphs[d->n_graphs - 1]->n_kernels : 0;
}

static bool count_kernels(struct device *d, struct graph *g, cudaGraph_t graph)
{
    size_t n = 0;
    if (!gpu_ok(d, cudaGraphGetNodes(graph, NULL, &n), "making a graph"))
        return false;
    cudaGraphNode_t *nodes = mem_new_array(n + 1, sizeof(cudaGraphNode_t));
    bool ok = gpu_ok(d, cudaGraphGetNodes(graph, nodes, &n), "making a graph");
    for (size_t i = 0; ok && i < n; i++) {
        enum cudaGraphNodeType type;
        ok = gpu_ok(d, cudaGraphNodeGetType(nodes[i], &type), "making a graph");
        g->n_kernels += ok && type == cudaGraphNodeTypeKernel;
    }
    mem_free(nodes);
    return ok;
}

/* Ends the capture and instantiates the graph. */
static bool make_exec(struct device *d, struct graph *g)
{
    cudaGraph_t graph = NULL;
    g->capturing = false;
    bool ok = gpu_ok(d, cudaStreamEndCapture(d->stream, &graph), "capturing a graph") && count_kernels(d, g, graph) &&
              gpu_ok(d, cudaGraphInstantiate(&g->exec, graph, 0), "making a graph") &&
              gpu_ok(d, cudaGraphUpload(g->exec, d->stream), "making a graph") &&
              gpu_ok(d, cudaStreamSynchronize(d->stream), "making a graph");
    if (graph)
        cudaGraphDestroy(graph);
    return ok;
}

int cuda_graph_end(struct device *d, struct err *e)
{
    struct graph *g = d->graph;
    struct gather_tokens_job tokens = {
        .fed = d->frame.fed, .turn = d->frame.turn, .n_members = g->n_members, .n = g->rows};
    gpu_use(d);
    memcpy(tokens.results, g->member_results, sizeof tokens.results);
    if (!gpu_failed(d)) /* the last op was a barrier: what others have sampled is there */
        gpu_launched(d, launch_gather_tokens(d->stream, &tokens), "feeding tokens");
    bool ok = g->key.all ? members_signal(d, g->key.all, g->key.me, TO_FIRST) : !gpu_failed(d);
    if (ok && is_first(&g->key))
        ok = make_exec(d, g);
    if (ok && g->key.all) { /* all have it, or none; who does not hear it is broken: the others have it by then */
        d->graph = is_first(&g->key) ? g : NULL;
        ok = members_signal(d, g->key.all, g->key.me, FROM_FIRST);
        d->graph = g;
    }
    if (!ok)
        return refuse(d, e);
    g->sampled = d->sampled;
    g->n_sampled = d->n_sampled;
    d->sampled = NULL;
    d->graphs = mem_resize(d->graphs, (size_t)d->n_graphs + 1, sizeof(struct graph *));
    d->graphs[d->n_graphs++] = g;
    end_capture(d);
    return 0;
}

/* ---- launch */

static bool same_key(const struct graph_key *a, const struct graph_key *b)
{
    return a->weights == b->weights && a->all == b->all && a->me == b->me && a->group == b->group &&
           a->tokens_per_block == b->tokens_per_block && a->twoshot_bytes == b->twoshot_bytes;
}

/* The smallest graph that has room for the batch; NULL: none. */
static struct graph *find(const struct device *d, const struct graph_key *k, const struct batch *b)
{
    struct graph *found = NULL;
    for (int i = 0; i < d->n_graphs; i++) {
        struct graph *g = d->graphs[i];
        if (g->rows >= b->n_rows && (!found || g->rows < found->rows) && same_key(&g->key, k))
            found = g;
    }
    return found && frame_fits(&d->frame, b) ? found : NULL;
}

static void fill_frame(struct device *d, const struct graph *g)
{
    frame_fill(d, &(struct frame_shape){.rows = g->rows,
                                        .tokens_per_block = g->key.tokens_per_block,
                                        .vocab = g->vocab,
                                        .flash = g->flashes ? &g->flash : NULL,
                                        .sampled = g->sampled,
                                        .n_sampled = g->n_sampled});
}

/* All members have filled in their frames, then the first launches, then all may read results. */
static void launch_graph(struct device *d, const struct flight *f)
{
    const struct graph *g = f->graph;
    if (gpu_ok(d, cudaEventRecord(f->begun, d->stream), "beginning a step"))
        fill_frame(d, g);
    if (g->key.all)
        members_signal(d, g->key.all, g->key.me, TO_FIRST);
    if (!gpu_failed(d) && g->exec)
        gpu_ok(d, cudaGraphLaunch(g->exec, d->stream), "launching a graph");
    if (g->key.all)
        members_signal(d, g->key.all, g->key.me, FROM_FIRST);
    if (!gpu_failed(d))
        gpu_ok(d, cudaEventRecord(f->ended, d->stream), "ending a step");
}

int cuda_graph_post(struct device *d, const struct graph_call *c, bool *posted, struct err *e)
{
    struct graph *g = d->broken.code ? NULL : find(d, c->key, c->batch);
    int at = (d->oldest_flight + d->n_flights) % FLIGHTS;
    struct flight *f = &d->flights[at];
    *posted = g != NULL;
    if (!g)
        return 0;
    ASSERT(d->n_flights < FLIGHTS);
    memset(&d->error, 0, sizeof d->error);
    gpu_use(d);
    d->frame.host = d->frame.hosts[at];
    d->batch = c->batch;
    f->graph = g;
    f->results = (struct step_results){c->batch, g->sampled, g->n_sampled, d->frame.results_hosts[at]};
    launch_graph(d, f);
    d->batch = NULL;
    if (!gpu_failed(d)) {
        d->n_flights++;
        return 0;
    }
    struct err why = d->error;
    gpu_ok(d, cudaStreamSynchronize(d->stream), "a step"); /* the next step overwrites what is still being read */
    return err_set(e, why.code, "%s", why.text);
}

bool cuda_graph_ended(struct device *d)
{
    gpu_use(d);
    cudaError_t rc = d->n_flights ? cudaEventQuery(d->flights[d->oldest_flight].ended) : cudaSuccess;
    if (rc == cudaErrorNotReady)
        cudaGetLastError(); /* an answer, but it stays as the last error, where a library may look */
    return rc != cudaErrorNotReady;
}

int cuda_graph_wait(struct device *d, struct step_time *t, struct err *e)
{
    struct flight *f = &d->flights[d->oldest_flight];
    ASSERT(d->n_flights > 0);
    memset(&d->error, 0, sizeof d->error);
    gpu_use(d);
    gpu_ok(d, cudaEventSynchronize(f->ended), "a step");
    d->oldest_flight = (d->oldest_flight + 1) % FLIGHTS;
    d->n_flights--;
    return step_end(d, (const cudaEvent_t[2]){f->begun, f->ended}, &f->results, t, e);
}
