"""What the peers' sides of the model benchmark share: steps of random tokens over an interface like llama.cpp's, timed
as model_bench.c times ours, and the nats a token of a text."""

import json
import math
import random
import sys
import time

BATCH, SEQS, TOKENS = 1024, 16, 4096


class PeerSide:
    """A side has run (a step of self.batch), logits (of its row i), wait and remove (a sequence from a depth on)."""

    def __init__(self, vocab, batch):
        self.vocab, self.batch = vocab, batch
        self.depth = [0] * SEQS
        self.random = random.Random(1)

    def put(self, k, token, pos, seq, wanted):
        b = self.batch
        b.token[k], b.pos[k], b.n_seq_id[k], b.logits[k] = token, pos, 1, wanted
        b.seq_id[k][0] = seq

    def go(self, n):
        self.batch.n_tokens = n
        if self.run() != 0:
            raise SystemExit("llama_decode failed")

    def step(self, seqs, n):
        """n new random tokens for each sequence, logits for the last of each."""
        k = 0
        for s in seqs:
            for i in range(n):
                self.put(k, self.random.randrange(self.vocab), self.depth[s] + i, s, i == n - 1)
                k += 1
            self.depth[s] += n
        self.go(k)

    def cut(self, s, depth):
        self.remove(s, depth)
        self.depth[s] = depth

    def fill(self, s, depth):
        while self.depth[s] < depth:
            self.step([s], min(BATCH, depth - self.depth[s]))

    def prefill(self, n):
        self.cut(0, 0)
        begin = time.perf_counter()
        self.fill(0, n)
        self.wait()
        return time.perf_counter() - begin

    def decode(self, n_seqs, depth, n):
        seqs = range(n_seqs)
        for s in range(SEQS):
            if s >= n_seqs and self.depth[s]:
                self.cut(s, 0)
        for s in seqs:
            if self.depth[s] < depth:
                self.cut(s, 0)
                self.fill(s, depth)
            self.cut(s, depth)
        self.wait()
        begin = time.perf_counter()
        for _ in range(n):
            self.step(seqs, 1)
        self.wait()
        return time.perf_counter() - begin

    def nll(self, path):
        """Nats a token of the ids in a file, and the likeliest token after each but the last."""
        with open(path) as f:
            ids = json.load(f)
        self.cut(0, 0)
        total, best = 0.0, []
        for at in range(0, len(ids) - 1, 256):
            part = ids[at : min(at + 256, len(ids) - 1)]
            for k, token in enumerate(part):
                self.put(k, token, at + k, 0, True)
            self.go(len(part))
            for k in range(len(part)):
                z = self.logits(k)[: self.vocab]
                most = max(z)
                total -= z[ids[at + k + 1]] - most - math.log(sum(math.exp(v - most) for v in z))
                best.append(z.index(most))
        self.cut(0, 0)
        return total / (len(ids) - 1), best


def obey(side, what):
    print("ready", what, flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "nll":
            print(json.dumps(side.nll(words[0])), flush=True)
        else:
            print(f"{getattr(side, verb)(*map(int, words)):.9g}", flush=True)
