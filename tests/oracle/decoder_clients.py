#!/usr/bin/env python3
"""A decoder for embeddings behind the server, alone and beside a model that writes, asked by openai-python: floats and
base64, cut vectors, against float64 (decoder_reference.py) over the ids that the `tokenizers` library makes.
usage: decoder_clients.py --binary build/moonshift -- [SERVE_ARGUMENTS]"""

import argparse
import os
import sys
import tempfile

import numpy as np
import openai
from decoder_reference import Decoder, make, write_gguf
from embed_clients import TEXTS, embeddings, vectors
from own_server import Checks, Site
from tokenizers import Tokenizer

CUTS = [16, 32]


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def ask(check, site, wants, ids, cuts):
    client = openai.OpenAI(base_url=site.base + "/v1", api_key="any", max_retries=0)
    model = [m.id for m in client.models.list()][-1]
    embeddings(check, client, model)
    answer = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    got = vectors(answer).astype(np.float64)
    check("vectors are those of float64", cosines(got, wants).min() >= 0.9999, str(cosines(got, wants).min()))
    check("usage counts the token that ends a text", answer.usage.prompt_tokens == sum(map(len, ids)))
    same = vectors(client.embeddings.create(model=model, input=ids)).astype(np.float64)
    check("ids have the vectors of their texts", np.array_equal(same, got))
    for n in cuts:
        cut = vectors(client.embeddings.create(model=model, input=TEXTS, dimensions=n)).astype(np.float64)
        short = got[:, :n] / np.linalg.norm(got[:, :n], axis=-1, keepdims=True)
        check(f"cut to {n}", cut.shape == (len(TEXTS), n) and np.allclose(cut, short, atol=1e-6))
    try:
        client.embeddings.create(model=model, input="a", dimensions=17)
        check("no other length", False)
    except openai.BadRequestError as e:
        check("no other length", e.body["param"] == "dimensions")


def serve(check, binary, words, wants, ids, cuts):
    site = Site(binary, words)
    try:
        ask(check, site, wants, ids, cuts)
        check("it drains", site.terminate() == 0)
    finally:
        site.kill()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("serve", nargs="*")
    args = p.parse_args()
    check = Checks()
    with tempfile.TemporaryDirectory() as folder:
        site = os.path.join(folder, "tiny-embedding")
        make(site, 11, positions=600, more={"matryoshka_dimensions": CUTS})
        path = write_gguf(site, os.path.join(folder, "tiny.gguf"))
        lib, ref = Tokenizer.from_file(os.path.join(site, "tokenizer.json")), Decoder(site)
        ids = [lib.encode(t).ids for t in TEXTS]
        wants = np.array([ref(i) for i in ids])
        writer = ["--load-format", "dummy", "--hf-config", "tests/data/layout_gqa.json", "--max-model-len", "256",
                  "--kv-cache-memory-bytes", "8MiB"]  # fmt: skip
        serve(check, args.binary, [site, *args.serve], wants, ids, CUTS)
        serve(check, args.binary, ["--embedding-model", path, "--embedding-replicas", "2", *args.serve], wants, ids, [])
        serve(check, args.binary, [*writer, "--embedding-model", site, *args.serve], wants, ids, CUTS)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
