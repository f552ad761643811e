#!/usr/bin/env python3
"""The architectures that programs hold CUDA machine code for, read from their fat binaries: "sm_90" is machine code of
9.0 with its own instructions or without (they do not say), "compute_90" what a driver compiles.
usage: arches.py WANTED FILE...   fails when a file with kernels has no machine code for WANTED (90)"""

import struct
import sys

MAGIC, PTX, MACHINE = 0xBA55ED50, 1, 2


def images(data):
    """Kind and architecture of each image of each fat binary: a header of 16 bytes, then entries of one header each."""
    at = data.find(struct.pack("<I", MAGIC))
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        entry, end = at + header, at + header + size
        while entry + 32 <= min(end, len(data)):
            kind, _, head, length = struct.unpack_from("<HHIQ", data, entry)
            (arch,) = struct.unpack_from("<I", data, entry + 28)
            if kind not in (PTX, MACHINE) or head < 32:
                break
            yield kind, arch
            entry += head + length
        at = data.find(struct.pack("<I", MAGIC), at + 4)


def main():
    wanted, ok = int(sys.argv[1]), True
    for path in sys.argv[2:]:
        with open(path, "rb") as f:
            found = list(images(f.read()))
        if not found:
            continue
        names = sorted({f"{'sm' if kind == MACHINE else 'compute'}_{arch}" for kind, arch in found})
        print(f"{path}: {len(found)} images, {' '.join(names)}")
        ok = ok and (MACHINE, wanted) in found
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
