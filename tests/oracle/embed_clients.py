#!/usr/bin/env python3
"""openai-python, unmodified, asks a server for embeddings: floats and base64 (its default), one text and many, token
ids, errors; and requests in the shapes of Cohere's, Jina's and vLLM's clients for rerank and score. Vectors are checked
with numpy: the same text has the same vector whatever is around it.
usage: embed_clients.py --binary build/moonshift -- SERVE_ARGUMENTS   (with --embedding-model)"""

import asyncio
import base64
import os
import sys
import time

for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ.pop(name, None)
os.environ["NO_PROXY"] = "*"

import httpx
import numpy as np
import openai
from own_server import Checks, Site, arguments

TEXTS = ["Paris is the capital of France.", "a red river", "", "Who is the king of the north?", "dog " * 100]


def vectors(answer):
    assert [d.index for d in answer.data] == list(range(len(answer.data)))
    return np.array([d.embedding for d in answer.data], dtype=np.float32)


def unit(v):
    return bool(np.allclose(np.linalg.norm(v, axis=-1), 1, atol=1e-5))


def embeddings(check, client, model):
    default = vectors(client.embeddings.create(model=model, input=TEXTS))  # base64
    floats = vectors(client.embeddings.create(model=model, input=TEXTS, encoding_format="float"))
    check("base64 and floats are the same bits", np.array_equal(default, floats))
    check("vectors have length 1", unit(default))
    alone = np.concatenate([vectors(client.embeddings.create(model=model, input=t)) for t in TEXTS])
    check("a text has the same vector alone and among others", np.array_equal(default, alone))
    back = vectors(client.embeddings.create(model=model, input=TEXTS[::-1]))
    check("vectors come in the order of the texts", np.array_equal(default, back[::-1]))
    raw = client.embeddings.with_raw_response.create(model=model, input="dog", encoding_format="base64").http_response
    text = raw.json()["data"][0]["embedding"]
    check("base64 is of little-endian float32", len(base64.b64decode(text)) == 4 * default.shape[1])
    full = client.embeddings.create(model=model, input="dog", dimensions=default.shape[1])
    check("as many dimensions as there are", vectors(full).shape == (1, default.shape[1]))
    check("usage", full.usage.prompt_tokens == full.usage.total_tokens >= 3)
    check("the model's name", full.model == model and full.object == "list" and full.data[0].object == "embedding")


def token_ids(check, client, model):
    one = vectors(client.embeddings.create(model=model, input=[2, 20, 30, 3]))
    many = client.embeddings.create(model=model, input=[[5, 6, 7], [2, 20, 30, 3]])
    check("token ids, one list and many", np.array_equal(one[0], vectors(many)[1]))
    check("no special tokens are added to ids", many.usage.total_tokens == 7)


def error(check, name, kind, call, param):
    try:
        call()
        check(name, False, "it was accepted")
    except openai.APIStatusError as e:
        check(name, isinstance(e, kind) and e.body.get("param") == param and e.body["message"], str(e))


def errors(check, client, model):
    create = client.embeddings.create
    error(check, "another model", openai.NotFoundError, lambda: create(model="none", input="a"), "model")
    error(check, "no texts", openai.BadRequestError, lambda: create(model=model, input=[]), "input")
    error(check, "too many", openai.BadRequestError, lambda: create(model=model, input=["a"] * 2049), "input")
    error(check, "too long", openai.BadRequestError, lambda: create(model=model, input="dog " * 2000), "input")
    error(
        check,
        "fewer dimensions",
        openai.BadRequestError,
        lambda: create(model=model, input="a", dimensions=8),
        "dimensions",
    )
    cut = create(model=model, input="dog " * 2000, extra_body={"truncate_prompt_tokens": 16})
    check("cut on request", cut.usage.prompt_tokens == 16)


def scores(check, http, client, model):
    docs = TEXTS[:2] + TEXTS[3:]
    query = "who is king"
    q, d = (vectors(client.embeddings.create(model=model, input=x)) for x in ([query], docs))
    want = d @ q[0]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        r = http.post(path, json={"model": model, "query": query, "documents": docs, "top_n": 3}).json()["results"]
        order = [int(i) for i in np.argsort(-want)[:3]]
        check(f"{path}: the best first", [x["index"] for x in r] == order, str(r))
        check(f"{path}: cosines", np.allclose([x["relevance_score"] for x in r], want[order], atol=1e-5))
        check(f"{path}: texts", [x["document"]["text"] for x in r] == [docs[i] for i in order])
    s = http.post("/v1/score", json={"model": model, "text_1": query, "text_2": docs}).json()
    check("/v1/score", np.allclose([x["score"] for x in s["data"]], want, atol=1e-5))


async def together(site, model, n):
    """Texts that stream and vectors, at once; both whole."""
    client = openai.AsyncOpenAI(base_url=site.base + "/v1", api_key="any", max_retries=0, timeout=120)
    writer = (await client.models.list()).data[0].id

    async def write(i):
        stream = await client.completions.create(
            model=writer, prompt=f"{i}", max_tokens=40, stream=True, extra_body={"ignore_eos": True}
        )
        return [c.choices[0].finish_reason async for c in stream if c.choices][-1] == "length"

    async def embed(i):
        texts = [f"dog {k} of {i}" for k in range(1 + 97 * i % 300)]
        return len((await client.embeddings.create(model=model, input=texts)).data) == len(texts)

    return await asyncio.gather(*[f(i) for i in range(n) for f in (write, embed)])


def main():
    args = arguments(0)
    site, check = Site(args.binary, args.serve), Checks()
    try:
        client = openai.OpenAI(base_url=site.base + "/v1", api_key="any", max_retries=0)
        models = [m.id for m in client.models.list()]
        check("models are listed", len(models) >= 2, str(models))
        model = models[-1]
        embeddings(check, client, model)
        token_ids(check, client, model)
        errors(check, client, model)
        scores(check, httpx.Client(base_url=site.base, timeout=60), client, model)
        began = time.time()
        ends = asyncio.run(together(site, model, 40))
        check("texts and vectors at once, none lost", all(ends), f"{sum(ends)} of {len(ends)}")
        print(f"     {time.time() - began:.1f} s")
        check("it drains", site.terminate() == 0)
    finally:
        site.kill()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
