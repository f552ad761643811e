"""ik_llama.cpp's side of the model benchmark, by the ctypes interface of ik-llama-cpp-python: the same commands as
model_bench.c, and nll. Weights are repacked at load and attention is flash attention, its fastest. Version 0.1.5 aborts
in flash attention of several sequences (S > 0), so those run in a context without it. Its products with Q4_1 of 32 rows
and more are wrong on CPUs with AVX-512 (4.33 nats a token of the demo model, 2.45 with steps of 31): what it takes for
a prompt is of that format no answer.
usage: ik_side.py MODEL THREADS"""

import ctypes
import sys

import ik_llama_cpp._ctypes_api as api
from ik_llama_cpp._lib_loader import load_shared_library
from peer_side import BATCH, SEQS, TOKENS, PeerSide, obey

SHORT = 256  # tokens of each of several sequences
QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


class Side(PeerSide):
    def __init__(self, path, threads, flash=True):
        self.path, self.threads, self.several = path, threads, None
        self.lib = load_shared_library()
        self.lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        self.lib.llama_synchronize.argtypes = [ctypes.c_void_p]
        self.lib.llama_log_set(QUIET, None)
        self.lib.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        self.lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        api.llama_backend_init()
        m = api.llama_model_default_params()
        m.n_gpu_layers = 0
        m.repack_tensors = True
        self.model = api.llama_model_load_from_file(path.encode(), m)
        c = api.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max = TOKENS if flash else SEQS * SHORT, BATCH, 512, SEQS
        c.n_threads = c.n_threads_batch = threads
        c.flash_attn = flash
        self.ctx = api.llama_init_from_model(self.model, c)
        super().__init__(
            api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model)), api.llama_batch_init(BATCH, 0, 1)
        )

    def run(self):
        return api.llama_decode(self.ctx, self.batch)

    def logits(self, i):
        return self.lib.llama_get_logits_ith(self.ctx, i)

    def wait(self):
        self.lib.llama_synchronize(self.ctx)

    def remove(self, s, depth):
        self.lib.llama_kv_cache_seq_rm(self.ctx, s, depth, -1)

    def decode(self, n_seqs, depth, n):
        if n_seqs == 1:
            return super().decode(n_seqs, depth, n)
        if not self.several:
            self.several = Side(self.path, self.threads, flash=False)
        return PeerSide.decode(self.several, n_seqs, depth, n)


obey(Side(sys.argv[1], int(sys.argv[2])), "ik_llama.cpp, repacked, flash attention but for several sequences")
