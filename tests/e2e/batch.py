"""Batch jobs from outside: the format, the order, errors line by line, and that a job which is killed at any moment
and begun again ends with the very bytes of one that was not. Uses made-up weights."""

import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "tests/rig")
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
DUMMY = [
    "--load-format",
    "dummy",
    "--hf-config",
    "tests/data/layout_gqa.json",
    "--served-model-name",
    "m",
    "--kv-cache-memory-bytes",
    "64MiB",
    "-t",
    "1",
]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
FOLDER = tempfile.TemporaryDirectory()
N_LINES = 40 if os.environ.get("MOONSHIFT_SLOW") else 300
N_KILLS = 4 if os.environ.get("MOONSHIFT_SLOW") else 20


def path(name):
    return os.path.join(FOLDER.name, name)


def write(name, lines):
    with open(path(name), "w", encoding="utf-8") as f:
        f.writelines(text + "\n" for text in lines)
    return path(name)


def line(i, body, url="/v1/completions", method="POST"):
    return json.dumps({"custom_id": f"line {i}", "method": method, "url": url, "body": body})


def completion(i, rng):
    body = {"model": "m", "prompt": f"Tell {i}: " + "ab " * rng.randrange(20), "max_tokens": rng.randrange(1, 24)}
    if i % 3 == 0:
        body["temperature"] = 0
    return line(i, body)


def some_lines(n):
    rng = random.Random(n)
    for i in range(1, n + 1):
        if i % 40 == 7:
            yield "not JSON"
        elif i % 40 == 9:
            yield line(i, {"model": "another", "prompt": "x"})
        else:
            yield completion(i, rng)


def command(source, answers, *more):
    return [BINARY, "batch", *DUMMY, "-i", source, "-o", path(answers), *more]


def job(source, answers, *more):
    return subprocess.run(command(source, answers, *more), capture_output=True, text=True, timeout=120, env=ENV)


def read(name):
    with open(path(name), "rb") as f:
        return f.read()


def results(name):
    return [json.loads(text) for text in read(name).decode("utf-8", "replace").splitlines()]


def answers_come_in_the_order_of_the_input():
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    lines = [completion(i, random.Random(i)) for i in range(1, 30)] + [line(30, chat, "/v1/chat/completions")]
    done = job(write("order.jsonl", [*lines[:10], "", "  ", *lines[10:]]), "order.out", "--chat-template", "chatml")
    assert done.returncode == 0 and "30 answers in" in done.stderr, done
    got = results("order.out")
    assert [r["custom_id"] for r in got] == [f"line {i}" for i in range(1, 31)]
    for r, asked in zip(got, lines, strict=True):
        body = r["response"]["body"]
        assert r["response"]["status_code"] == 200 and r["error"] is None, r
        assert body["usage"]["completion_tokens"] <= json.loads(asked)["body"]["max_tokens"]
    assert got[-1]["response"]["body"]["object"] == "chat.completion"
    assert not os.path.exists(path("order.out.errors")) and not os.path.exists(path("order.out.job"))


def each_bad_line_has_its_error_and_the_others_go_on():
    good = {"model": "m", "prompt": "x", "max_tokens": 2}
    wrong = {
        "{": "invalid_json_line",
        "7": "invalid_json_line",
        '{"custom_id": "a\\u0000b"}': "invalid_json_line",
        json.dumps({"method": "POST", "url": "/v1/completions", "body": good}): "missing_custom_id",
        line(5, good, method="GET"): "invalid_method",
        line(6, good, "/v1/rerank"): "invalid_url",
        line(7, [1]): "invalid_body",
        line(8, {**good, "stream": True}): "invalid_body",
        '{"a": "' + "x" * (17 << 20) + '"}': "line_too_long",
    }
    source = [text for bad in wrong for text in (bad, completion(1, random.Random(1)))]
    source += [line(90, {**good, "model": "another"}), line(91, {**good, "temperature": -1})]
    done = job(write("bad.jsonl", source), "bad.out", "--error-file", path("bad.errors"))
    assert done.returncode == 0 and f"{len(wrong)} answers" in done.stderr, done
    errors = results("bad.errors")
    assert [e["error"]["code"] for e in errors[:-2]] == list(wrong.values()), errors
    assert all(e["response"] is None and e["error"]["message"] for e in errors[:-2])
    assert [e["response"]["status_code"] for e in errors[-2:]] == [404, 400]
    numbers = sorted(int(r["id"].split("_")[-1]) for r in errors + results("bad.out"))
    assert numbers == list(range(1, len(source) + 1))


def kill_at_a_random_moment(source, name, rng, seconds):
    p = subprocess.Popen(command(source, name), stderr=subprocess.DEVNULL, env=ENV)
    time.sleep(rng.uniform(0, seconds))
    p.send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    p.wait(60)


def a_killed_job_ends_with_the_same_bytes():
    rng = random.Random(3)
    source = write("kill.jsonl", some_lines(N_LINES))
    began = time.monotonic()
    assert job(source, "whole.out").returncode == 0
    seconds = time.monotonic() - began
    for _ in range(N_KILLS):
        kill_at_a_random_moment(source, "killed.out", rng, seconds)
        under_way = os.path.exists(path("killed.out.job"))
        if under_way and os.path.exists(path("killed.out")) and rng.random() < 0.3:  # a write that was torn, too
            with open(path("killed.out"), "r+b") as f:
                f.truncate(max(0, os.path.getsize(path("killed.out")) - rng.randrange(200)))
        if os.path.exists(path("killed.out")) and not under_way:
            for name in ("killed.out", "killed.out.errors"):  # it was done: once more from the beginning
                assert read(name) == read(name.replace("killed", "whole"))
                os.remove(path(name))
    while not os.path.exists(path("killed.out")) or os.path.exists(path("killed.out.job")):
        done = job(source, "killed.out")
        assert done.returncode == 0, (done.returncode, done.stderr)
    assert read("killed.out") == read("whole.out")
    assert read("killed.out.errors") == read("whole.out.errors")


def what_is_not_the_same_job_is_refused():
    source = write("same.jsonl", some_lines(10 * N_LINES))  # so long that it is under way when it is killed
    write("mine.out", ["my own text"])
    mine = job(source, "mine.out")
    assert mine.returncode == 1 and "is there already" in mine.stderr and read("mine.out") == b"my own text\n", mine
    p = subprocess.Popen(command(source, "same.out"), stderr=subprocess.DEVNULL, env=ENV)
    while not os.path.exists(path("same.out.job")):
        time.sleep(0.001)
    p.kill()
    p.wait()
    before = read("same.out") if os.path.exists(path("same.out")) else b""
    for other in (job(source, "same.out", "--seed", "5"), job(write("other.jsonl", some_lines(19)), "same.out")):
        assert other.returncode == 1 and "another input, model, precision or seed" in other.stderr, other
    assert before == (read("same.out") if os.path.exists(path("same.out")) else b"")
    assert job(source, "same.out").returncode == 0
    missing = job(path("none.jsonl"), "none.out")
    assert missing.returncode == 1 and "none.jsonl" in missing.stderr and not os.path.exists(path("none.out")), missing
    folder = job(FOLDER.name, "none.out")
    assert folder.returncode == 1 and "regular file" in folder.stderr, folder
    asked = subprocess.run([BINARY, "batch", *DUMMY, "-i", source], capture_output=True, text=True, env=ENV)
    assert asked.returncode == 2 and "where do the answers go?" in asked.stderr, asked


def begin_and_kill(source, name, *more):
    p = subprocess.Popen(command(source, name, *more), stderr=subprocess.DEVNULL, env=ENV)
    while not os.path.exists(path(name + ".job")):
        time.sleep(0.001)
    p.kill()
    p.wait()


def a_model_that_was_replaced_or_rounds_otherwise_is_another_one():
    source = write("model.jsonl", some_lines(10 * N_LINES))
    for kept in (path("config.json"), path("folder/config.json")):
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        shutil.copyfile("tests/data/layout_gqa.json", kept)
    for model in (path("config.json"), path("folder")):
        config = model if os.path.isfile(model) else os.path.join(model, "config.json")
        name = "model." + os.path.basename(model)
        begin_and_kill(source, name, "--hf-config", model)
        was = os.stat(config)
        os.utime(config, ns=(was.st_atime_ns, was.st_mtime_ns + 1000000000))
        other = job(source, name, "--hf-config", model)
        assert other.returncode == 1 and "another input, model, precision or seed" in other.stderr, other
        os.utime(config, ns=(was.st_atime_ns, was.st_mtime_ns))
        for other in ("--cpu-precision", "high"), ("--kv-cache-dtype", "int8"):
            refused = job(source, name, "--hf-config", model, *other)
            assert refused.returncode == 1 and "another input, model, precision or seed" in refused.stderr, refused
        again = job(source, name, "--hf-config", model)
        assert "another input, model, precision or seed" not in again.stderr, again
        assert again.returncode == (0 if os.path.isfile(model) else 1), again  # dummy weights want a file


def port_of(pid):
    """Where this process listens: the one socket of its own that does."""
    while True:
        links = [os.path.join(f"/proc/{pid}/fd", fd) for fd in os.listdir(f"/proc/{pid}/fd")]
        own = {os.readlink(link) for link in links if os.path.islink(link)}
        with open("/proc/net/tcp", encoding="ascii") as table:
            for row in [text.split() for text in table][1:]:
                if row[3] == "0A" and f"socket:[{row[9]}]" in own:
                    return row[1].split(":")
        time.sleep(0.01)


def asked_by_a_stranger(port, method, where, headers):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1}) if method == "POST" else None
    c.request(method, where, body, {"Content-Type": "application/json", **headers})
    status = c.getresponse().status
    c.close()
    return status


def its_server_refuses_strangers():
    long = [line(i, {"model": "m", "prompt": "x", "max_tokens": 400}) for i in range(1, 2000)]
    p = subprocess.Popen(command(write("own.jsonl", long), "own.out"), stderr=subprocess.DEVNULL, env=ENV)
    try:
        address, port = port_of(p.pid)
        assert address == "0100007F", address  # 127.0.0.1
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer " + "0" * 32}):
            for method, where in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")):
                status = asked_by_a_stranger(int(port, 16), method, where, headers)
                assert status == 401, (method, where, headers, status)
    finally:
        p.kill()
        p.wait()


N_WIDE = 40 if os.environ.get("MOONSHIFT_SLOW") else 200


def wide_lines():
    yield line(1, {"model": "m", "prompt": "x", "max_tokens": 400, "ignore_eos": True})
    for i in range(2, N_WIDE + 2):
        yield line(i, {"model": "another", "prompt": "x" * (4 << 20)})


def long_lines_take_no_more_memory_than_is_allowed():
    """The first line keeps 200 of 4 MiB waiting: what is read ahead of it is bounded in bytes, not only in lines. All
    at once they would be more than the server takes, and take more than 2 GiB."""
    source = write("wide.jsonl", wide_lines())  # one at a time: a child is said to have used what its parent had
    p = subprocess.Popen(command(source, "wide.out"), stderr=subprocess.DEVNULL, env=ENV)
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    assert p.returncode == 0 and len(results("wide.out.errors")) == N_WIDE
    assert used.ru_maxrss < 1 << 20 or os.environ.get("MOONSHIFT_SLOW"), f"{used.ru_maxrss >> 10} MiB"


ENCODER = [BINARY, "batch", "tests/data/encoder_sim", "--device", "sim"]


def run(words, source, answers):
    words = [*words, "-i", source, "-o", path(answers)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=ENV)


def some_texts(n):
    rng = random.Random(n)
    for i in range(1, n + 1):
        texts = ["dog " * rng.randrange(200) + str(k) for k in range(rng.choice((1, 1, 3, 60)))]
        if i % 40 == 7:
            yield line(i, {"model": "another", "input": texts}, "/v1/embeddings")
        elif i % 40 == 9:
            yield completion(i, rng)  # nobody writes here
        else:
            body = {"input": texts if i % 3 else texts[0], "encoding_format": ("float", "base64")[i % 2]}
            yield line(i, body, "/v1/embeddings")


def an_encoder_answers_lines_for_vectors():
    source = write("texts.jsonl", some_texts(200))
    done = run(ENCODER, source, "vectors.out")
    assert done.returncode == 0 and "190 answers in" in done.stderr and "10 errors in" in done.stderr, done
    asked = [json.loads(t)["body"] for i, t in enumerate(some_texts(200), 1) if i % 40 not in (7, 9)]
    got = [r["response"]["body"] for r in results("vectors.out")]
    for want, body in zip(asked, got, strict=True):
        n = len(want["input"]) if isinstance(want["input"], list) else 1
        assert [d["index"] for d in body["data"]] == list(range(n)) and body["usage"]["prompt_tokens"] >= 2 * n
        as_text = [isinstance(d["embedding"], str) for d in body["data"]]
        assert all(as_text) if want["encoding_format"] == "base64" else not any(as_text), as_text
    codes = [(r["custom_id"], r["response"]["status_code"]) for r in results("vectors.out.errors")]
    assert codes[:2] == [("line 7", 404), ("line 9", 404)], codes


def a_killed_job_of_an_encoder_ends_with_the_same_bytes():
    rng, source = random.Random(5), write("kill_texts.jsonl", some_texts(400))
    began = time.monotonic()
    assert run(ENCODER, source, "all.out").returncode == 0
    seconds, left = time.monotonic() - began, 8
    while left or not os.path.exists(path("part.out")) or os.path.exists(path("part.out.job")):
        if not left:
            done = run(ENCODER, source, "part.out")
            assert done.returncode == 0, done
            break
        left -= 1
        p = subprocess.Popen([*ENCODER, "-i", source, "-o", path("part.out")], stderr=subprocess.DEVNULL, env=ENV)
        time.sleep(rng.uniform(0, seconds))
        p.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        p.wait(60)
        if os.path.exists(path("part.out")) and not os.path.exists(path("part.out.job")):
            break  # it was done
    assert read("part.out") == read("all.out") and read("part.out.errors") == read("all.out.errors")


def more_texts_than_a_server_would_let_wait():
    """512 lines of 2048 texts at a time; the bytes ahead are bounded, not their number."""
    n = 4 if os.environ.get("MOONSHIFT_SLOW") else 40
    body = {"input": ["a"] * 2048, "encoding_format": "base64"}
    done = run(ENCODER, write("many.jsonl", [line(i, body, "/v1/embeddings") for i in range(n)]), "many.out")
    assert done.returncode == 0 and f"{n} answers in" in done.stderr, done


def both_kinds_of_lines_beside_each_other():
    both = [*DUMMY, "--device", "sim", "--embedding-model", "tests/data/encoder_sim", "--embedding-name", "e"]
    vector = {"model": "e", "input": "a dog"}
    lines = [completion(i, random.Random(i)) if i % 2 else line(i, vector, "/v1/embeddings") for i in range(1, 61)]
    done = run([BINARY, "batch", *both], write("both.jsonl", lines), "both.out")
    assert done.returncode == 0 and "60 answers in" in done.stderr, done
    kinds = [r["response"]["body"]["object"] for r in results("both.out")]
    assert kinds == ["text_completion", "list"] * 30, kinds
    vectors = {json.dumps(r["response"]["body"]["data"]) for r in results("both.out")[1::2]}
    assert len(vectors) == 1, "a vector depends on what runs beside it"


def another_encoder_is_another_job():
    source = write("enc.jsonl", some_texts(4000))
    for name in ("one", "two"):
        shutil.copytree("tests/data/encoder_sim", path(name))
    one, two = ([BINARY, "batch", "--embedding-model", path(n), "--device", "sim"] for n in ("one", "two"))
    p = subprocess.Popen([*one, "-i", source, "-o", path("enc.out")], stderr=subprocess.DEVNULL, env=ENV)
    while not os.path.exists(path("enc.out.job")):
        time.sleep(0.001)
    p.kill()
    p.wait()
    other = run(two, source, "enc.out")
    assert other.returncode == 1 and "another input, model, precision or seed" in other.stderr, other
    card = path("one/1_Pooling/config.json")
    was = os.stat(card)
    os.utime(card, ns=(was.st_atime_ns, was.st_mtime_ns + 1000000000))
    other = run(one, source, "enc.out")
    assert other.returncode == 1 and "another input, model, precision or seed" in other.stderr, other


def what_an_encoder_has_no_use_for_is_refused():
    source = write("few.jsonl", some_texts(3))
    for words, why in (
        (["--max-num-seqs", "3"], "--max-num-seqs is for a model that writes"),
        (["--policy", "fcfs"], "--policy is for a model that writes"),
        (["--seed", "3"], "--seed is for a model that writes"),
    ):
        done = run([*ENCODER, *words], source, "few.out")
        assert done.returncode and why in done.stderr, done
    twice = run([*ENCODER, "--embedding-model", "tests/data/encoder_pairs"], source, "few.out")
    assert twice.returncode and "there is one" in twice.stderr, twice
    assert not os.path.exists(path("few.out"))


def an_interrupt_ends_it():
    source = write("long.jsonl", [line(i, {"model": "m", "prompt": "x", "max_tokens": 100}) for i in range(1, 5000)])
    p = subprocess.Popen(command(source, "long.out"), stderr=subprocess.PIPE, text=True, env=ENV)
    while p.poll() is None and not (os.path.exists(path("long.out")) and os.path.getsize(path("long.out"))):
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)  # it has answers: one that is still loading would just end
    said = p.communicate(timeout=100)[1]
    assert p.returncode == 1 and "The same command goes on from here" in said, (p.returncode, said)


def an_empty_file_is_done():
    done = job(write("empty.jsonl", [""]), "empty.out")
    assert done.returncode == 0 and "0 answers" in done.stderr and read("empty.out") == b"", done


cases.run(
    [
        answers_come_in_the_order_of_the_input,
        each_bad_line_has_its_error_and_the_others_go_on,
        a_killed_job_ends_with_the_same_bytes,
        what_is_not_the_same_job_is_refused,
        a_model_that_was_replaced_or_rounds_otherwise_is_another_one,
        its_server_refuses_strangers,
        long_lines_take_no_more_memory_than_is_allowed,
        an_encoder_answers_lines_for_vectors,
        a_killed_job_of_an_encoder_ends_with_the_same_bytes,
        more_texts_than_a_server_would_let_wait,
        both_kinds_of_lines_beside_each_other,
        another_encoder_is_another_job,
        what_an_encoder_has_no_use_for_is_refused,
        an_interrupt_ends_it,
        an_empty_file_is_done,
    ]
)
