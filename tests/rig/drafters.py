"""Folders with made-up weights that guess: heads for a model's last hidden state, and a small model. Tests only."""

import array
import json
import math
import os
import random


def echo_heads(folder, hidden, vocab=500):
    """An MLP speculator that guesses the token before once more: a head's row is the state that its embedding gives."""
    inner, noise = 32, random.Random(3)
    emb, head = array.array("f"), array.array("f")
    for _ in range(vocab):
        row = [noise.uniform(-1, 1) for _ in range(inner)]
        rms = math.sqrt(sum(x * x for x in row) / inner)
        emb.extend(row)
        head.extend(4 * x / rms * (1 + math.erf(x / rms / math.sqrt(2))) for x in row)
    zeros, ones = (array.array("f", [x]) for x in (0, 1))
    tensors = {
        "emb.0.weight": ([vocab, inner], emb),
        "head.0.weight": ([vocab, inner], head),
        "proj.0.weight": ([inner, hidden], zeros * (inner * hidden)),
        "proj.1.weight": ([inner, inner], zeros * (inner * inner)),
        "ln.0.weight": ([inner], ones * inner),
        "ln.0.bias": ([inner], zeros * inner),
    }
    config = {"architectures": ["MLPSpeculatorPreTrainedModel"], "n_predict": 3, "tie_weights": True}
    return write_folder(folder, {**config, "emb_dim": hidden, "inner_dim": inner, "vocab_size": vocab}, tensors)


def write_folder(folder, config, tensors):
    header, body = {}, b""
    for key, (shape, data) in tensors.items():
        at = len(body)
        body += data.tobytes()
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [at, len(body)]}
    text = json.dumps(header).encode()
    os.mkdir(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + body)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def small_model(folder, vocab):
    """A Llama of one layer, that says whatever it says."""
    hidden, heads, dim, wide, noise = 64, 2, 32, 96, random.Random(4)

    def matrix(rows, cols):
        return [rows, cols], array.array("f", (noise.uniform(-1, 1) / math.sqrt(cols) for _ in range(rows * cols)))

    layer = {"self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (dim, hidden)}
    layer |= {"self_attn.v_proj": (dim, hidden), "self_attn.o_proj": (hidden, heads * dim)}
    layer |= {"mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide)}
    tensors = {f"model.layers.0.{key}.weight": matrix(*shape) for key, shape in layer.items()}
    tensors["model.embed_tokens.weight"] = matrix(vocab, hidden)
    for norm in ("norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"):
        tensors[f"model.{norm}.weight"] = ([hidden], array.array("f", [1]) * hidden)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    config |= {"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "num_hidden_layers": 1, "hidden_size": hidden}
    config |= {"num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": dim, "intermediate_size": wide}
    return write_folder(folder, {**config, "vocab_size": vocab, "tie_word_embeddings": True}, tensors)
