"""The demo model against the truth: teacher-forced logprobs of a fixed text, from a float64 forward over the
dequantised weights.

    python tests/oracle/nll_oracle.py --binary build/tests/nll_logprobs [--model FILE] [--llama] [--write]

Checks the stored token ids against the `tokenizers` library's reading of the model's vocabulary, the engine's NLL and
next tokens against the reference, and, with --llama, against llama-cpp-python. --write stores the ids and the reference
in tests/data, where tests/gold/nll.c finds them; without it the stored reference is compared too. Prints `N passed, N
failed`; exit status 1 when anything failed.
"""

import argparse
import json
import os
import subprocess
import sys

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, os.path.dirname(__file__))
from reference import Reference

TEXT, IDS, STORED = "tests/data/nll_text.txt", "tests/data/nll_tokens.json", "tests/data/nll_reference.bin"
passed = failed = 0


def check(what, ok, detail=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(f"{'ok  ' if ok else 'FAIL'} {what}{': ' + detail if detail else ''}", flush=True)


def tokens_of(reader, text):
    vocab = {t: i for i, t in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
    merges = [tuple(m.split(" ", 1)) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE(vocab, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    ids = t.encode(text).ids
    assert t.decode(ids) == text
    return ids


def open_reference(reader):
    def key(name):
        return reader.fields[f"llama.{name}"].contents()

    tensors = {t.name: t for t in reader.tensors}
    cache = {}

    def get(name):
        if name not in cache:
            t = tensors[name]
            shape = tuple(int(d) for d in reversed(t.shape))
            cache[name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64).reshape(shape)
        return cache[name]

    cfg = {
        "num_hidden_layers": key("block_count"),
        "hidden_size": key("embedding_length"),
        "num_attention_heads": key("attention.head_count"),
        "num_key_value_heads": key("attention.head_count_kv"),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "rope_theta": key("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    return Reference(cfg, get, halves=False)


def score(reference, ids):
    """Logprobs of ids[1:] and the likeliest token at each place, by blocks of rows."""
    hidden, head = reference.hidden(ids)[:-1], reference.head()
    logprobs, best = [], []
    for at in range(0, len(hidden), 256):
        z = hidden[at : at + 256] @ head.T
        z -= z.max(axis=1, keepdims=True)
        z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
        logprobs.append(z[np.arange(len(z)), ids[at + 1 : at + 1 + len(z)]])
        best.append(z.argmax(axis=1))
    return np.concatenate(logprobs), np.concatenate(best).astype(np.int32)


def engine(binary, model, *more):
    out = subprocess.run([binary, model, IDS, *more], capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{binary}: {out.stderr.strip()}")
    rows = [line.split() for line in out.stdout.splitlines()]
    return np.array([float(r[0]) for r in rows]), np.array([int(r[1]) for r in rows])


def llama_cpp(model, ids):
    from llama_cpp import Llama

    m = Llama(model, n_ctx=4096, n_batch=512, logits_all=True, n_threads=2, verbose=False)
    m.eval(ids)
    z = np.array(m.scores[: len(ids) - 1], dtype=np.float64)
    z -= z.max(axis=1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    return z[np.arange(len(z)), ids[1:]], z.argmax(axis=1)


def compare(what, got, want, limit, agreement):
    nll, agree = -got[0].mean() + want[0].mean(), (got[1] == want[1]).mean()
    worst = np.abs(got[0] - want[0]).max()
    check(
        f"{what}: NLL",
        abs(nll) <= limit,
        f"{-got[0].mean():.5f} - {-want[0].mean():.5f} = {nll:+.5f}, worst token {worst:.3f}",
    )
    check(f"{what}: next token", agree >= agreement, f"{100 * agree:.2f}% agree")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--model", default="models/weights/SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--llama", action="store_true", help="compare with llama-cpp-python too")
    p.add_argument("--write", action="store_true", help="store ids and reference in tests/data")
    a = p.parse_args()
    reader = gguf.GGUFReader(a.model)
    ids = tokens_of(reader, open(TEXT, encoding="utf-8").read())
    if a.write:
        with open(IDS, "w") as f:
            f.write(json.dumps(ids, separators=(",", ":")) + "\n")
    check("token ids", json.load(open(IDS)) == ids and len(ids) >= 2000, f"{len(ids)} tokens")
    truth = score(open_reference(reader), np.array(ids))
    if a.write:
        with open(STORED, "wb") as f:
            f.write(truth[0].astype("<f8").tobytes() + truth[1].astype("<i4").tobytes())
    n = len(ids) - 1
    raw = open(STORED, "rb").read()
    stored = np.frombuffer(raw, "<f8", n), np.frombuffer(raw, "<i4", n, 8 * n)
    check("stored reference", np.abs(stored[0] - truth[0]).max() < 1e-9 and (stored[1] == truth[1]).all())
    compare("engine - float64", engine(a.binary, a.model), truth, 0.01, 0.97)
    compare("engine, f32 cache - float64", engine(a.binary, a.model, "256", "0", "f32"), truth, 0.01, 0.97)
    if a.llama:
        theirs = llama_cpp(a.model, ids)
        compare("engine - llama.cpp", engine(a.binary, a.model), theirs, 0.02, 0.9)
        print(
            f"     llama.cpp - float64: NLL {-theirs[0].mean() + truth[0].mean():+.5f}, "
            f"{100 * (theirs[1] == truth[1]).mean():.2f}% agree"
        )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
