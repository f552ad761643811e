/* What a device's graphs are made of, for who looks at them from outside. The rank's thread. */
#ifndef CUDA_GRAPH_H
#define CUDA_GRAPH_H

struct device;
/* Kernels in the graph that was recorded last, those of all members together; 0: there is none, or this member is not
 * the first. */
int cuda_graph_kernels(const struct device *d);

#endif
