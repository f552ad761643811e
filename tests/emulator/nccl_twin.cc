/* NCCL on the host as its documentation states it: communicators of threads that meet by an id; an all-reduce ends when
 * all members have called it, here before the call returns. An abort lets everybody out. It counts its calls, for tests
 * that ask whether it was used at all.
 */
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/nccl_load.h"
#include "tests/emulator/graph.h"
#include "tests/emulator/nccl_twin.h"

namespace {

struct rendezvous {
    int n, joined = 0, left = 0, arrived = 0;
    unsigned long turn = 0;
    bool aborted = false;
    std::vector<const float *> from;
    std::vector<float *> to;
};

struct library {
    std::mutex lock;
    std::condition_variable changed;
    std::map<std::string, struct rendezvous *> rendezvous;
    long ids = 0, sums = 0, live = 0;
    bool absent = false;
};

struct library &now()
{
    static struct library l;
    return l;
}

void add_up(struct rendezvous *m, size_t n)
{
    std::vector<float> sum(n, 0.0f);
    for (const float *p : m->from)
        for (size_t i = 0; i < n; i++)
            sum[i] += p[i];
    for (float *p : m->to)
        memcpy(p, sum.data(), n * sizeof(float));
}

int get_id(ncclUniqueId *id)
{
    struct library &l = now();
    std::lock_guard<std::mutex> hold(l.lock);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "rendezvous %ld", ++l.ids);
    return ncclSuccess;
}

} // namespace

struct ncclComm {
    struct rendezvous *m;
    int rank;
};

static int join(ncclComm_t *c, int n, ncclUniqueId id, int rank)
{
    struct library &l = now();
    std::unique_lock<std::mutex> hold(l.lock);
    struct rendezvous *&m = l.rendezvous[id.internal];
    if (!m) {
        m = new rendezvous;
        m->n = n;
        m->from.resize((size_t)n);
        m->to.resize((size_t)n);
    }
    struct rendezvous *own = m;
    if (n != own->n || rank < 0 || rank >= n)
        return 4;
    own->joined++;
    l.live++;
    l.changed.notify_all();
    l.changed.wait(hold, [own, n]() { return own->joined == n; });
    *c = new ncclComm{own, rank};
    return ncclSuccess;
}

static int leave(ncclComm_t c)
{
    struct library &l = now();
    std::lock_guard<std::mutex> hold(l.lock);
    l.live--;
    if (++c->m->left == c->m->n) {
        for (auto at = l.rendezvous.begin(); at != l.rendezvous.end(); ++at)
            if (at->second == c->m) {
                l.rendezvous.erase(at);
                break;
            }
        delete c->m;
    }
    delete c;
    return ncclSuccess;
}

static int abort_all(ncclComm_t c)
{
    struct library &l = now();
    {
        std::unique_lock<std::mutex> hold(l.lock);
        struct rendezvous *m = c->m;
        m->aborted = true;
        l.changed.notify_all();
        l.changed.wait(hold, [m]() { return m->arrived == 0; }); /* who was inside is out */
    }
    return leave(c);
}

static int sum(const void *from, void *to, size_t n, int type, int op, ncclComm_t c, cudaStream_t s)
{
    struct library &l = now();
    std::unique_lock<std::mutex> hold(l.lock);
    struct rendezvous *m = c->m;
    if (!s || type != ncclFloat32 || op != ncclSum || emulator_last_error())
        return 4;
    if (m->aborted)
        return ncclSuccess;
    m->from[(size_t)c->rank] = (const float *)from;
    m->to[(size_t)c->rank] = (float *)to;
    unsigned long turn = m->turn;
    l.sums++;
    if (++m->arrived == m->n) {
        add_up(m, n);
        m->arrived = 0;
        m->turn++;
        l.changed.notify_all();
    } else {
        l.changed.wait(hold, [m, turn]() { return m->turn != turn || m->aborted; });
        if (m->turn == turn && m->arrived > 0 && --m->arrived == 0)
            l.changed.notify_all();
    }
    return ncclSuccess;
}

static const char *text_of(int)
{
    return "refused by the twin";
}

bool nccl_load(struct nccl_functions *f)
{
    *f = {get_id, join, leave, abort_all, sum, text_of};
    return !now().absent;
}

long nccl_twin_sums(void)
{
    return now().sums;
}
long nccl_twin_live(void)
{
    return now().live;
}
void nccl_twin_absent(int yes)
{
    now().absent = yes != 0;
}
