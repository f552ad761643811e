"""The key-values of a GGUF file, by name. The package gguf reads them, too, at some 20 us for each string of a list: a
vocabulary and its merges take it four seconds."""

import struct

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, LIST = 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def numbers(self, kind, n):
        found = struct.unpack_from(f"<{n}{NUMBERS[kind]}", self.data, self.at)
        self.at += n * struct.calcsize(NUMBERS[kind])
        return found

    def number(self, kind):
        return self.numbers(kind, 1)[0]

    def string(self):
        size = self.number(10)
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != LIST:
            return self.number(kind)
        kind, n = self.number(4), self.number(10)
        return list(self.numbers(kind, n)) if kind in NUMBERS else [self.value(kind) for _ in range(n)]


def fields(path, size=1 << 26):
    """A dict: numbers, strings, and lists of them. `size`: as much of the file as holds them all, in bytes."""
    with open(path, "rb") as f:
        r = Reader(f.read(size))
    assert r.data[:4] == b"GGUF", path
    r.at = 4
    version, _, n = r.number(4), r.number(10), r.number(10)
    assert version in (2, 3), f"{path}: GGUF of version {version}"
    found = {}
    for _ in range(n):
        name = r.string()
        found[name] = r.value(r.number(4))
    return found
