"""The encoder against BERT in float64 (encode_reference.py): vectors and scores of random packings.

    python tests/oracle/encode_oracle.py --binary build/tests/encode_vectors [--model DIR] [--long]

Small random models of every form are made here: sizes that are no multiples of anything, each pooling, cross-encoders
with pairs, half-precision files, GGUF files. --model adds a folder (all-MiniLM-L6-v2, by models/fetch.sh) with lengths
1 .. 512 (--long: all of them); --model fetch: models/fetch.sh gets it. A cosine must be 0.9999 or more, a length and a
score as close. Prints `N passed, N failed`; exit status 1 when anything failed.
"""

import argparse
import os
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
from encode_gguf import write_gguf
from encode_reference import Bert, make

LEAST = 0.9999
FORMS = {
    "mean": {},
    "cls": {"pooling": "cls"},
    "last": {"pooling": "last", "normalise": False},
    "long vectors": {"normalise": False},
    "odd sizes": {"hidden": 45, "heads": 3, "ffn": 77, "layers": 3},
    "wide heads": {"hidden": 200, "heads": 2, "ffn": 300},
    "one head": {"hidden": 33, "heads": 1, "ffn": 130},
    "one column": {"hidden": 7, "heads": 7, "ffn": 20},
    "wide": {"hidden": 384, "heads": 12, "ffn": 1536, "layers": 1},
    "one type": {"types": 1},
    "long": {"positions": 1300, "layers": 2},
    "half": {"dtype": np.float16},
    "score": {"labels": 1},
    "three labels": {"labels": 3, "hidden": 48},
}


class Ours:
    """encode_vectors at a pipe."""

    def __init__(self, binary, model, threads, rows, device="cpu"):
        self.p = subprocess.Popen(
            [binary, model, device, str(threads), str(rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        facts = self.p.stderr.readline().decode()
        if "dim " not in facts:
            sys.exit(f"{model}: {facts}")
        self.facts = facts.strip()
        self.dim = int(facts.split("dim ")[1].split(",")[0])

    def send(self, seqs):
        data = struct.pack("<I", len(seqs))
        for ids, first in seqs:
            data += struct.pack(f"<ii{len(ids)}i", len(ids), first, *ids)
        self.p.stdin.write(data)
        self.p.stdin.flush()

    def __call__(self, seqs):
        self.send(seqs)
        n = 4 * self.dim * len(seqs)
        data = self.p.stdout.read(n)
        if len(data) != n:
            sys.exit(self.p.stderr.read().decode())
        return np.frombuffer(data, np.float32).reshape(len(seqs), self.dim)

    def time(self, seqs, seconds):
        """Seconds of the fastest run, and CPU seconds, all threads, of the run that took the fewest."""
        self.p.stdin.write(struct.pack("<id", -1, seconds))
        self.send(seqs)
        return struct.unpack("<dd", self.p.stdout.read(16))

    def close(self):
        self.p.stdin.close()
        self.p.wait()


class Tally:
    def __init__(self):
        self.passed = self.failed = 0
        self.worst = 0.0

    def check(self, what, got, want, scores):
        cosine = float(got @ want / np.linalg.norm(got) / np.linalg.norm(want)) if not scores else 1.0
        length = abs(np.linalg.norm(got) / np.linalg.norm(want) - 1)
        off = float(np.abs(got - want).max()) if scores else 1 - cosine
        self.worst = max(self.worst, off)
        if np.isfinite(off) and (off <= 0.01 if scores else cosine >= LEAST and length <= 0.01):
            self.passed += 1
            return
        self.failed += 1
        if self.failed <= 20:
            print(f"FAILED {what}: 1 - cosine {1 - cosine:.2e}, length off by {length:.2e}, {off:.2e}")


def sequences(rng, lengths, vocab):
    out = []
    for n in lengths:
        ids = [rng.randrange(vocab) for _ in range(n)]
        out.append((ids, rng.choice((n, n, rng.randint(1, n)))))
    return out


def compare(what, ref, ours, seqs, wants, rng, tally):
    """Packs them at random, twice; the vectors must be the same both times, bit for bit."""
    before = None
    for _ in range(2):
        order = list(range(len(seqs)))
        rng.shuffle(order)
        got = [None] * len(seqs)
        while order:
            part = [order.pop() for _ in range(min(len(order), rng.randint(1, 12)))]
            for i, v in zip(part, ours([seqs[i] for i in part])):
                got[i] = v
        if before is None:
            for s, g, w in zip(seqs, got, wants):
                tally.check(f"{what}, {len(s[0])} tokens", g.astype(np.float64), w, ref.scores)
        elif all((a == b).all() for a, b in zip(before, got)):
            tally.passed += 1
        else:
            tally.failed += 1
            print(f"FAILED {what}: a vector depends on what it is packed with")
        before = got


def small_models(binary, folder, tally):
    for seed, (name, form) in enumerate(FORMS.items()):
        site = os.path.join(folder, name.replace(" ", "_"))
        make(site, seed, **form)
        rng, ref = random.Random(seed), Bert(site)
        positions = form.get("positions", 96)
        lengths = [1, 2, 3, 7, 15, 16, 17, 33, 64, positions] + ([511, 512, 513, 1025] if positions > 512 else [])
        lengths += [rng.randint(1, 96) for _ in range(14)]
        seqs = sequences(rng, lengths, 300)
        wants = [ref(*s) for s in seqs]
        tally.worst, failed = 0.0, tally.failed
        paths = [site]
        if form.get("dtype") is None:
            paths.append(write_gguf(site, os.path.join(site, "model.gguf"), fused=seed % 2 == 1))
        for path in paths:
            gguf = path.endswith(".gguf")
            if gguf and not ref.scores:  # such files say nothing of length: it is 1
                wants = [w / np.linalg.norm(w) for w in wants]
            ours = Ours(binary, path, 1 + seed % 3, 12 * positions)
            compare(name + (", GGUF" if gguf else ""), ref, ours, seqs, wants, rng, tally)
            ours.close()
        print(f"{name}: {'equal' if tally.failed == failed else 'differs'}, worst {tally.worst:.1e}", flush=True)


def real_model(binary, model, every, folder, tally):
    ref, rng = Bert(model), random.Random(1)
    vocab = ref.config["vocab_size"]
    lengths = range(1, 513) if every else [1, 2, 3, 4, 5, 8, 16, 31, 50, 64, 100, 128, 200, 256, 384, 511, 512]
    seqs = [(ids, len(ids)) for ids, _ in sequences(rng, lengths, vocab)] + texts(model)
    tally.worst, failed = 0.0, tally.failed
    wants = [ref(*s) for s in seqs]
    for path in (model, write_gguf(model, os.path.join(folder, "model.gguf"), fused=False)):
        ours = Ours(binary, path, 2, 12 * 512)
        compare("the model", ref, ours, seqs, wants, rng, tally)
        ours.close()
    print(f"the model: {'equal' if tally.failed == failed else 'differs'}, worst {tally.worst:.1e}", flush=True)


def texts(model):
    """Sequences of real text: the repository's pages, cut at random, and short questions."""
    from tokenizers import Tokenizer

    lib, rng = Tokenizer.from_file(os.path.join(model, "tokenizer.json")), random.Random(3)
    lib.no_truncation()
    lib.no_padding()
    with open("docs/internals.md", encoding="utf-8") as f:
        page = lib.encode(f.read()).ids[1:-1]
    out = []
    for n in [1, 2, 3, 5, 8, 12, 20, 30, 48, 48, 80, 126, 200, 254, 510]:
        at = rng.randrange(len(page) - n)
        out.append([101, *page[at : at + n], 102])
    for t in ("", "a", "Hello world", "How do I reset my password?", "SELECT * FROM t;", "\u65e5\u672c\u8a9e", "!!!"):
        out.append(lib.encode(t).ids)
    return [(ids, len(ids)) for ids in out]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--binary", required=True, help="the helper program encode_vectors")
    args.add_argument("--model", help="a folder with a BERT model")
    args.add_argument("--long", action="store_true", help="every length from 1 to 512")
    args = args.parse_args()
    tally = Tally()
    if args.model == "fetch":
        fetched = subprocess.run(["models/fetch.sh", "embed"], capture_output=True, text=True, check=True)
        args.model = fetched.stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        small_models(args.binary, folder, tally)
        if args.model:
            real_model(args.binary, args.model, args.long, folder, tally)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
