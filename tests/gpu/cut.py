#!/usr/bin/env python3
"""Cuts a GGUF model down to some layers and its first tokens, for an archive that has to stay small: what stays are
trained weights, bit for bit, though what they say makes little sense. Tokens are cut with their rows of the tables;
merges stay whose words do.
usage: cut.py FROM.gguf TO.gguf LAYER,LAYER... TOKENS"""

import struct
import sys

ALIGN = 32
UINT32, STRING, ARRAY, UINT64, INT64 = 4, 8, 9, 10, 11
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", 5: "i", 6: "f", 7: "?", UINT64: "Q", INT64: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 30: (1, 2)}
BLOCKS |= {10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, code):
        (v,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return v

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            of, n = self.take("I"), self.take("Q")
            return of, [self.value(of) for _ in range(n)]
        return self.take(SCALARS[kind])


def text_bytes(text):
    return struct.pack("<Q", len(text)) + text


def value_bytes(kind, v):
    if kind == STRING:
        return text_bytes(v)
    if kind == ARRAY:
        of, items = v
        return struct.pack("<IQ", of, len(items)) + b"".join(value_bytes(of, i) for i in items)
    return struct.pack("<" + SCALARS[kind], v)


def cut_values(values, layers, n_tokens):
    arch = values[b"general.architecture"][1]
    tokens = values[b"tokenizer.ggml.tokens"][1][1]
    whole = len(tokens)
    kept = set(tokens[:n_tokens])
    for key, (kind, v) in values.items():
        if key == arch + b".block_count":
            values[key] = kind, len(layers)
        elif key == arch + b".vocab_size":
            values[key] = kind, min(v, n_tokens)
        elif key == b"tokenizer.ggml.merges":
            words = [m.split(b" ", 1) for m in v[1]]
            values[key] = kind, (v[0], [a + b" " + b for a, b in words if {a, b, a + b} <= kept])
        elif kind == ARRAY and len(v[1]) == whole:
            values[key] = kind, (v[0], v[1][:n_tokens])
    return whole


def cut_tensors(r, n, whole, layers, n_tokens):
    """Name, sizes, type, offset and bytes of those that stay."""
    for _ in range(n):
        name = r.text()
        sizes = [r.take("Q") for _ in range(r.take("I"))]
        kind, offset = r.take("I"), r.take("Q")
        if name.startswith(b"blk."):
            blk, layer, rest = name.split(b".", 2)
            if int(layer) not in layers:
                continue
            name = b".".join((blk, b"%d" % layers.index(int(layer)), rest))
        if len(sizes) == 2 and sizes[1] == whole:
            sizes[1] = n_tokens
        block, size = BLOCKS[kind]
        length = size
        for s in sizes:
            length *= s
        yield name, sizes, kind, offset, length // block


def cut(data, layers, n_tokens):
    r = Reader(data)
    magic, version, n_tensors, n_values = r.take("I"), r.take("I"), r.take("Q"), r.take("Q")
    if magic != 0x46554747:
        sys.exit("cut.py: not a GGUF file")
    values = {}
    for _ in range(n_values):
        key, kind = r.text(), r.take("I")
        values[key] = kind, r.value(kind)
    if b"general.alignment" in values:
        sys.exit("cut.py: only files of the usual alignment")
    whole = cut_values(values, layers, n_tokens)
    tensors = list(cut_tensors(r, n_tensors, whole, layers, n_tokens))
    start = (r.at + ALIGN - 1) // ALIGN * ALIGN
    out = bytearray(struct.pack("<IIQQ", magic, version, len(tensors), len(values)))
    for key, (kind, v) in values.items():
        out += text_bytes(key) + struct.pack("<I", kind) + value_bytes(kind, v)
    at = 0
    for name, sizes, kind, _, length in tensors:
        out += text_bytes(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, at)
        at += (length + ALIGN - 1) // ALIGN * ALIGN
    out += bytes(-len(out) % ALIGN)
    for _, _, _, offset, length in tensors:
        out += data[start + offset : start + offset + length] + bytes(-length % ALIGN)
    return out


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as f:
        data = f.read()
    with open(sys.argv[2], "wb") as f:
        f.write(cut(data, [int(n) for n in sys.argv[3].split(",")], int(sys.argv[4])))


if __name__ == "__main__":
    main()
