"""BERT in float64, written from the paper and the published checkpoints' names and not from our C, with the pooling and
the heads of sentence-transformers; and a maker of small random checkpoints of every form.

A model is a folder: config.json, model.safetensors, tokenizer.json, and a card (modules.json, 1_Pooling/config.json).
"""

import json
import math
import os

import numpy as np
from safetensors.numpy import load_file, save_file

POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x):
    return _erf(x).astype(np.float64)


def read_json(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        return json.load(f)


class Bert:
    def __init__(self, folder):
        self.config = read_json(folder, "config.json")
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        self.t = {k.removeprefix("bert."): v.astype(np.float64) for k, v in tensors.items()}
        self.scores = self.config["architectures"] == ["BertForSequenceClassification"]
        card = read_json(folder, "1_Pooling/config.json") or {"pooling_mode_mean_tokens": True}
        self.pooling = next(k for k, v in POOLINGS.items() if card.get(v))
        modules = read_json(folder, "modules.json") or []
        self.normalise = any(m["type"].endswith("Normalize") for m in modules)

    def norm(self, x, name):
        gain = self.t.get(name + ".weight", self.t.get(name + ".gamma"))
        bias = self.t.get(name + ".bias", self.t.get(name + ".beta"))
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + self.config.get("layer_norm_eps", 1e-12)) * gain + bias

    def linear(self, x, name):
        return x @ self.t[name + ".weight"].T + self.t[name + ".bias"]

    def layer(self, x, i):
        at, heads = f"encoder.layer.{i}.", self.config["num_attention_heads"]
        n, hidden = x.shape
        dim = hidden // heads
        q, k, v = (
            self.linear(x, f"{at}attention.self.{w}").reshape(n, heads, dim).transpose(1, 0, 2)
            for w in ("query", "key", "value")
        )
        s = q @ k.transpose(0, 2, 1) / math.sqrt(dim)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        o = (p @ v).transpose(1, 0, 2).reshape(n, hidden)
        x = self.norm(x + self.linear(o, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        h = self.linear(x, at + "intermediate.dense")
        h = h * 0.5 * (1 + erf(h / math.sqrt(2)))
        return self.norm(x + self.linear(h, at + "output.dense"), at + "output.LayerNorm")

    def hidden(self, ids, n_first):
        types = np.arange(len(ids)) >= n_first
        types = types.astype(int) if self.config["type_vocab_size"] > 1 else types.astype(int) * 0
        x = (
            self.t["embeddings.word_embeddings.weight"][ids]
            + self.t["embeddings.position_embeddings.weight"][: len(ids)]
            + self.t["embeddings.token_type_embeddings.weight"][types]
        )
        x = self.norm(x, "embeddings.LayerNorm")
        for i in range(self.config["num_hidden_layers"]):
            x = self.layer(x, i)
        return x

    def __call__(self, ids, n_first=None):
        x = self.hidden(np.array(ids), len(ids) if n_first is None else n_first)
        if self.scores:
            pooled = np.tanh(self.linear(x[0], "pooler.dense"))
            s = self.linear(pooled, "classifier")
            named = self.config.get("sentence_transformers", {}).get("activation_fn", "")
            sigmoid = named.endswith("Sigmoid") if named else len(s) == 1
            return 1 / (1 + np.exp(-s)) if sigmoid else s
        v = {"cls": x[0], "mean": x.mean(0), "last": x[-1]}[self.pooling]
        return v / np.linalg.norm(v) if self.normalise else v


# ---- small random models ----


def tiny_tokenizer(n_vocab):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    words += ["##" + w for w in words[5:] if w.isalnum()] + ["the", "##ing", "hello", "world"]
    words += [f"[unused{i}]" for i in range(n_vocab - len(words))]
    special = [
        {"id": i, "special": True, "content": w, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, w in enumerate(words[:5])
    ]  # fmt: skip
    return {
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {w: i for i, w in enumerate(words[:n_vocab])},
        },
    }


def random_tensors(config, labels, rng):
    hidden, ffn = config["hidden_size"], config["intermediate_size"]

    def matrix(rows, cols, size=1.0):
        return (rng.standard_normal((rows, cols)) * size / math.sqrt(cols)).astype(np.float32)

    def vector(n, size=0.1, mean=0.0):
        return (rng.standard_normal(n) * size + mean).astype(np.float32)

    t = {
        "embeddings.word_embeddings.weight": matrix(config["vocab_size"], hidden, 4),
        "embeddings.position_embeddings.weight": matrix(config["max_position_embeddings"], hidden, 2),
        "embeddings.token_type_embeddings.weight": matrix(config["type_vocab_size"], hidden, 2),
    }
    linears = {}
    norms = ["embeddings.LayerNorm"]
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            linears[at + name] = (hidden, hidden)
        linears[at + "intermediate.dense"] = (ffn, hidden)
        linears[at + "output.dense"] = (hidden, ffn)
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    if labels:
        linears["pooler.dense"] = (hidden, hidden)
    for name, (rows, cols) in linears.items():
        t[name + ".weight"], t[name + ".bias"] = matrix(rows, cols, 1.5), vector(rows)
    for name in norms:
        t[name + ".weight"], t[name + ".bias"] = vector(hidden, 0.2, 1.0), vector(hidden)
    if labels:
        t = {"bert." + k: v for k, v in t.items()}
        t["classifier.weight"], t["classifier.bias"] = matrix(labels, hidden, 2), vector(labels)
    return t


def make(folder, seed, hidden=64, heads=4, ffn=128, layers=2, vocab=300, positions=96, types=2, labels=0,
         pooling="mean", normalise=True, dtype=np.float32):  # fmt: skip
    """Writes a random model; the same seed, the same model."""
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    config = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "model_type": "bert",
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    files = {"config.json": config, "tokenizer.json": tiny_tokenizer(vocab)}
    if labels:
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
    else:
        kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalise
        files["1_Pooling/config.json"] = {v: k == pooling for k, v in POOLINGS.items()}
        files["modules.json"] = [{"type": f"sentence_transformers.models.{k}"} for k in kinds]
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    tensors = random_tensors(config, labels, np.random.default_rng(seed))
    save_file({k: v.astype(dtype) for k, v in tensors.items()}, os.path.join(folder, "model.safetensors"))
