#!/usr/bin/env python3
"""A Llama with random weights and the tokenizer of another GGUF file. As it comes it has one small layer: computing
with it costs next to nothing, so that a server around it shows what its front costs. Needs the gguf package.
Layers are alike. Sizes of Llama-3.2-1B: --layers 16 --hidden 2048 --heads 32 --kv-heads 8 --ffn 8192 --vocab 128256; of
Llama-3.1-8B: --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256.
usage: tiny_gguf.py SOURCE.gguf OUT.gguf [--layers N] [--hidden N] [--heads N] [--kv-heads N] [--ffn N] [--vocab N]
                    [--type F16|Q4_0|Q8_0]"""

import argparse

import gguf
import numpy

PADS = {"tokens": lambda i: f"<pad{i}>", "token_type": lambda _: int(gguf.TokenType.UNUSED), "scores": lambda _: 0.0}


def copy_tokenizer(reader, writer, vocab):
    """With tokens that no text has up to the size of the vocabulary."""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        pad = PADS.get(name.removeprefix("tokenizer.ggml."))
        if pad:
            value = value + [pad(i) for i in range(len(value), vocab)]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, kind, sub_type=field.types[1])
        else:
            writer.add_key_value(name, value, kind)


def arguments():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[-1])
    p.add_argument("source")
    p.add_argument("out")
    for name, n in (("layers", 1), ("hidden", 64), ("heads", 1), ("ffn", 64)):
        p.add_argument(f"--{name}", type=int, default=n)
    p.add_argument("--kv-heads", type=int, help="as many as heads")
    p.add_argument("--vocab", type=int, default=0, help="at least the source's, which it is by default")
    p.add_argument("--type", choices=["F16", "Q4_0", "Q8_0"], default="F16")
    o = p.parse_args()
    o.kv_heads = o.kv_heads or o.heads
    return o


def add_shape(writer, o, vocab):
    writer.add_block_count(o.layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(o.hidden)
    writer.add_feed_forward_length(o.ffn)
    writer.add_head_count(o.heads)
    writer.add_head_count_kv(o.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(o.hidden // o.heads)
    writer.add_vocab_size(vocab)


def shapes(o, vocab):
    yield "token_embd.weight", (vocab, o.hidden)
    yield "output_norm.weight", (o.hidden,)
    for i in range(o.layers):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{i}.{name}.weight", (o.hidden,)
        for name in ("q", "output"):
            yield f"blk.{i}.attn_{name}.weight", (o.hidden, o.hidden)
        for name in ("k", "v"):
            yield f"blk.{i}.attn_{name}.weight", (o.hidden // o.heads * o.kv_heads, o.hidden)
        for name in ("gate", "up"):
            yield f"blk.{i}.ffn_{name}.weight", (o.ffn, o.hidden)
        yield f"blk.{i}.ffn_down.weight", (o.hidden, o.ffn)


def add_weights(writer, o, vocab):
    rng = numpy.random.default_rng(1)
    kind = gguf.GGMLQuantizationType[o.type]
    made = {}
    for name, shape in shapes(o, vocab):
        if len(shape) == 1:
            writer.add_tensor(name, numpy.ones(shape, "f4"))
            continue
        alike = name.split(".", 2)[-1]
        if alike not in made:
            weights = rng.standard_normal(shape, "f4") * numpy.float32(0.05)
            made[alike] = gguf.quants.quantize(weights, kind)
        writer.add_tensor(name, made[alike], raw_dtype=kind)


def main():
    o = arguments()
    reader = gguf.GGUFReader(o.source)
    writer = gguf.GGUFWriter(o.out, "llama")
    vocab = max(o.vocab, len(reader.fields["tokenizer.ggml.tokens"].data))
    copy_tokenizer(reader, writer, vocab)
    add_shape(writer, o, vocab)
    add_weights(writer, o, vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
