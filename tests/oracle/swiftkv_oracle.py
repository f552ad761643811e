"""SwiftKV checkpoints: Hugging Face folders with random weights, run by the engine and compared with a float64 forward,
where all layers, half of them and one have keys and values of their own.

    python tests/oracle/swiftkv_oracle.py --binary build/tests/hf_logits
    python tests/oracle/swiftkv_oracle.py --make FOLDER [--layers 8] [--kv-layers 4] [--hidden 512] [--vocab 2048]

--make only writes such a folder. Prints `N passed, N failed`; exit status 1 when anything failed.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
import fp8_oracle
from fp8_oracle import bf16, check, nll, widen, write_folder
from reference import Reference, rms

TOKENS, LAYERS, DIM = 200, 4, 16


def config_of(layers, kv_layers, hidden, vocab, dim):
    heads = hidden // dim
    return {
        "architectures": ["LlamaSwiftKVForCausalLM"],
        "model_type": "llama_swiftkv",
        "swiftkv": True,
        "num_key_value_layers": kv_layers,
        "key_value_group_size": 1,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 4, 1),
        "head_dim": dim,
        "intermediate_size": 3 * hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": False,
    }


def make(config, rng, left_over):
    """The folder's tensors in BF16, and the weights by GGUF's names. left_over: it keeps the q, k and v of the model
    that it was distilled from."""
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    n, own = config["num_hidden_layers"], config["num_key_value_layers"]
    stored, wide = {}, {}

    def keep(name, ours, x):
        h = bf16(x)
        stored[name] = ("BF16", x.shape, h.tobytes())
        wide[ours] = widen(h).astype(np.float64)

    def matrix(name, ours, rows, cols):
        keep(f"{name}.weight", f"{ours}.weight", rng.normal(size=(rows, cols)) / np.sqrt(cols))

    def norm(name, ours):
        keep(f"{name}.weight", f"{ours}.weight", 1 + 0.2 * rng.normal(size=hidden))

    matrix("model.embed_tokens", "token_embd", config["vocab_size"], hidden)
    matrix("lm_head", "output", config["vocab_size"], hidden)
    norm("model.norm", "output_norm")
    norm("model.norm_swiftkv", "swiftkv_norm")
    for i in range(n):
        at, tail = f"model.layers.{i}.", "_swiftkv" if i >= own else ""
        norm(at + "input_layernorm", f"blk.{i}.attn_norm")
        norm(at + "post_attention_layernorm", f"blk.{i}.ffn_norm")
        for short, rows in (("q", q), ("k", kv), ("v", kv)):
            matrix(f"{at}self_attn.{short}_proj{tail}", f"blk.{i}.attn_{short}", rows, hidden)
            if left_over and tail:
                matrix(f"{at}self_attn.{short}_proj", f"unused.{i}.{short}", rows, hidden)
        matrix(at + "self_attn.o_proj", f"blk.{i}.attn_output", hidden, q)
        matrix(at + "mlp.gate_proj", f"blk.{i}.ffn_gate", ffn, hidden)
        matrix(at + "mlp.up_proj", f"blk.{i}.ffn_up", ffn, hidden)
        matrix(at + "mlp.down_proj", f"blk.{i}.ffn_down", hidden, ffn)
    return stored, wide


class Mistaken(Reference):
    """What must not pass: later layers that take k and v from somewhere else."""

    def __init__(self, cfg, get, mistake):
        super().__init__(cfg, get, halves=True)
        self.mistake = mistake

    def layer(self, x, i, cos, sin, shared=None):
        if shared is not None and self.mistake == "their own input":
            shared = None
        elif (
            shared is not None and self.mistake == "a residual one layer late" and i > self.cfg["num_key_value_layers"]
        ):
            shared = rms(x, self.get("swiftkv_norm.weight"), self.eps)
        elif shared is not None and self.mistake == "no norm's gain":
            shared = shared / self.get("swiftkv_norm.weight")
        return super().layer(x, i, cos, sin, shared)


def text_ids(vocab):
    with open("tests/data/nll_tokens.json") as f:
        return np.array(json.load(f)[:TOKENS]) % vocab


def compare(binary, room, own, left_over):
    config = config_of(LAYERS, own, 128, 120, DIM)
    name = f"{own} of {LAYERS} layers" + (", others left over" if left_over else "")
    folder, ids = os.path.join(room, f"{own}{left_over}"), text_ids(config["vocab_size"])
    stored, wide = make(config, np.random.default_rng(own), left_over)
    write_folder(folder, config, stored, 1 + own % 2)
    with open(folder + ".json", "w") as f:
        json.dump(ids.tolist(), f)
    want = Reference(config, wide.__getitem__, halves=True).logits(ids)
    got = fp8_oracle.run(binary, folder, folder + ".json", config["vocab_size"])
    if got is None:
        return [check(name, False, "the engine refused it")]
    size, off, n = np.abs(want).max(), np.abs(got - want).max(), (nll(got, ids), nll(want, ids))
    done = [
        check(name, off < 2e-5 * size, f"logits of size {size:.2f} off by {off:.2g} from float64"),
        check(name, abs(n[0] - n[1]) < 1e-5, f"mean likelihood {n[0]:.6f}, float64 {n[1]:.6f}"),
    ]
    for mistake in ("their own input", "a residual one layer late", "no norm's gain") if own < LAYERS else ():
        if own < LAYERS - 1 or mistake != "a residual one layer late":
            wrong = Mistaken(config, wide.__getitem__, mistake).logits(ids)
            far, by = np.abs(wrong - want).max(), abs(nll(wrong, ids) - n[1])
            done.append(
                check(name, far > 0.02 * size, f"k and v from {mistake}: off by {far:.2g}, likelihood {by:.2g}")
            )
    return done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary")
    parser.add_argument("--make")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--kv-layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=2048)
    args = parser.parse_args()
    if args.make:
        config = config_of(args.layers, args.kv_layers, args.hidden, args.vocab, 64)
        write_folder(args.make, config, make(config, np.random.default_rng(1), False)[0], 1)
        return 0
    fp8_oracle.TOKENS = TOKENS
    done = []
    with tempfile.TemporaryDirectory() as room:
        for own, left_over in ((LAYERS, False), (LAYERS // 2, False), (LAYERS // 2, True), (1, False)):
            done += compare(args.binary, room, own, left_over)
    print(f"{sum(done)} passed, {len(done) - sum(done)} failed")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
