/* The server of one rank: compute as a service for the layers that the rank owns. Rows of ranks in a step come to it by
 * layer; what is there for one layer is multiplied in one product, and the rows go back. It has a thread and a device
 * of its own, so it serves whether its rank has a step or not, and waits for nobody: where other ranks are in a step
 * that sends rows, it gives theirs as long to come as a product takes, which is what waiting can gain. After that they
 * are in step with each other by themselves. Owned by the pool; ffn_server_do is for ranks' threads. Invariant: whoever
 * has sent rows gets them back or E_PEER, also when the server's rank has failed. Source: SiDP's CaS, which has all
 * ranks meet at every layer; here nobody has to. */
#ifndef EXEC_FFN_SERVER_H
#define EXEC_FFN_SERVER_H

#include "engine/exec/ffn_shared.h"

struct ffn_server;

/* d: the server's own, opened for max_rows. Takes its working memory from it. */
int ffn_server_open(struct ffn_server **out, struct ffn_shared *f, int rank, struct device *d, int max_rows,
                    struct err *e);
void ffn_server_close(struct ffn_server *s); /* NULL is fine; not while anybody waits */
size_t ffn_server_bytes(const struct model_config *c, int max_rows, size_t act_bytes);

/* x becomes x + ffn(x) for `rows` rows of rank `from`, at most max_rows of them. Waits. E_PEER: the rank has failed. */
struct ffn_rows_call {
    int layer, from, rows;
    struct act x; /* written: the device of rank `from` is done with it */
};
int ffn_server_do(struct ffn_server *s, const struct ffn_rows_call *c, struct err *e);
void ffn_server_look(struct ffn_server *s); /* a rank has failed: who waits looks again; any thread */
/* Products, and calls that they served; any thread. */
void ffn_server_count(struct ffn_server *s, uint64_t *products, uint64_t *calls);

#endif
