#!/usr/bin/env python3
"""A Llama of one small layer with the tokenizer of another GGUF file and random weights: computing with it costs next
to nothing, so that a server around it shows what its front costs. Needs the gguf package.
usage: tiny_gguf.py SOURCE.gguf OUT.gguf"""

import sys

import gguf
import numpy

HIDDEN, HEADS, FFN = 64, 1, 64


def copy_tokenizer(reader, writer):
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, kind, sub_type=field.types[1])
        else:
            writer.add_key_value(name, value, kind)


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    writer = gguf.GGUFWriter(sys.argv[2], "llama")
    vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    copy_tokenizer(reader, writer)
    writer.add_block_count(1)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN)
    writer.add_vocab_size(vocab)
    rng = numpy.random.default_rng(1)
    shapes = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }
    shapes |= {f"blk.0.attn_{m}.weight": (HIDDEN, HIDDEN) for m in ("q", "k", "v", "output")}
    for name, shape in shapes.items():
        one = len(shape) == 1
        writer.add_tensor(name, numpy.ones(shape, "f4") if one else (rng.standard_normal(shape) * 0.05).astype("f2"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
