"""Decoders for embeddings in float64: reference.py's forward, the pooling of sentence-transformers behind the final
norm; and a maker of small random models of every form, as a folder and as a GGUF file.

A folder: config.json, model.safetensors, tokenizer.json, tokenizer_config.json and a card (modules.json,
1_Pooling/config.json).
"""

import json
import os

import gguf
import numpy as np
from encode_reference import POOLINGS, read_json
from reference import Reference
from safetensors.numpy import load_file, save_file

NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
END = "<|endoftext|>"


def gguf_name(name):
    name = name.removeprefix("model.")
    if not name.startswith("layers."):
        return NAMES[name]
    _, layer, rest = name.split(".", 2)
    stem, tail = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[rest] if rest in NAMES else NAMES[stem] + '.' + tail}"


class Decoder:
    scores = False

    def __init__(self, folder, normalise=None):
        self.config = read_json(folder, "config.json")
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        t = {gguf_name(k): v.astype(np.float64) for k, v in tensors.items() if not k.startswith("lm_head")}
        card = read_json(folder, "1_Pooling/config.json")
        self.pooling = next(k for k, v in POOLINGS.items() if card.get(v))
        modules = read_json(folder, "modules.json")
        self.normalise = any(m["type"].endswith("Normalize") for m in modules) if normalise is None else normalise
        arch = self.config["architectures"][0]
        self.ref = Reference(
            self.config, t.__getitem__, True, qkv_bias=arch.startswith("Qwen2"), qk_norm=arch.startswith("Qwen3")
        )

    def __call__(self, ids, n_first=None):
        x = self.ref.hidden(np.array(ids))
        v = {"cls": x[0], "mean": x.mean(0), "last": x[-1]}[self.pooling]
        return v / np.linalg.norm(v) if self.normalise else v


# ---- small random models ----


def letters():
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


QWEN2 = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
    "|\\s+(?!\\S)|\\s+"
)


def tiny_tokenizer():
    """Bytes, four merges, and two tokens that end things; texts end with the one that is not the eos_token, as those of
    Qwen3-Embedding do."""
    vocab = {c: i for i, c in enumerate(letters().values())}
    merges = [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"]]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    special = [
        {"id": len(vocab) + i, "special": True, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, t in enumerate((END, "<|im_end|>"))
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
    text = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": END, "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": text,
        "pair": [*text, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": END, "type_id": 1}}],
        "special_tokens": {END: {"id": END, "ids": [special[0]["id"]], "tokens": [END]}},
    }
    return {
        "added_tokens": special,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": {"type": "Sequence", "processors": [{**byte_level}, template]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": False},
    }


def random_tensors(config, bias, norms, rng):
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def matrix(rows, cols):
        return (rng.standard_normal((rows, cols)) * 1.5 / np.sqrt(cols)).astype(np.float32)

    def vector(n, mean):
        return (rng.standard_normal(n) * 0.2 + mean).astype(np.float32)

    t = {"embed_tokens.weight": matrix(config["vocab_size"], hidden), "norm.weight": vector(hidden, 1)}
    for i in range(config["num_hidden_layers"]):
        at = f"layers.{i}."
        for name, rows, cols in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            t[f"{at}self_attn.{name}_proj.weight"] = matrix(rows, cols)
            if bias and name != "o":
                t[f"{at}self_attn.{name}_proj.bias"] = vector(rows, 0)
        for name, rows, cols in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            t[f"{at}mlp.{name}_proj.weight"] = matrix(rows, cols)
        for name in ("input_layernorm", "post_attention_layernorm"):
            t[f"{at}{name}.weight"] = vector(hidden, 1)
        for name in ("q_norm", "k_norm") if norms else ():
            t[f"{at}self_attn.{name}.weight"] = vector(dim, 1)
    return t


def make(folder, seed, arch="Qwen3ForCausalLM", prefix="", head=False, hidden=64, heads=4, kv_heads=2, dim=16, ffn=128,
         layers=3, positions=200, pooling="last", normalise=True, dtype=np.float32, more=None):  # fmt: skip
    """Writes a random model; the same seed, the same model. prefix: of the tensors' names; head: there is one."""
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    tokenizer = tiny_tokenizer()
    vocab = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    config = {
        "architectures": [arch],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "sliding_window": None,
        "tie_word_embeddings": not head,
        **(more or {}),
    }
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalise
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "add_bos_token": False},
        "modules.json": [{"type": f"sentence_transformers.models.{k}"} for k in kinds],
        "1_Pooling/config.json": {v: k == pooling for k, v in POOLINGS.items()},
    }
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    rng = np.random.default_rng(seed)
    t = {prefix + k: v for k, v in random_tensors(config, "Qwen2" in arch, "Qwen3" in arch, rng).items()}
    if head:
        t["lm_head.weight"] = rng.standard_normal((vocab, hidden)).astype(np.float32)
    save_file({k: v.astype(dtype) for k, v in t.items()}, os.path.join(folder, "model.safetensors"))
    return vocab


# ---- GGUF ----


def add_tokenizer(w, folder):
    t = read_json(folder, "tokenizer.json")
    vocab = sorted(t["model"]["vocab"].items(), key=lambda v: v[1])
    special = [a["content"] for a in t["added_tokens"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list([s for s, _ in vocab] + special)
    w.add_token_types([1] * len(vocab) + [3] * len(special))
    w.add_token_merges([" ".join(m) for m in t["model"]["merges"]])
    w.add_eos_token_id(len(vocab))
    w.add_add_eos_token(True)
    w.add_add_bos_token(False)


def interleave(value, heads):
    """llama.cpp's order of the rows of q and k where RoPE turns neighbours."""
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return halves.swapaxes(1, 2).reshape(value.shape)


def write_gguf(folder, path, kind=None):
    """As llama.cpp converts it. kind: of the matrices ("Q8_0"); None: as they are."""
    c = read_json(folder, "config.json")
    arch = {"Qwen3": "qwen3", "Qwen2": "qwen2", "Mistral": "llama", "Llama": "llama"}
    name = next(v for k, v in arch.items() if c["architectures"][0].startswith(k))
    card = read_json(folder, "1_Pooling/config.json")
    pooling = next(k for k, v in POOLINGS.items() if card.get(v))
    w = gguf.GGUFWriter(path, name)
    w.add_name(os.path.basename(folder.rstrip("/")))
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_uint32(f"{name}.pooling_type", {"mean": 1, "cls": 2, "last": 3}[pooling])
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    add_tokenizer(w, folder)
    for full, value in load_file(os.path.join(folder, "model.safetensors")).items():
        if full.startswith("lm_head"):
            w.add_tensor("output.weight", value)
            continue
        own = gguf_name(full)
        if name == "llama" and ("attn_q" in own or "attn_k" in own):
            value = interleave(value, c["num_attention_heads" if "attn_q" in own else "num_key_value_heads"])
        if kind and value.ndim == 2:
            form = gguf.GGMLQuantizationType[kind]
            w.add_tensor(own, gguf.quants.quantize(value, form), raw_dtype=form)
        else:
            w.add_tensor(own, value if value.ndim == 2 else value.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
