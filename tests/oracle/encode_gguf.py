"""A BERT folder as a GGUF file, as llama.cpp converts it and reads it; for the oracle and the benchmark."""

import json
import os
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

sys.path.insert(0, os.path.dirname(__file__))
from encode_reference import POOLINGS, read_json

NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def gguf_name(name):
    name = name.removeprefix("bert.")
    stem, tail = name.rsplit(".", 1)
    if stem.startswith("encoder.layer."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{tail}"
    return f"{NAMES[stem]}.{tail}"


def add_tokenizer(w, folder):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    special = {a["content"] for a in t["added_tokens"]}
    vocab = sorted(t["model"]["vocab"].items(), key=lambda v: v[1])
    w.add_tokenizer_model("bert")
    w.add_token_list([s if s in special else s[2:] if s.startswith("##") else "\u2581" + s for s, _ in vocab])
    w.add_token_types([3 if s in special else 1 for s, _ in vocab])
    ids = t["model"]["vocab"]
    w.add_bos_token_id(ids["[CLS]"])
    w.add_eos_token_id(ids["[SEP]"])
    w.add_sep_token_id(ids["[SEP]"])
    w.add_unk_token_id(ids["[UNK]"])
    w.add_pad_token_id(ids["[PAD]"])
    w.add_mask_token_id(ids["[MASK]"])
    w.add_token_type_count(2)


def write_gguf(folder, path, fused=False, half=False):
    """fused: queries, keys and values in one tensor. half: matrices in f16."""
    config = read_json(folder, "config.json")
    card = read_json(folder, "1_Pooling/config.json") or {"pooling_mode_mean_tokens": True}
    pooling = next(k for k, v in POOLINGS.items() if card.get(v))
    scores = config["architectures"] == ["BertForSequenceClassification"]
    kinds = {"mean": 1, "cls": 2, "last": 3}
    w = gguf.GGUFWriter(path, "bert")
    w.add_name(os.path.basename(folder.rstrip("/")))
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_eps(config["layer_norm_eps"])
    w.add_causal_attention(False)
    w.add_uint32("bert.pooling_type", 4 if scores else kinds[pooling])
    w.add_file_type(1 if half else 0)
    add_tokenizer(w, folder)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    named = {gguf_name(k): v for k, v in tensors.items() if v.dtype == np.float32 and ("pooler" not in k or scores)}
    for i in range(config["num_hidden_layers"] if fused else 0):
        for tail in ("weight", "bias"):
            parts = [named.pop(f"blk.{i}.attn_{x}.{tail}") for x in "qkv"]
            named[f"blk.{i}.attn_qkv.{tail}"] = np.concatenate(parts)
    for name, value in named.items():
        narrow = half and value.ndim == 2 and name.startswith("blk.")
        w.add_tensor(name, value.astype(np.float16) if narrow else value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
