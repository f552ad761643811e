"""fp8 checkpoints beside the same models in f32: small Hugging Face folders written here, in every form of scales, run
by the engine, and compared with a float64 forward over the dequantised weights and with the engine over those weights
as F32; then with a cache of fp8, beside a forward that rounds keys and values.

    python tests/oracle/fp8_oracle.py --binary build/tests/hf_logits

Prints `N passed, N failed`; exit status 1 when anything failed.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
import reference
from reference import Reference

TOKENS, BLOCK = 48, 128
QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 320,
    "vocab_size": 120,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
LLAMA = dict(QWEN, architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5, rope_theta=5e5, tie_word_embeddings=True)
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FORMS = {
    "tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "channel": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            }
        },
    },
    "block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
}


def e4m3_values():
    """All codes by the definition; the two NaNs as they are."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -size, size)


VALUES = e4m3_values()


def quantise(x):
    """The nearest codes, by search."""
    sizes = VALUES[:127]
    return (np.abs(np.abs(x)[..., None] - sizes).argmin(-1) + np.where(x < 0, 128, 0)).astype(np.uint8)


def scales_of(w, form):
    """Scales as the file has them, and spread over the matrix."""
    rows, cols = w.shape
    if form == "tensor":
        s = np.array(np.abs(w).max() / 448, np.float32)
        return s, np.full(w.shape, s)
    if form == "channel":
        s = (np.abs(w).max(axis=1, keepdims=True) / 448).astype(np.float32)
        return s, np.broadcast_to(s, w.shape)
    tall, wide = -(-rows // BLOCK), -(-cols // BLOCK)
    s = np.array(
        [
            [np.abs(w[r * BLOCK : (r + 1) * BLOCK, c * BLOCK : (c + 1) * BLOCK]).max() / 448 for c in range(wide)]
            for r in range(tall)
        ],
        np.float32,
    )
    return s, np.repeat(np.repeat(s, BLOCK, 0), BLOCK, 1)[:rows, :cols]


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def widen(h):
    return (h.astype(np.uint32) << 16).view(np.float32)


def write_file(path, tensors):
    header, body = {}, b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def write_folder(folder, config, tensors, files):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    if files == 1:
        return write_file(os.path.join(folder, "model.safetensors"), tensors)
    names, where = list(tensors), {}
    for i in range(files):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        write_file(os.path.join(folder, file), {n: tensors[n] for n in names[i::files]})
        where.update(dict.fromkeys(names[i::files], file))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)
    return None


def make(config, form, rng):
    """The folder's tensors in fp8, the same in F32, and the weights by GGUF's names for the reference."""
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    stored, plain, wide = {}, {}, {}

    def keep(name, ours, x):
        h = bf16(x)
        stored[name] = ("BF16", x.shape, h.tobytes())
        plain[name] = ("F32", x.shape, widen(h).tobytes())
        wide[ours] = widen(h).astype(np.float64)

    keep(
        "model.embed_tokens.weight",
        "token_embd.weight",
        rng.normal(size=(config["vocab_size"], hidden)) / np.sqrt(hidden),
    )
    if not config["tie_word_embeddings"]:
        keep("lm_head.weight", "output.weight", rng.normal(size=(config["vocab_size"], hidden)) / np.sqrt(hidden))
    keep("model.norm.weight", "output_norm.weight", 1 + 0.2 * rng.normal(size=hidden))
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        keep(at + "input_layernorm.weight", f"blk.{i}.attn_norm.weight", 1 + 0.2 * rng.normal(size=hidden))
        keep(at + "post_attention_layernorm.weight", f"blk.{i}.ffn_norm.weight", 1 + 0.2 * rng.normal(size=hidden))
        if config["architectures"][0].startswith("Qwen3"):
            keep(at + "self_attn.q_norm.weight", f"blk.{i}.attn_q_norm.weight", 1 + 0.2 * rng.normal(size=dim))
            keep(at + "self_attn.k_norm.weight", f"blk.{i}.attn_k_norm.weight", 1 + 0.2 * rng.normal(size=dim))
        for name, shape in shapes.items():
            w = rng.normal(size=shape) / np.sqrt(shape[1]) * np.exp(rng.normal(size=(shape[0], 1)) * 0.3)
            s, spread = scales_of(w, form)
            codes = quantise(w / spread)
            back = (VALUES[codes] * spread.astype(np.float64)).astype(np.float32)
            stored[at + name + ".weight"] = ("F8_E4M3", shape, codes.tobytes())
            stored[at + name + (".weight_scale_inv" if form == "block" else ".weight_scale")] = (
                "F32",
                s.shape,
                s.tobytes(),
            )
            if form == "tensor":
                stored[at + name + ".input_scale"] = ("F32", (), np.float32(0.02).tobytes())
            plain[at + name + ".weight"] = ("F32", shape, back.tobytes())
            wide[f"blk.{i}.{NAMES[name]}.weight"] = VALUES[codes] * spread.astype(np.float64)
    return stored, plain, wide


def run(binary, folder, ids_path, vocab, cache="f32"):
    out = subprocess.run([binary, folder, ids_path, cache], capture_output=True, timeout=120, check=False)
    if out.returncode:
        print(out.stderr.decode(errors="replace").strip())
        return None
    return np.frombuffer(out.stdout, "<f4").reshape(TOKENS, vocab).astype(np.float64)


def with_rounded_cache(forward):
    plain = reference.attention

    def rounded(q, k, v, window):
        return plain(q, VALUES[quantise(k)], VALUES[quantise(v)], window)

    reference.attention = rounded
    try:
        return forward()
    finally:
        reference.attention = plain


def nll(z, ids):
    z = z - z.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(axis=1))[:-1] - z[np.arange(len(ids) - 1), ids[1:]]))


def rms(x):
    return float(np.sqrt(np.mean(x * x)))


def check(name, ok, said):
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {said}")
    return bool(ok)


def compare(args, room, name, config, form, files):
    rng = np.random.default_rng(len(name))
    ids = np.array([(i * i * 7 + i * 3 + 5) % config["vocab_size"] for i in range(TOKENS)])
    stored, plain, wide = make(config, form, rng)
    ids_path = os.path.join(room, "ids.json")
    with open(ids_path, "w") as f:
        json.dump(ids.tolist(), f)
    write_folder(os.path.join(room, name), dict(config, quantization_config=FORMS[form]), stored, files)
    write_folder(os.path.join(room, name + "-f32"), config, plain, 1)
    forward = Reference(config, wide.__getitem__, halves=True, qk_norm=config["architectures"][0].startswith("Qwen3"))
    want, want8 = forward.logits(ids), with_rounded_cache(lambda: forward.logits(ids))
    got, same, got8 = (
        run(args.binary, os.path.join(room, name + tail), ids_path, config["vocab_size"], cache)
        for tail, cache in (("", "f32"), ("-f32", "f32"), ("", "fp8"))
    )
    if got is None or same is None or got8 is None:
        return [check(name, False, "the engine refused it")]
    size, off, beside = np.abs(want).max(), np.abs(got - want).max(), np.abs(got - same).max()
    n = nll(got, ids), nll(want, ids)
    return [
        check(
            name,
            off < 2e-5 * size and beside < 2e-5 * size,
            f"logits of size {size:.2f} off by {off:.2g} from float64, {beside:.2g} from F32 weights",
        ),
        check(name, abs(n[0] - n[1]) < 1e-5, f"mean likelihood {n[0]:.6f}, float64 {n[1]:.6f}"),
        check(
            name,
            rms(got8 - want8) < 0.2 * rms(want8 - want),
            f"a cache of fp8 moves logits by {rms(want8 - want):.2g}, off by {rms(got8 - want8):.2g}",
        ),
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    args = parser.parse_args()
    done = []
    with tempfile.TemporaryDirectory() as room:
        for model, config in (("qwen3", QWEN), ("llama", LLAMA)):
            for i, form in enumerate(FORMS):
                done += compare(args, room, f"{model}-{form}", config, form, 1 + i)
    print(f"{sum(done)} passed, {len(done) - sum(done)} failed")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
