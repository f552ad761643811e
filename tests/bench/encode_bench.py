"""Tokens a second of an encoder, beside ONNX Runtime, PyTorch and llama.cpp on the same weights, in turns in one run.

    python tests/bench/encode_bench.py --model models/weights/all-MiniLM-L6-v2 [--threads 2] [--rounds 5] [--peers ...]

Sequences of 50 and of 512 random tokens, one at a time and 64 at once. The best of the rounds counts: other work on the
machine only ever slows a run down. With --cpu a run counts by the CPU time it took, all threads, which other work
disturbs less; with one thread that is what it would take on a quiet machine. Each peer gets its best form: ONNX Runtime
its BERT operators (fused attention, norms and GELU), PyTorch its fused attention, in F32 and in bfloat16, llama.cpp F32
and F16 files. Cosines are to BERT in float64. The peers come from pip: onnx, onnxruntime, torch, llama-cpp-python; one
that is not there is left out.
"""

import argparse
import importlib
import os
import random
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "oracle"))
from encode_gguf import write_gguf
from encode_oracle import Ours
from encode_reference import Bert

SHAPES = [(50, 1), (50, 64), (512, 1), (512, 64)]


def torch_module(folder):
    """BERT of the same tensors in PyTorch, as transformers writes it, with mean pooling."""
    torch = importlib.import_module("torch")
    nn, fn = torch.nn, torch.nn.functional
    ref = Bert(folder)
    c = ref.config
    hidden, heads = c["hidden_size"], c["num_attention_heads"]

    def tensor(name):
        return nn.Parameter(torch.tensor(ref.t[name], dtype=torch.float32), requires_grad=False)

    def linear(name):
        w = tensor(name + ".weight")
        m = nn.Linear(w.shape[1], w.shape[0])
        m.weight, m.bias = w, tensor(name + ".bias")
        return m

    def norm(name):
        m = nn.LayerNorm(hidden, eps=c["layer_norm_eps"])
        m.weight, m.bias = tensor(name + ".weight"), tensor(name + ".bias")
        return m

    class Layer(nn.Module):
        def __init__(self, i):
            super().__init__()
            at = f"encoder.layer.{i}."
            self.q, self.k, self.v = (linear(f"{at}attention.self.{x}") for x in ("query", "key", "value"))
            self.o, self.n1 = linear(at + "attention.output.dense"), norm(at + "attention.output.LayerNorm")
            self.up, self.down = linear(at + "intermediate.dense"), linear(at + "output.dense")
            self.n2 = norm(at + "output.LayerNorm")

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = (m(x).view(b, n, heads, hidden // heads).transpose(1, 2) for m in (self.q, self.k, self.v))
            o = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, hidden)
            x = self.n1(self.o(o) + x)
            return self.n2(self.down(fn.gelu(self.up(x))) + x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.positions = (tensor(f"embeddings.{x}_embeddings.weight") for x in ("word", "position"))
            self.kind = nn.Parameter(tensor("embeddings.token_type_embeddings.weight")[0], requires_grad=False)
            self.norm = norm("embeddings.LayerNorm")
            self.layers = nn.ModuleList(Layer(i) for i in range(c["num_hidden_layers"]))

        def forward(self, ids):
            x = fn.embedding(ids, self.words) + self.positions[: ids.shape[1]] + self.kind
            x = self.norm(x)
            for layer in self.layers:
                x = layer(x)
            return fn.normalize(x.mean(1), dim=-1)

    return torch, Model().eval()


class Torch:
    def __init__(self, folder, threads, autocast):
        self.torch, self.model = torch_module(folder)
        self.torch.set_num_threads(threads)
        self.autocast = autocast

    def __call__(self, ids):
        kind = self.torch.bfloat16
        with self.torch.inference_mode(), self.torch.autocast("cpu", kind, enabled=self.autocast):
            return self.model(self.torch.from_numpy(ids)).float().numpy()


class Onnx:
    """The graph is written node by node in ONNX Runtime's own fused operators; its BERT optimizer makes the same."""

    def __init__(self, folder, threads, work):
        ort = importlib.import_module("onnxruntime")
        path = onnx_graph(folder, os.path.join(work, "model.onnx"))
        o = ort.SessionOptions()
        o.intra_op_num_threads = threads
        o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.session = ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])

    def __call__(self, ids):
        v = self.session.run(None, {"ids": ids.astype(np.int32)})[0].mean(1)
        return v / np.linalg.norm(v, axis=-1, keepdims=True)


def onnx_graph(folder, path):
    onnx = importlib.import_module("onnx")
    make, to = onnx.helper.make_node, onnx.numpy_helper.from_array
    ref = Bert(folder)
    c = ref.config
    eps, heads, ms = c["layer_norm_eps"], c["num_attention_heads"], "com.microsoft"
    nodes, weights = [], []

    def w(name, value):
        weights.append(to(np.ascontiguousarray(value, np.float32), name))
        return name

    def skip_norm(x, skip, bias, name, out):
        nodes.append(
            make(
                "SkipLayerNormalization",
                [x, skip, w(name + ".g", ref.t[name + ".weight"]), w(name + ".b", ref.t[name + ".bias"]), bias],
                [out],
                domain=ms,
                epsilon=eps,
            )
        )
        return out

    def product(x, name, out):
        nodes.append(make("MatMul", [x, w(name + ".w", ref.t[name + ".weight"].T)], [out]))
        return out

    e = "embeddings."
    nodes.append(
        make(
            "EmbedLayerNormalization",
            [
                "ids",
                "",
                w("words", ref.t[e + "word_embeddings.weight"]),
                w(
                    "positions",
                    ref.t[e + "position_embeddings.weight"] + ref.t[e + "token_type_embeddings.weight"][0],
                ),
                "",
                w("e.g", ref.t[e + "LayerNorm.weight"]),
                w("e.b", ref.t[e + "LayerNorm.bias"]),
            ],
            ["x", "mask_index"],
            domain=ms,
            epsilon=eps,
        )
    )
    x = "x"
    for i in range(c["num_hidden_layers"]):
        at, p = f"encoder.layer.{i}.", f"l{i}."
        qkv = np.concatenate([ref.t[f"{at}attention.self.{k}.weight"].T for k in ("query", "key", "value")], 1)
        bias = np.concatenate([ref.t[f"{at}attention.self.{k}.bias"] for k in ("query", "key", "value")])
        nodes.append(
            make("Attention", [x, w(p + "qkv", qkv), w(p + "qkv.b", bias)], [p + "o"], domain=ms, num_heads=heads)
        )
        o = product(p + "o", at + "attention.output.dense", p + "p")
        b = w(p + "ob", ref.t[at + "attention.output.dense.bias"])
        x = skip_norm(o, x, b, at + "attention.output.LayerNorm", p + "u")
        up = product(x, at + "intermediate.dense", p + "up")
        nodes.append(make("BiasGelu", [up, w(p + "ub", ref.t[at + "intermediate.dense.bias"])], [p + "g"], domain=ms))
        down = product(p + "g", at + "output.dense", p + "d")
        x = skip_norm(down, x, w(p + "db", ref.t[at + "output.dense.bias"]), at + "output.LayerNorm", p + "x")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "bert",
        [info("ids", onnx.TensorProto.INT32, ["b", "n"])],
        [info(x, onnx.TensorProto.FLOAT, ["b", "n", c["hidden_size"]])],
        weights,
    )
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(ms, 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    return path


class Llama:
    def __init__(self, folder, threads, work, half):
        self.lib = importlib.import_module("llama_cpp")
        lib = self.lib
        path = write_gguf(folder, os.path.join(work, f"llama{half}.gguf"), half=half)
        self.quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        p = lib.llama_context_default_params()
        p.n_ctx = p.n_batch = p.n_ubatch = 64 * 512
        p.n_seq_max, p.embeddings, p.n_threads, p.n_threads_batch = 64, True, threads, threads
        p.pooling_type, p.attention_type = lib.LLAMA_POOLING_TYPE_MEAN, lib.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        self.ctx = lib.llama_init_from_model(self.model, p)
        self.dim = lib.llama_model_n_embd(self.model)

    def __call__(self, ids):
        lib, (b, n) = self.lib, ids.shape
        lib.llama_memory_clear(lib.llama_get_memory(self.ctx), True) if lib.llama_get_memory(self.ctx) else None
        batch = lib.llama_batch_init(b * n, 0, 1)
        batch.n_tokens = b * n
        for i in range(b * n):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(ids[i // n, i % n]), i % n, 1
            batch.seq_id[i][0], batch.logits[i] = i // n, 1
        begin, spent = time.perf_counter(), time.process_time()
        if lib.llama_encode(self.ctx, batch):
            sys.exit("llama_encode failed")
        self.took = (time.perf_counter() - begin, time.process_time() - spent)
        v = np.array([np.ctypeslib.as_array(lib.llama_get_embeddings_seq(self.ctx, s), (self.dim,)) for s in range(b)])
        lib.llama_batch_free(batch)
        return v / np.linalg.norm(v, axis=-1, keepdims=True)


class Native:
    def __init__(self, binary, model, threads):
        self.ours = Ours(binary, model, threads, 64 * 512)

    def __call__(self, ids):
        return self.ours([(list(map(int, row)), len(row)) for row in ids])

    def best(self, ids, seconds):
        return self.ours.time([(list(map(int, row)), len(row)) for row in ids], seconds)


def best_of(peer, ids, seconds):
    """Wall seconds and CPU seconds of the best run."""
    if isinstance(peer, Native):
        return peer.best(ids, seconds)
    best, end = (1e9, 1e9), time.perf_counter() + seconds
    while best[0] == 1e9 or time.perf_counter() < end:
        begin, spent = time.perf_counter(), time.process_time()
        peer(ids)
        took = (time.perf_counter() - begin, time.process_time() - spent)
        took = getattr(peer, "took", took)  # llama.cpp's batches are filled in Python: not its time
        best = (min(best[0], took[0]), min(best[1], took[1]))
    return best


def open_peers(args, work):
    makers = {
        "moonshift": lambda: Native(args.binary, args.model, args.threads),
        "onnxruntime": lambda: Onnx(args.model, args.threads, work),
        "torch": lambda: Torch(args.model, args.threads, False),
        "torch-bf16": lambda: Torch(args.model, args.threads, True),
        "llama.cpp-f32": lambda: Llama(args.model, args.threads, work, False),
        "llama.cpp-f16": lambda: Llama(args.model, args.threads, work, True),
    }
    peers = {}
    for name in args.peers.split(",") if args.peers else makers:
        try:
            peers[name] = makers[name]()
        except ImportError as e:
            print(f"{name}: left out ({e})")
    return peers


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--binary", default="build/tests/encode_vectors")
    args.add_argument("--model", required=True)
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--seconds", type=float, default=1.0, help="of each peer in a round")
    args.add_argument("--peers", default="")
    args.add_argument("--cpu", action="store_true", help="CPU seconds, not seconds")
    args = args.parse_args()
    rng, ref = random.Random(5), Bert(args.model)
    with tempfile.TemporaryDirectory() as work:
        peers = open_peers(args, work)
        probes = [[rng.randrange(1000, 30000) for _ in range(n)] for n in (3, 10, 50, 50, 200, 512)]
        for name, peer in peers.items():
            cosines = [float(peer(np.array([p], np.int64))[0] @ ref(p)) for p in probes]
            print(f"{name}: worst cosine of {len(probes)}: {min(cosines):.7f}", flush=True)
        print(f"\n{args.threads} threads; best of {args.rounds} rounds; tokens/{'CPU s' if args.cpu else 's'}")
        for n, b in SHAPES:
            ids = np.array([[rng.randrange(1000, 30000) for _ in range(n)] for _ in range(b)], np.int64)
            best = dict.fromkeys(peers, 1e9)
            for _ in range(args.rounds):
                for name, peer in peers.items():
                    best[name] = min(best[name], best_of(peer, ids, args.seconds)[args.cpu])
            rates = {name: n * b / t for name, t in best.items()}
            other = max((r for name, r in rates.items() if name != "moonshift"), default=0)
            line = "  ".join(f"{name} {r:.0f}" for name, r in rates.items())
            ratio = f"  ratio {rates['moonshift'] / other:.2f}" if other and "moonshift" in rates else ""
            print(f"{n} tokens, {b} at once: {line}{ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
