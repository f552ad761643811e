"""llama.cpp's side of the model benchmark, by llama-cpp-python's low-level interface: the same commands as
model_bench.c.
usage: llama_side.py MODEL THREADS"""

import ctypes
import random
import sys
import time

import llama_cpp as L

BATCH, SEQS, TOKENS = 1024, 32, 2048


class Side:
    def __init__(self, path, threads):
        L.llama_backend_init()
        quiet = L.llama_log_callback(lambda *_: None)
        L.llama_log_set(quiet, ctypes.c_void_p(0))
        self.quiet = quiet
        m = L.llama_model_default_params()
        m.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(path.encode(), m)
        c = L.llama_context_default_params()
        c.n_ctx = SEQS * TOKENS
        c.n_batch = BATCH
        c.n_seq_max = SEQS
        c.n_threads = c.n_threads_batch = threads
        c.kv_unified = False
        self.ctx = L.llama_init_from_model(self.model, c)
        self.mem = L.llama_get_memory(self.ctx)
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.batch = L.llama_batch_init(BATCH, 0, 1)
        self.depth = [0] * SEQS
        self.random = random.Random(1)

    def step(self, seqs, n):
        """n new random tokens for each sequence, logits for the last of each."""
        b, k = self.batch, 0
        for s in seqs:
            for i in range(n):
                b.token[k] = self.random.randrange(self.vocab)
                b.pos[k] = self.depth[s] + i
                b.n_seq_id[k] = 1
                b.seq_id[k][0] = s
                b.logits[k] = i == n - 1
                k += 1
            self.depth[s] += n
        b.n_tokens = k
        if L.llama_decode(self.ctx, b) != 0:
            raise SystemExit("llama_decode failed")

    def cut(self, s, depth):
        L.llama_memory_seq_rm(self.mem, s, depth, -1)
        self.depth[s] = depth

    def fill(self, s, depth):
        while self.depth[s] < depth:
            self.step([s], min(BATCH, depth - self.depth[s]))

    def prefill(self, n):
        self.cut(0, 0)
        begin = time.perf_counter()
        self.fill(0, n)
        L.llama_synchronize(self.ctx)
        return time.perf_counter() - begin

    def decode(self, n_seqs, depth, n):
        seqs = range(n_seqs)
        for s in seqs:
            if self.depth[s] < depth:
                self.cut(s, 0)
                self.fill(s, depth)
            self.cut(s, depth)
        L.llama_synchronize(self.ctx)
        begin = time.perf_counter()
        for _ in range(n):
            self.step(seqs, 1)
        L.llama_synchronize(self.ctx)
        return time.perf_counter() - begin


def main():
    side = Side(sys.argv[1], int(sys.argv[2]))
    print("ready llama.cpp", L.__version__, "flash_attn auto", flush=True)
    for line in sys.stdin:
        verb, *numbers = line.split()
        print(f"{getattr(side, verb)(*map(int, numbers)):.9g}", flush=True)


main()
