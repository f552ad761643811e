#!/usr/bin/env python3
"""Real clients against a running server: openai and anthropic (Python) unmodified, and requests in the recorded shapes
of guidellm, AIPerf, lm-eval and vllm bench serve, read the way each of them reads.
usage: clients.py BASE_URL ADMIN_URL   e.g. http://127.0.0.1:8000 http://127.0.0.1:8001
   or: clients.py --binary build/moonshift -- SERVE_ARGUMENTS   (a server of its own)"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from typing import Literal

for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ.pop(name, None)
os.environ["NO_PROXY"] = "*"

import anthropic
import httpx
import openai
import pydantic
from own_server import Site

FOLDER = tempfile.TemporaryDirectory()
OWN = ["--batch-dir", FOLDER.name]
SITE = Site(sys.argv[2], sys.argv[4:] + OWN) if sys.argv[1] == "--binary" else None
BASE, ADMIN = (SITE.base, SITE.admin) if SITE else (sys.argv[1].rstrip("/"), sys.argv[2].rstrip("/"))
client = openai.OpenAI(base_url=BASE + "/v1", api_key="any", max_retries=0)
claude = anthropic.Anthropic(base_url=BASE, api_key="any", max_retries=0)
http = httpx.Client(base_url=BASE, timeout=120)
MODEL = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": "Count from one to five."}]


def live():
    return httpx.get(ADMIN + "/admin/state", timeout=30).json()["front"]["live"]


def settles():
    for _ in range(200):
        if live() == 0:
            return True
        time.sleep(0.05)
    return False


# ---- openai-python


def openai_models():
    assert MODEL in [m.id for m in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def openai_chat_equals_its_stream():
    args = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
    whole = client.chat.completions.create(**args)
    assert whole.object == "chat.completion" and whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(c.object == "chat.completion.chunk" for c in chunks)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])


def openai_completions_equal_their_stream():
    args = dict(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=20)
    whole = client.completions.create(**args)
    parts = list(client.completions.create(**args, stream=True))
    assert "".join(c.choices[0].text for c in parts) == whole.choices[0].text
    assert all(c.object == "text_completion" for c in parts)


def openai_n_and_seed():
    args = dict(model=MODEL, messages=QUESTION, max_tokens=12, n=3, seed=7, temperature=1.0)
    a, b = client.chat.completions.create(**args), client.chat.completions.create(**args)
    texts = [c.message.content for c in a.choices]
    assert [c.index for c in a.choices] == [0, 1, 2]
    assert texts == [c.message.content for c in b.choices], "a seed fixes the answers"
    assert len(set(texts)) > 1, "the choices are drawn apart"
    streamed = {0: "", 1: "", 2: ""}
    for c in client.chat.completions.create(**args, stream=True):
        streamed[c.choices[0].index] += c.choices[0].delta.content or ""
    assert [streamed[i] for i in range(3)] == texts
    alone = client.chat.completions.create(**{**args, "n": 1})
    assert alone.choices[0].message.content == texts[0], "a choice does not depend on its siblings"


def openai_logprobs():
    args = dict(model=MODEL, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    content = client.chat.completions.create(**args).choices[0].logprobs.content
    assert 1 <= len(content) <= 6
    for t in content:
        assert len(t.top_logprobs) == 3 and t.logprob <= 0
        assert t.token == t.top_logprobs[0].token and abs(t.logprob - t.top_logprobs[0].logprob) < 1e-6
        assert bytes(t.bytes).decode("utf-8", "replace") == t.token
    streamed = [
        t
        for c in client.chat.completions.create(**args, stream=True)
        if c.choices and c.choices[0].logprobs
        for t in c.choices[0].logprobs.content
    ]
    assert [t.token for t in streamed] == [t.token for t in content]
    assert [t.logprob for t in streamed] == [t.logprob for t in content]


def openai_stop():
    args = dict(model=MODEL, prompt="1, 2, 3, 4, 5, 6,", temperature=0, max_tokens=30)
    free = client.completions.create(**args).choices[0].text
    word = free[6:9]
    assert word.strip()
    stopped = client.completions.create(**args, stop=[word, "never so"]).choices[0]
    assert stopped.text == free[: free.index(word)] and stopped.finish_reason == "stop" and stopped.stop_reason == word
    streamed = "".join(c.choices[0].text for c in client.completions.create(**args, stop=word, stream=True))
    assert streamed == stopped.text
    kept = client.completions.create(**args, stop=word, extra_body={"include_stop_str_in_output": True}).choices[0].text
    assert kept == stopped.text + word


def shown_calls(*cities):
    """A small model calls a tool once it has seen it done."""
    for city in cities:
        function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        yield {"role": "user", "content": f"get_weather {city}"}
        yield {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": function}]}


def openai_tools():
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "The weather in a city.", "parameters": parameters}
    messages = [*shown_calls("Rome", "Oslo", "Bern"), {"role": "user", "content": "get_weather Paris"}]
    args = dict(
        model=MODEL, messages=messages, tools=[{"type": "function", "function": tool}], temperature=0, max_tokens=60
    )
    choice = client.chat.completions.create(**args).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(**args) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        last = stream.get_final_completion().choices[0]
    assert [(e.name, e.arguments) for e in done] == [("get_weather", call.function.arguments)]
    assert last.finish_reason == "tool_calls" and len(last.message.tool_calls) == 1
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(**args).choices[0].message.content
    plain = client.chat.completions.create(**args, tool_choice="none").choices[0]
    assert not plain.message.tool_calls and plain.finish_reason != "tool_calls"


class Pet(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    kind: Literal["cat", "dog"]
    age: int | None = pydantic.Field(ge=0, le=40)


class Owner(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    pets: list[Pet] = pydantic.Field(max_length=2)


def openai_parses_what_it_asked_for():
    args = dict(model=MODEL, messages=[{"role": "user", "content": "Ann has a cat."}], temperature=0, max_tokens=300)
    choice = client.chat.completions.parse(**args, response_format=Owner).choices[0]
    assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Owner), choice
    with client.chat.completions.stream(**args, response_format=Owner) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == choice.message.parsed
    tool = openai.pydantic_function_tool(Owner, name="note_owner")
    choice = client.chat.completions.parse(**args, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = choice.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Owner), call
    whole = client.chat.completions.create(**args, response_format={"type": "json_object"}).choices[0]
    assert whole.message.content.startswith("{")
    if whole.finish_reason == "stop":
        assert isinstance(json.loads(whole.message.content), dict)


# ---- /v1/responses

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
CALLED = {"type": "function", "name": "get_weather", "description": "The weather in a city.", "parameters": CITY}


def responses_equal_their_stream_and_chat():
    args = dict(model=MODEL, input=QUESTION, instructions="Be short.", temperature=0, max_output_tokens=24)
    whole = client.responses.create(**args)
    assert whole.object == "response" and whole.status in ("completed", "incomplete") and not whole.store
    assert (whole.status == "incomplete") == (whole.usage.output_tokens == 24)
    with client.responses.stream(**args) as stream:
        events = list(stream)
        last = stream.get_final_response()
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response." + whole.status
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert last.output_text == whole.output_text and last.usage.output_tokens == whole.usage.output_tokens
    messages = [{"role": "system", "content": "Be short."}, *QUESTION]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
    assert chat.choices[0].message.content == whole.output_text
    assert chat.usage.prompt_tokens == whole.usage.input_tokens


def responses_logprobs():
    args = dict(model=MODEL, input="Hi", temperature=0, max_output_tokens=5, top_logprobs=2)
    part = client.responses.create(**args, include=["message.output_text.logprobs"]).output[0].content[0]
    assert len(part.logprobs) >= 4 and all(len(p.top_logprobs) == 2 for p in part.logprobs)
    assert "".join(p.token for p in part.logprobs).startswith(part.text)
    assert all(p.logprob == p.top_logprobs[0].logprob for p in part.logprobs)


def responses_parse_what_they_asked_for():
    args = dict(model=MODEL, input="Ann has a cat.", temperature=0, max_output_tokens=300)
    whole = client.responses.parse(**args, text_format=Owner)
    assert isinstance(whole.output_parsed, Owner), whole
    with client.responses.stream(**args, text_format=Owner) as stream:
        list(stream)
        assert stream.get_final_response().output_parsed == whole.output_parsed


def responses_call_tools_and_hear_of_them():
    args = dict(model=MODEL, tools=[CALLED], temperature=0, max_output_tokens=60)
    said = [{"role": "user", "content": "The weather in Paris?"}]
    first = client.responses.create(**args, input=said, tool_choice={"type": "function", "name": "get_weather"})
    (call,) = first.output
    assert call.type == "function_call" and set(json.loads(call.arguments)) == {"city"}
    with client.responses.stream(**args, input=said, tool_choice="required", parallel_tool_calls=False) as stream:
        done = [e for e in stream if e.type == "response.function_call_arguments.done"]
        assert [c.arguments for c in stream.get_final_response().output] == [e.arguments for e in done]
    said += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    last = client.responses.create(**args, input=said)
    assert last.output and last.usage.input_tokens > first.usage.input_tokens


def responses_refuse_what_is_not_kept():
    for args in ({"previous_response_id": "resp_1"}, {"background": True}, {"tools": [{"type": "web_search"}]}):
        try:
            client.responses.create(model=MODEL, input="Hi", **args)
            raise AssertionError(args)
        except openai.BadRequestError as e:
            assert e.param in args, e


# ---- anthropic-python


def anthropic_message_equals_its_stream_and_chat():
    args = dict(model=MODEL, messages=QUESTION, system="Be short.", max_tokens=24, extra_body={"temperature": 0})
    whole = claude.messages.create(**args)
    assert whole.role == "assistant" and whole.stop_reason in ("end_turn", "max_tokens")
    with claude.messages.stream(**args) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert [b.text for b in whole.content] == [text] == [b.text for b in last.content]
    assert last.stop_reason == whole.stop_reason and last.usage.output_tokens == whole.usage.output_tokens
    messages = [{"role": "system", "content": "Be short."}, *QUESTION]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
    assert chat.choices[0].message.content == text
    used = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    counted = claude.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be short.").input_tokens
    assert chat.usage.prompt_tokens == used == counted


def anthropic_tools():
    tool = {"name": "get_weather", "description": "The weather in a city.", "input_schema": CITY}
    said = [{"role": "user", "content": "The weather in Paris?"}]
    args = dict(model=MODEL, tools=[tool], max_tokens=60, extra_body={"temperature": 0})
    whole = claude.messages.create(**args, messages=said, tool_choice={"type": "tool", "name": "get_weather"})
    (call,) = whole.content
    assert whole.stop_reason == "tool_use" and call.type == "tool_use" and set(call.input) == {"city"}
    one = {"type": "any", "disable_parallel_tool_use": True}
    with claude.messages.stream(**args, messages=said, tool_choice=one) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.name == "get_weather" and streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    said += [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert claude.messages.create(**args, messages=said).content


def anthropic_goes_on_with_what_was_begun():
    said = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital"},
    ]
    args = dict(model=MODEL, messages=said, max_tokens=20, stop_sequences=[" is"], extra_body={"temperature": 0})
    whole = claude.messages.create(**args)
    assert whole.content[0].text == " of France", whole
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", " is")


def anthropic_parses_what_it_asked_for():
    said = [{"role": "user", "content": "Ann has a cat."}]
    whole = claude.messages.parse(
        model=MODEL, messages=said, max_tokens=300, output_format=Pet, extra_body={"temperature": 0}
    )
    assert isinstance(whole.parsed_output, Pet), whole


def anthropic_errors():
    for model, most, error in (("other", 9, anthropic.NotFoundError), (MODEL, 0, anthropic.BadRequestError)):
        try:
            claude.messages.create(model=model, messages=[{"role": "user", "content": "x"}], max_tokens=most)
            raise AssertionError(model)
        except error as e:
            assert e.body["type"] == "error" and e.body["error"]["message"], e.body


def openai_extra_body():
    r = client.completions.create(
        model=MODEL,
        prompt="a b c",
        max_tokens=9,
        extra_body={
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "min_tokens": 3,
            "priority": -1,
            "cache_salt": "s",
        },
    )
    assert r.usage.completion_tokens == 9 and r.choices[0].finish_reason == "length"


def openai_errors():
    cases = [
        (openai.BadRequestError, dict(model=MODEL, messages=QUESTION, temperature=-1), "temperature"),
        (openai.BadRequestError, dict(model=MODEL, messages=[]), "messages"),
        (
            openai.BadRequestError,
            dict(model=MODEL, messages=QUESTION, response_format={"type": "structural_tag"}),
            "response_format",
        ),
        (openai.BadRequestError, dict(model=MODEL, messages=QUESTION, max_tokens=10**7), "messages"),
        (openai.NotFoundError, dict(model="no-such-model", messages=QUESTION), "model"),
    ]
    for kind, args, param in cases:
        try:
            client.chat.completions.create(**args)
        except kind as e:
            assert e.param == param and e.type == "invalid_request_error" and isinstance(e.code, str), (
                e.param,
                e.type,
                e.code,
            )
        else:
            raise AssertionError(f"{args} passed")
    try:
        client.embeddings.create(model=MODEL, input="a")
    except openai.InternalServerError as e:
        assert e.status_code == 501
    else:
        raise AssertionError("embeddings passed")


def openai_cancel():
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    for i, _ in enumerate(stream):
        if i == 4:
            break
    stream.close()
    assert settles(), "a closed stream ends its sequence"
    try:
        client.with_options(timeout=0.3).chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=1500, extra_body={"ignore_eos": True}
        )
    except openai.APITimeoutError:
        assert settles(), "a client that gives up ends its sequence"


def openai_async_many():
    async def run():
        async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key="any", max_retries=0, timeout=600) as c:

            async def one(i):
                text = ""
                async for e in await c.completions.create(
                    model=MODEL, prompt=f"{i % 4} and", max_tokens=8, temperature=0, stream=True
                ):
                    text += e.choices[0].text
                return i % 4, text

            return await asyncio.gather(*[one(i) for i in range(32)])

    seen = {}
    for key, text in asyncio.run(run()):
        assert seen.setdefault(key, text) == text, "equal prompts give equal texts whatever runs beside them"


def request_ids():
    r = client.completions.with_raw_response.create(
        model=MODEL, prompt="a", max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert r.headers["x-request-id"] == "mine-1" and r.parse().id == "cmpl-mine-1"


# ---- recorded shapes, read as the client reads them


def sse_lines(path, body, headers=None):
    with http.stream("POST", path, json=body, headers=headers) as r:
        assert r.status_code == 200, r.read()
        assert r.headers["content-type"].startswith("text/event-stream")
        yield from r.iter_lines()


def vllm_bench_completions():
    first = http.get("/v1/models").json()["data"][0]
    model = first["id"]
    first["root"]  # a KeyError here is what vllm bench would die of
    body = {
        "model": model,
        "prompt": "Hello there",
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    text, usage, chunks = "", None, 0
    for line in sse_lines("/v1/completions", body, {"x-request-id": "benchmark-serving0"}):
        if not line or line.startswith(":"):
            continue
        chunk = line.removeprefix("data: ")
        if chunk == "[DONE]":
            break
        data = json.loads(chunk)
        if choices := data.get("choices"):
            text += choices[0].get("text") or ""
            chunks += 1
        elif u := data.get("usage"):
            usage = u
    assert chunks >= 1 and usage["completion_tokens"] == 8 and text


def vllm_bench_chat():
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}],
        "max_completion_tokens": 6,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
    }
    usage, content = None, ""
    for line in sse_lines("/v1/chat/completions", body):
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        data = json.loads(line[6:])
        if choices := data.get("choices"):
            content += choices[0]["delta"].get("content") or ""
        elif u := data.get("usage"):
            usage = u
    assert usage["completion_tokens"] == 6
    t = http.post("/tokenize", json={"prompt": content, "add_special_tokens": False}).json()
    assert http.post("/detokenize", json={"tokens": t["tokens"]}).json()["prompt"] == content


def guidellm_chat():
    assert 200 <= http.get("/health").status_code < 300
    model = http.get("/v1/models").json()["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Say something"}]}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 7,
        "max_tokens": 7,
        "ignore_eos": True,
    }
    done, last, iterations = False, None, 0
    for line in sse_lines("/v1/chat/completions", body):
        if line == "data: [DONE]":
            done = True
            continue
        if not line.startswith("data:"):
            continue
        data = json.loads(line[5:])
        assert "usage" in data, "continuous_usage_stats puts usage on every chunk"
        last = data["usage"]
        iterations += bool(data["choices"] and data["choices"][0]["delta"].get("content"))
    assert done and last["completion_tokens"] == 7 and last["prompt_tokens"] > 0 and iterations >= 1


def aiperf_streams():
    for path, body, kind in (
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "name": "u", "content": "Hi"}]},
            "chat.completion.chunk",
        ),
        ("/v1/completions", {"prompt": ["Hi"]}, "text_completion"),
    ):
        body |= {
            "model": MODEL,
            "stream": True,
            "max_completion_tokens" if "chat" in path else "max_tokens": 5,
            "stream_options": {"include_usage": True},
            "min_tokens": 5,
            "ignore_eos": True,
        }
        seen = ""
        for line in sse_lines(path, body):
            if line.startswith("data: {"):
                data = json.loads(line[6:])
                assert data["object"] == kind  # anything else is dropped
                for c in data["choices"]:
                    seen += (c.get("delta") or {}).get("content") or c.get("text") or ""
        assert seen
    names = http.get("/metrics").text
    for want in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "process_resident_memory_bytes",
        "http_requests_total",
        "policy_reload_total",
    ):
        assert want in names, want


def lm_eval_loglikelihood():
    ids = [
        http.post("/tokenize", json={"prompt": p, "add_special_tokens": False}).json()["tokens"]
        for p in ("The capital of France is Paris", "Two plus two is four")
    ]
    body = {"model": MODEL, "prompt": ids, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    out = http.post("/v1/completions", json=body).json()
    for choice, tokens in zip(sorted(out["choices"], key=lambda c: c["index"]), ids):
        context = len(tokens) - 1
        lp = choice["logprobs"]
        assert (
            len(lp["tokens"])
            == len(lp["token_logprobs"])
            == len(lp["top_logprobs"])
            == len(lp["text_offset"])
            == len(tokens) + 1
        )
        token_logprobs, tops = lp["token_logprobs"][context:-1], lp["top_logprobs"][context:-1]
        assert len(token_logprobs) == 1 and sum(token_logprobs) < 0
        for value, top in zip(token_logprobs, tops):
            assert top and max(top.values()) >= value
    info = http.get("/tokenizer_info").json()
    assert {"eos_token", "bos_token", "chat_template"} <= set(info)


def lm_eval_generate():
    body = {
        "prompt": ["Question: 1+1?\nAnswer:"],
        "model": MODEL,
        "max_tokens": 16,
        "temperature": 0.0,
        "stop": ["\n\n", "Question:"],
        "seed": 1234,
    }
    out = http.post("/v1/completions", json=body).json()
    assert "\n\n" not in out["choices"][0]["text"] and out["choices"][0]["index"] == 0
    chat = http.post(
        "/v1/chat/completions",
        json={"messages": QUESTION, "model": MODEL, "max_tokens": 8, "temperature": 0.0, "stop": ["Q:"], "seed": 1234},
    ).json()
    assert isinstance(chat["choices"][0]["message"]["content"], str)


def open_webui_listing():
    r = http.get("/v1/models", headers={"Authorization": "Bearer none", "Accept": "application/json"})
    assert r.status_code == 200 and all("id" in m for m in r.json()["data"]) and r.json()["object"] == "list"


def openai_files_and_batches():
    if http.get("/v1/batches").status_code == 501:
        return  # a server without --batch-dir
    chat = [{"role": "user", "content": "Say one."}]
    body = {"model": MODEL, "messages": chat, "max_tokens": 6, "temperature": 0}
    lines = [{"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(6)]
    data = "".join(json.dumps(x) + "\n" for x in lines).encode()
    f = client.files.create(file=("lines.jsonl", data), purpose="batch")
    assert client.files.retrieve(f.id).bytes == len(data) and client.files.content(f.id).read() == data
    b = client.batches.create(
        input_file_id=f.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"of": "a test"},
    )
    for _ in range(600):
        if b.status in ("completed", "failed"):
            break
        time.sleep(0.1)
        b = client.batches.retrieve(b.id)
    assert b.status == "completed" and b.request_counts.completed == 6 and b.metadata == {"of": "a test"}, b
    out = [json.loads(x) for x in client.files.content(b.output_file_id).text.splitlines()]
    asked = client.chat.completions.create(**body)
    assert [x["custom_id"] for x in out] == [f"c{i}" for i in range(6)]
    assert all(
        x["response"]["body"]["choices"][0]["message"]["content"] == asked.choices[0].message.content for x in out
    )
    assert b.id in [x.id for x in client.batches.list(limit=5)] and f.id in [x.id for x in client.files.list()]
    other = client.batches.create(input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h")
    with contextlib.suppress(openai.ConflictError):  # it may be sooner
        assert client.batches.cancel(other.id).status in ("cancelling", "cancelled")
    for _ in range(600):
        other = client.batches.retrieve(other.id)
        if other.status in ("cancelled", "completed"):
            break
        time.sleep(0.1)
    assert other.status in ("cancelled", "completed")
    assert client.files.delete(f.id).deleted


def http_keeps_alive():
    with httpx.Client(base_url=BASE) as c:
        for _ in range(5):
            assert c.get("/version").status_code == 200
        assert c.head("/health").status_code == 200
        assert c.request("OPTIONS", "/v1/models").status_code == 204
        assert c.get("/no/such").json()["error"]["code"] == "not_found"


def main():
    checks = [
        f
        for name, f in list(globals().items())
        if callable(f)
        and getattr(f, "__module__", "") == "__main__"
        and f not in (main, live, settles, sse_lines, shown_calls, Pet, Owner, Site)
    ]
    failed = 0
    for f in checks:
        try:
            f()
            print("ok  ", f.__name__, flush=True)
        except Exception:
            failed += 1
            print("FAIL", f.__name__, flush=True)
            traceback.print_exc()
    if SITE:
        if SITE.terminate() != 0:
            failed += 1
            print("FAIL the server did not drain")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
