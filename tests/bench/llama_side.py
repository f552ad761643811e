"""llama.cpp's side of the model benchmark, by llama-cpp-python's low-level interface: the same commands as
model_bench.c, and nll.
usage: llama_side.py MODEL THREADS"""

import ctypes
import sys

import llama_cpp
from peer_side import BATCH, SEQS, TOKENS, PeerSide, obey

QUIET = llama_cpp.llama_log_callback(lambda *_: None)


class Side(PeerSide):
    def __init__(self, path, threads):
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
        m = llama_cpp.llama_model_default_params()
        m.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), m)
        c = llama_cpp.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_seq_max = SEQS * TOKENS, BATCH, SEQS
        c.n_threads = c.n_threads_batch = threads
        c.kv_unified = False
        self.ctx = llama_cpp.llama_init_from_model(self.model, c)
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        super().__init__(vocab, llama_cpp.llama_batch_init(BATCH, 0, 1))

    def run(self):
        return llama_cpp.llama_decode(self.ctx, self.batch)

    def logits(self, i):
        return llama_cpp.llama_get_logits_ith(self.ctx, i)

    def wait(self):
        llama_cpp.llama_synchronize(self.ctx)

    def remove(self, s, depth):
        llama_cpp.llama_memory_seq_rm(self.memory, s, depth, -1)


obey(Side(sys.argv[1], int(sys.argv[2])), f"llama.cpp {llama_cpp.__version__}, flash attention as it chooses")
