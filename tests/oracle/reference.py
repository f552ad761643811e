"""The forward pass in float64 numpy, written from the models' papers and independent of the engine: Llama, Mistral,
Qwen2, Qwen3, and SwiftKV (arXiv 2410.03960): layers from num_key_value_layers on take keys and values from one hidden
state, the normed residual before the first of them.

A model is a config (a dict with the names of config.json) and a function get(name) -> float64 array, where names are
GGUF's.
"""

import math

import numpy as np


def inv_freq(cfg, dim):
    """Hugging Face's rope types, from their definitions in wavelengths."""
    base = cfg.get("rope_theta", 10000.0)
    freq = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaling = cfg.get("rope_scaling") or {}
    kind = scaling.get("rope_type", "default")
    factor = scaling.get("factor", 1.0)
    if kind == "linear":
        return freq / factor, 1.0
    if kind == "llama3":
        old = scaling["original_max_position_embeddings"]
        long_wave, short_wave = old / scaling["low_freq_factor"], old / scaling["high_freq_factor"]
        wave = 2 * math.pi / freq
        smooth = (old / wave - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
        blended = (1 - smooth) * freq / factor + smooth * freq
        return np.where(wave > long_wave, freq / factor, np.where(wave < short_wave, freq, blended)), 1.0
    if kind == "yarn":
        old = scaling["original_max_position_embeddings"]

        def dim_of(rotations):
            return dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dim_of(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(dim_of(scaling.get("beta_slow", 1))), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return freq / factor * ramp + freq * (1 - ramp), 0.1 * math.log(factor) + 1.0
    assert kind == "default", kind
    return freq, 1.0


def rms(x, gain, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rotate(x, cos, sin, halves):
    """x [tokens, heads, dim]; cos, sin [tokens, dim / 2]"""
    half = x.shape[-1] // 2
    a, b = (x[..., :half], x[..., half:]) if halves else (x[..., 0::2], x[..., 1::2])
    c, s = cos[:, None, :], sin[:, None, :]
    turned = a * c - b * s, b * c + a * s
    if halves:
        return np.concatenate(turned, axis=-1)
    return np.stack(turned, axis=-1).reshape(x.shape)


def attention(q, k, v, window):
    """q [tokens, heads, dim], k and v [tokens, kv_heads, dim]; causal, over the last `window` tokens (0: all)"""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    at = np.arange(n)
    hidden = at[None, :] > at[:, None]
    if window:
        hidden |= at[None, :] <= at[:, None] - window
    out = np.empty_like(q)
    for h in range(heads):
        scores = q[:, h] @ k[:, h // group].T / math.sqrt(dim)
        scores[hidden] = -np.inf
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, h] = (scores / scores.sum(axis=1, keepdims=True)) @ v[:, h // group]
    return out.reshape(n, heads * dim)


class Reference:
    def __init__(self, cfg, get, halves, qkv_bias=False, qk_norm=False):
        self.cfg, self.get, self.halves, self.qkv_bias, self.qk_norm = cfg, get, halves, qkv_bias, qk_norm
        self.heads, self.kv_heads = cfg["num_attention_heads"], cfg["num_key_value_heads"]
        self.dim = cfg.get("head_dim") or cfg["hidden_size"] // self.heads
        self.eps = cfg["rms_norm_eps"]

    def layer(self, x, i, cos, sin, shared=None):
        """shared: what k and v are taken from; None: from what q is."""

        def w(name):
            return self.get(f"blk.{i}.{name}")

        h = rms(x, w("attn_norm.weight"), self.eps)
        parts = []
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            y = (h if name == "q" or shared is None else shared) @ w(f"attn_{name}.weight").T
            if self.qkv_bias:
                y = y + w(f"attn_{name}.bias")
            y = y.reshape(len(x), heads, self.dim)
            if self.qk_norm and name != "v":
                y = rms(y, w(f"attn_{name}_norm.weight"), self.eps)
            parts.append(y if name == "v" else rotate(y, cos, sin, self.halves))
        x = x + attention(*parts, self.cfg.get("sliding_window") or 0) @ w("attn_output.weight").T
        h = rms(x, w("ffn_norm.weight"), self.eps)
        gate = h @ w("ffn_gate.weight").T
        return x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up.weight").T)) @ w("ffn_down.weight").T

    def hidden(self, ids):
        freq, scale = inv_freq(self.cfg, self.dim)
        angle = np.arange(len(ids), dtype=np.float64)[:, None] * freq[None, :]
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        x = self.get("token_embd.weight")[ids]
        shared, own = None, self.cfg.get("num_key_value_layers", self.cfg["num_hidden_layers"])
        for i in range(self.cfg["num_hidden_layers"]):
            if i == own:
                shared = rms(x, self.get("swiftkv_norm.weight"), self.eps)
            x = self.layer(x, i, cos, sin, shared)
        return rms(x, self.get("output_norm.weight"), self.eps)

    def head(self):
        return self.get("token_embd.weight" if self.cfg.get("tie_word_embeddings") else "output.weight")

    def logits(self, ids):
        return self.hidden(ids) @ self.head().T
