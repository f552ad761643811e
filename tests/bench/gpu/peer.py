#!/usr/bin/env python3
"""A peer on the same GPU with the same shapes as models_bench: plain torch (bf16, fused projections by F.linear, SDPA
over a static cache, the decode step captured in a CUDA graph), and Hugging Face transformers where they can be
imported. Random weights on the device. Prints lines that begin as models_bench's do: "decode NAME batch B context C MS
ms", "prefill NAME tokens N MS ms", with "torch" or "transformers" in front. Says so and ends with status
77 where there is no torch, or none that sees a GPU.
With --ours, what models_bench printed, each case of torch is set beside the same one of ours: the goal G12.
usage: peer.py [--seconds S] [--ours FILE] [--dry]   (dry: small sizes on the CPU, times that mean nothing)"""

import argparse
import re
import statistics
import sys
import time

#          name            layers hidden heads kv dim  ffn    vocab   tied   norms of q and k
SHAPES = [
    ("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, False, False),
    ("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936, True, True),
    ("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936, False, True),
    ("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, True, False),
]
CANNOT = 77
DECODES = [(1, 1024), (64, 1024), (8, 1024), (1, 8192), (32, 1024), (8, 8192)]
PREFILLS = [2048, 8192]


class Model:
    """The weights and the two kinds of step."""

    def __init__(self, torch, shape, device):
        self.t, self.F = torch, torch.nn.functional
        self.name, self.layers, self.hidden, self.heads, self.kv, self.dim, self.ffn, self.vocab, tied, self.norms = (
            shape
        )
        self.device, self.kind = device, torch.bfloat16
        q, kv = self.heads * self.dim, self.kv * self.dim
        self.embed = self.noise(self.vocab, self.hidden)
        self.head = self.embed if tied else self.noise(self.vocab, self.hidden)
        self.ones = torch.ones(self.hidden, device=device, dtype=self.kind)
        self.head_ones = torch.ones(self.dim, device=device, dtype=self.kind)
        self.w = [
            (
                self.noise(q + 2 * kv, self.hidden),
                self.noise(self.hidden, q),
                self.noise(2 * self.ffn, self.hidden),
                self.noise(self.hidden, self.ffn),
            )
            for _ in range(self.layers)
        ]
        angle = torch.outer(
            torch.arange(32768, device=device).float(),
            500000.0 ** (-torch.arange(0, self.dim, 2, device=device).float() / self.dim),
        )
        self.cos, self.sin = (f(torch.cat((angle, angle), 1)).to(self.kind) for f in (torch.cos, torch.sin))

    def noise(self, *shape):
        return self.t.empty(*shape, device=self.device, dtype=self.kind).uniform_(-0.02, 0.02)

    def cache(self, batch, length):
        return [
            (self.noise(batch, self.kv, length, self.dim), self.noise(batch, self.kv, length, self.dim))
            for _ in range(self.layers)
        ]

    def turn(self, x, at):
        half = self.dim // 2
        return x * self.cos[at] + self.t.cat((-x[..., half:], x[..., :half]), -1) * self.sin[at]

    def step(self, ids, cache, first):
        """ids [batch, n] at positions first ..; the cache ends with them. The likeliest next token of each."""
        F, (batch, n) = self.F, ids.shape
        x, at = F.embedding(ids, self.embed), slice(first, first + n)
        for (wqkv, wo, wup, wdown), (kc, vc) in zip(self.w, cache):
            qkv = (
                F.linear(F.rms_norm(x, (self.hidden,), self.ones, 1e-5), wqkv)
                .view(batch, n, self.heads + 2 * self.kv, self.dim)
                .transpose(1, 2)
            )
            q, k, v = qkv.split((self.heads, self.kv, self.kv), 1)
            if self.norms:
                q, k = (F.rms_norm(a, (self.dim,), self.head_ones, 1e-6) for a in (q, k))
            kc[:, :, at] = self.turn(k, at)
            vc[:, :, at] = v
            o = F.scaled_dot_product_attention(
                self.turn(q, at), kc[:, :, : first + n], vc[:, :, : first + n], is_causal=n > 1, enable_gqa=True
            )
            x = x + F.linear(o.transpose(1, 2).reshape(batch, n, self.heads * self.dim), wo)
            gate, up = F.linear(F.rms_norm(x, (self.hidden,), self.ones, 1e-5), wup).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, wdown)
        last = F.rms_norm(x[:, -1], (self.hidden,), self.ones, 1e-5)
        return F.linear(last, self.head).argmax(-1)


class Clock:
    def __init__(self, torch, device, until):
        self.t, self.gpu, self.until = torch, device == "cuda", until

    def sync(self):
        if self.gpu:
            self.t.cuda.synchronize()

    def over(self):
        return time.time() > self.until

    def median_ms(self, call, n):
        took = []
        for _ in range(n):
            self.sync()
            began = time.perf_counter()
            call()
            self.sync()
            took.append((time.perf_counter() - began) * 1e3)
        return statistics.median(took)

    def captured(self, call):
        """The call as a replay of its graph; on the CPU as it is."""
        if not self.gpu:
            return call
        side = self.t.cuda.Stream()
        side.wait_stream(self.t.cuda.current_stream())
        with self.t.cuda.stream(side):
            for _ in range(3):
                call()
        self.t.cuda.current_stream().wait_stream(side)
        graph = self.t.cuda.CUDAGraph()
        with self.t.cuda.graph(graph):
            call()
        return graph.replay


said = []


def say(*parts):
    said.append(" ".join(map(str, parts)))
    print(said[-1], flush=True)


def cases_of(lines):
    """Milliseconds by case: "decode NAME batch B context C" or "prefill NAME tokens N"."""
    for line in lines:
        if m := re.match(r"((?:decode|prefill) .*?) +([\d.]+) ms ", line):
            yield " ".join(m[1].split()), float(m[2])


def beside(ours, dry):
    with open(ours, encoding="utf-8") as f:
        ours = dict(cases_of(f))
    worst = None
    for case, ms in cases_of(line.removeprefix("torch ") for line in said if line.startswith("torch ")):
        if ours.get(case):
            ratio = ms / ours[case]
            say(f"torch {case}: ours {ours[case]:.3f} ms, theirs {ms:.3f} ms: {ratio:.2f} times as fast")
            worst = min(worst or (ratio, case), (ratio, case))
    if worst:
        note = " [dry run: means nothing]" if dry else ""
        say(f"G12 {worst[0]:.2f} (goal 0.95) times torch of this run; the worst: {worst[1]}{note}")
    else:
        say("G12 not measured: no peer ran the same case")


def shrunk(batch, length):
    """The sizes of a dry run, as models_bench has them."""
    return min(batch, 4), 48 if length > 2048 else 24


def run_torch(torch, clock, shape, device, dry):
    model = Model(torch, shape, device)
    cases = [("decode", b, c) for b, c in DECODES]
    cases[2:2] = [("prefill", 1, n) for n in PREFILLS]
    for kind, batch, length in cases:
        if clock.over():
            return say(f"torch {shape[0]}: the time is over, the rest was not run")
        batch, size = shrunk(batch, length) if dry else (batch, length)
        n = size if kind == "prefill" else 1
        try:
            cache = model.cache(batch, size)
            ids = torch.randint(0, model.vocab, (batch, n), device=device)
            call = lambda: model.step(ids, cache, size - n)
            call = clock.captured(call) if kind == "decode" else call
            call()
            ms = clock.median_ms(call, 3 if dry or kind == "prefill" else 15)
            what = f"batch {batch:2d} context {size:4d}" if kind == "decode" else f"tokens {size:5d}"
            say(f"torch {kind:7s} {shape[0]:13s} {what} {ms:9.3f} ms {batch * n / ms * 1e3:9.0f} tok/s")
        except RuntimeError as e:
            say(f"torch {kind} {shape[0]} batch {batch} at {length}: {str(e).splitlines()[0][:150]}")
        cache = call = None
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
    return None


def run_transformers(torch, clock, shape, device, dry):
    import transformers

    name, layers, hidden, heads, kv, dim, ffn, vocab, tied, norms = shape
    config_of, model_of = (
        (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)
        if norms
        else (transformers.LlamaConfig, transformers.LlamaForCausalLM)
    )
    config = config_of(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=dim,
        intermediate_size=ffn,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = model_of(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    for batch, length in DECODES[:3]:
        if clock.over():
            return say(f"transformers {name}: the time is over, the rest was not run")
        batch, size = shrunk(batch, length) if dry else (batch, length)
        past = transformers.DynamicCache()
        prompt = torch.randint(0, vocab, (batch, size - 1), device=device)
        model(prompt, past_key_values=past, use_cache=True, logits_to_keep=1)
        token = prompt[:, :1]
        call = lambda: model(token, past_key_values=past, use_cache=True)
        call()
        ms = clock.median_ms(call, 3 if dry else 10)
        say(
            f"transformers decode  {name:13s} batch {batch:2d} context {size:4d} {ms:9.3f} ms "
            f"{batch / ms * 1e3:9.0f} tok/s (eager)"
        )
    return None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--ours")
    p.add_argument("--dry", action="store_true")
    args = p.parse_args()
    try:
        import torch
    except ImportError:
        say("no torch here: the peer was not run")
        return CANNOT
    if not args.dry and not torch.cuda.is_available():
        say(f"torch {torch.__version__} sees no GPU: the peer was not run")
        return CANNOT
    device = "cpu" if args.dry else "cuda"
    clock = Clock(torch, device, time.time() + args.seconds)
    shapes = [(s[0], 2, 128, 4, 2, 32, 256, 512, *s[8:]) for s in SHAPES] if args.dry else SHAPES
    say(f"torch {torch.__version__}, {'CPU, dry run' if args.dry else torch.cuda.get_device_name()}")
    with torch.no_grad():
        for i, shape in enumerate(shapes):
            if clock.over():
                say(f"torch {shape[0]}: not run, the time is over")
                continue
            run_torch(torch, clock, shape, device, args.dry)
            if i == 0:
                try:
                    run_transformers(torch, clock, shape, device, args.dry)
                except ImportError:
                    say("no transformers here: not run")
                except Exception as e:
                    say(f"transformers: {type(e).__name__}: {str(e).splitlines()[0][:150] if str(e) else ''}")
    if args.ours:
        beside(args.ours, args.dry)
    return None


if __name__ == "__main__":
    sys.exit(main())
