"""The program from outside: commands, messages and exit codes, answers on pipes and on a terminal, signals. Uses
made-up weights."""

import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, "tests/rig")
import cases

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
DUMMY = [
    "--load-format",
    "dummy",
    "--hf-config",
    "tests/data/sim_model.json",
    "--kv-cache-memory-bytes",
    "64MiB",
    "-t",
    "1",
]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
WAIT_S = 60


def run(*args, stdin="", env=None):
    return subprocess.run(
        [BINARY, *args], input=stdin.encode(), capture_output=True, timeout=WAIT_S, env={**ENV, **(env or {})}
    )


def out(r):
    return r.stdout.decode(errors="replace")


def err(r):
    return r.stderr.decode(errors="replace")


def version_and_help():
    told = re.fullmatch(r"moonshift (\d+\.\d+\.\d+)( \([0-9a-f]+\+?\))?\n", out(run("--version")))
    assert told and told.group(1) == re.search(
        r"project\(moonshift VERSION (\S+)", open("CMakeLists.txt").read()
    ).group(1)
    for words in (["--help"], ["serve", "--help"], ["run", "-h"], ["policy", "check", "--help"], ["help", "serve"]):
        r = run(*words)
        assert r.returncode == 0 and "moonshift" in out(r) and not r.stderr, (words, r)
    assert "--max-model-len" in out(run("serve", "--help"))


def wrong_words():
    for words, code, says in (
        (["servr"], 2, "did you mean serve?"),
        (["serve", "m", "--max-model-length", "5"], 2, "did you mean --max-model-len?"),
        ([], 2, "moonshift serve MODEL"),
        (["run", "no/such/file.gguf", "hi"], 1, "no/such/file.gguf"),
        (["run", "README.md", "hi"], 1, "README.md"),
        (["run", *DUMMY, "hi"], 1, "--chat-template"),
        (["serve", *DUMMY, "--port", "0", "--dry-run", "--max-model-len", "9k"], 1, "context of 8192"),
        (["serve", *DUMMY, "--port", "0", "--dry-run", "--policy", "no-such"], 1, "no-such"),
        (["serve", *DUMMY, "--port", "0", "--dry-run", "--chat-template", "no/such.jinja"], 1, "no/such.jinja"),
    ):
        r = run(*words)
        assert r.returncode == code and says in err(r), (words, r)
        assert err(r).count("moonshift: ") == 1, err(r)


def too_little_memory_says_what_fits():
    r = run("serve", *DUMMY, "--port", "0", "--dry-run", "--kv-cache-memory-bytes", "100k", "--max-model-len", "4096")
    assert r.returncode == 1
    m = re.search(r"lower --max-model-len to (\d+)", err(r))
    assert m, err(r)
    ok = run(
        "serve", *DUMMY, "--dry-run", "--kv-cache-memory-bytes", "100k", "--max-model-len", m.group(1), "--port", "0"
    )
    assert ok.returncode == 0, err(ok)
    # nobody asked for a shorter context: it is said, with what the whole one takes
    cut = run("serve", *DUMMY, "--dry-run", "--kv-cache-memory-bytes", "100k", "--port", "0")
    m = re.search(
        r"WARN.* A request may have (\d+) tokens, of the model's 8192: .*--kv-cache-memory-bytes (\d+)MiB", err(cut)
    )
    assert cut.returncode == 0 and m and 16 <= int(m.group(1)) < 8192, err(cut)
    for args in (
        ["--kv-cache-memory-bytes", m.group(2) + "MiB"],
        ["--kv-cache-memory-bytes", "100k", "--max-model-len", m.group(1)],
    ):
        ok = run("serve", *DUMMY, "--dry-run", "--port", "0", *args)
        assert ok.returncode == 0 and "A request may have" not in err(ok), err(ok)
    # less than any request takes: what is the least, which then serves
    none = run("serve", *DUMMY, "--dry-run", "--kv-cache-memory-bytes", "1000", "--port", "0")
    m = re.search(r"would have 1000 bytes for each rank, and the least that serves is (\d+) ", err(none))
    assert none.returncode == 1 and m and "lower --max-model-len" not in err(none), err(none)
    assert run("serve", *DUMMY, "--dry-run", "--kv-cache-memory-bytes", m.group(1), "--port", "0").returncode == 0
    ranks = ["--hf-config", "tests/data/sim_ranks.json", "--load-format", "dummy", "--ranks", "2", "--dry-run"]
    full = run("serve", *ranks, "--gpu-memory-utilization", "0.001", "--port", "0")
    assert full.returncode == 1 and "2 ranks that share a memory need" in err(full), err(full)
    full = run("serve", *ranks, "--rank-memory", "1MiB", "--port", "0")
    assert full.returncode == 1 and re.search("rank 0 needs .* --weights pooled", err(full)), err(full)
    away = run("serve", *ranks, "--comm-sets", "0-2", "--port", "0")
    assert away.returncode == 1 and "--comm-sets names rank 2" in err(away), err(away)
    gpu = run("serve", *DUMMY, "--dry-run", "-ngl", "99")
    assert gpu.returncode == 2 and "--device cuda takes GPUs" in err(gpu), err(gpu)
    misspelt = run("serve", *DUMMY, "--dry-run", env={"MOONSHIFT_MAX_MODEL_LENGTH": "64"})
    assert misspelt.returncode == 2 and "did you mean MOONSHIFT_MAX_MODEL_LEN?" in err(misspelt), err(misspelt)


def start_up_lines():
    r = run("serve", *DUMMY, "--dry-run", "--port", "0", "--policy-param", "budget=256")
    assert r.returncode == 0, err(r)
    at = 0
    for line in (
        r"Moonshift \d+\.\d+\.\d+[^:]*: .*--policy-param budget=256",
        r"Device 0: ",
        r"Loading weights: 100%",
        r"fcfs \([0-9a-f]{12}\) is live",
        r"Model loading took \d+\.\d\d GiB and \d+\.\d\d s",
        r"Available KV cache memory: \d+\.\d\d GiB",
        r"GPU KV cache size: [\d,]+ tokens",
        r"Maximum concurrency for 8,192 tokens per request: \d+\.\d\dx",
        r"Dry run",
    ):
        m = re.compile(line).search(err(r), at)
        assert m, (line, err(r))
        at = m.end()


def json_log_lines():
    r = run("serve", *DUMMY, "--dry-run", "--port", "0", "--log-format", "json")
    lines = [json.loads(line) for line in err(r).strip().split("\n")]
    assert len(lines) > 5 and all({"time", "level", "part", "text"} <= set(x) for x in lines)


def answers_on_pipes():
    a = run("run", *DUMMY, "--raw", "abc", "-n", "12", "--temperature", "0")
    b = run("run", *DUMMY, "--raw", "-n", "12", "--temperature", "0", stdin="abc")
    assert a.returncode == 0 and a.stdout and not a.stderr, a
    assert a.stdout == b.stdout
    c = run("run", *DUMMY, "--raw", "abc", "-n", "12", "--temperature", "2", "--seed", "1")
    d = run("run", *DUMMY, "--raw", "abc", "-n", "12", "--temperature", "2", "--seed", "1")
    e = run("run", *DUMMY, "--raw", "abc", "-n", "12", "--temperature", "2", env={"MOONSHIFT_SEED": "1"})
    assert c.stdout == d.stdout == e.stdout
    empty = run("run", *DUMMY, "--raw", stdin="")
    assert empty.returncode == 1 and "empty" in err(empty)
    long = run("run", *DUMMY, "--raw", stdin="x" * 9000)
    assert long.returncode == 1 and "--max-model-len" in err(long)
    # a reader that leaves ends it, quietly
    p = subprocess.Popen(
        [BINARY, "run", *DUMMY, "--raw", "abc"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
    )
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(WAIT_S) != 0
    p.stderr.close()


class Terminal:
    """The program on a pseudo-terminal of its own."""

    def __init__(self, *args, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BINARY, [BINARY, *args], {**ENV, "TERM": "xterm", **env})
        self.text = b""

    def until(self, pattern, seconds=WAIT_S):
        end = time.monotonic() + seconds
        while True:
            m = re.search(pattern, self.text, re.S)
            if m:
                self.text = self.text[m.end() :]
                return m
            ready = select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"{pattern} did not come; there was {self.text[-500:]}"
            try:
                self.text += os.read(self.fd, 65536)
            except OSError as e:
                raise AssertionError(f"it ended before {pattern}: {self.text[-500:]}") from e

    def type(self, data):
        os.write(self.fd, data)

    def end(self):
        while True:
            assert select.select([self.fd], [], [], WAIT_S)[0], "it does not end"
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _chat(term):
    t = Terminal("run", *DUMMY, "--chat-template", "chatml", "-n", "6", "--history", "off", TERM=term)
    t.until(rb"/help tells the rest.*> ")
    t.type(b"hello\n")
    first = t.until(rb"\[(\d+) tokens in, (\d+) of them cached.* (\d+) out")
    t.until(rb"> ")
    t.type(b"again \\\nand more\n")
    second = t.until(rb"\[(\d+) tokens in, (\d+) of them cached")
    assert int(second.group(1)) > int(first.group(1)), "the second turn must carry the first"
    t.until(rb"> ")
    t.type(b"/clear\n")
    t.until(rb"> ")
    t.type(b"hello\n")
    third = t.until(rb"\[(\d+) tokens in")
    assert third.group(1) == first.group(1)
    t.until(rb"> ")
    t.type(b"/help\n")
    t.until(rb"Ctrl-C.*> ")
    t.type(b"\x04")
    assert t.end() == 0


def chat_with_line_editing():
    _chat("xterm")


def chat_at_a_terminal_that_edits_nothing():
    _chat("dumb")


def typed_lines_are_edited_and_kept():
    with tempfile.TemporaryDirectory() as home:
        state = {"XDG_STATE_HOME": home}
        kept = os.path.join(home, "moonshift", "history")
        t = Terminal("run", *DUMMY, "--chat-template", "chatml", "-n", "2", **state)
        t.until(rb"> ")
        t.type("h\u00e4lo\x02l\n".encode())  # Ctrl-B: one to the left
        t.until(rb" out")
        t.until(rb"> ")
        t.type(b"\x04")
        assert t.end() == 0
        assert "h\u00e4llo\n" in open(kept, encoding="utf-8").read() and os.stat(kept).st_mode & 0o077 == 0
        t = Terminal("run", *DUMMY, "--chat-template", "chatml", "-n", "2", **state)
        t.until(rb"> ")
        t.type(b"\x1b[A and more\n")  # the arrow up
        t.until(rb" out")
        t.until(rb"> ")
        t.type(b"/quit\n")
        assert t.end() == 0
        assert "h\u00e4llo\\040and\\040more\n" in open(kept, encoding="utf-8").read()


def no_colours_where_none_are_wanted():
    for env, wanted in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        t = Terminal("run", *DUMMY, "--chat-template", "chatml", "-n", "2", "--history", "off", **env)
        t.until(rb"> ")
        t.type(b"hello\n")
        seen = t.until(rb"hello\r\n(.*)\[\d+ tokens in").group(1)
        assert (b"\x1b[2m" in seen) == wanted, (env, seen)
        t.until(rb"> ")
        t.type(b"/quit\n")
        assert t.end() == 0


def piped_text_comes_before_the_question():
    together = run("run", *DUMMY, "--raw", "-n", "12", "--temperature", "0", "abc\n\nwhat is this?")
    piped = run("run", *DUMMY, "--raw", "-n", "12", "--temperature", "0", "what is this?", stdin="abc\n")
    alone = run("run", *DUMMY, "--raw", "-n", "12", "--temperature", "0", "what is this?")
    assert piped.returncode == 0 and piped.stdout == together.stdout != alone.stdout, (piped, together, alone)


def interrupts_stop_the_answer_only():
    t = Terminal(
        "run", *DUMMY, "--chat-template", "chatml", "--device", "sim", "--sim-step-us", "20000", "--history", "off"
    )
    t.until(rb"> ")
    t.type(b"talk for long\n")
    t.until(rb"<unused")  # the answer has begun
    t.type(b"\x03")
    t.until(rb"; stopped\]")
    t.until(rb"> ")
    t.type(b"half a line\x03")
    t.until(rb"/quit ends\).*> ")
    t.type(b"/quit\n")
    assert t.end() == 0


def no_control_bytes_on_a_terminal():
    t = Terminal("run", *DUMMY, "--raw", "x", "-n", "400", "--temperature", "3")
    seen = b""
    while True:
        try:
            piece = os.read(t.fd, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(t.fd)
    os.waitpid(t.pid, 0)
    assert len(seen) > 100
    bad = [c for c in seen.decode(errors="replace") if (c < " " and c not in "\r\n\t") or "\x7f" <= c <= "\x9f"]
    assert not bad, bad


class Server:
    def __init__(self, *args):
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([BINARY, "serve", *args], stderr=self.log, env=ENV)
        end = time.monotonic() + WAIT_S
        while "Application startup complete." not in self.said() or "http://" not in self.said():
            assert self.p.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.02)
        time.sleep(0.05)
        self.url = re.search(r"on (http://\S+)", self.said()).group(1)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=WAIT_S) as r:
            return r.status, r.read()

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=WAIT_S)

    def stop(self, *signals):
        for s in signals:
            self.p.send_signal(s)
            time.sleep(0.2)
        code = self.p.wait(WAIT_S)
        text = self.said()
        self.log.close()
        return code, text


def a_server_serves_and_drains():
    s = Server(
        *DUMMY,
        "--port",
        "0",
        "--device",
        "sim",
        "--sim-step-us",
        "2000",
        "--served-model-name",
        "first",
        "--alias",
        "second",
    )
    try:
        assert s.get("/health")[0] == 200
        names = [m["id"] for m in json.loads(s.get("/v1/models")[1])["data"]]
        assert names[:2] == ["first", "second"], names
        stream = s.post("/v1/completions", {"model": "second", "prompt": "abc", "max_tokens": 300, "stream": True})
        stream.read(10)
        s.p.send_signal(signal.SIGTERM)
        rest = stream.read()
        assert rest.rstrip().endswith(b"data: [DONE]"), rest[-200:]
    finally:
        code, text = s.stop()
    assert code == 0 and "Drained" in text, (code, text)


def a_second_signal_stops_at_once():
    s = Server(*DUMMY, "--port", "0", "--device", "sim", "--sim-step-us", "200000", "--max-model-len", "8k")
    stream = s.post(
        "/v1/completions",
        {
            "model": s.get("/v1/models") and json.loads(s.get("/v1/models")[1])["data"][0]["id"],
            "prompt": "abc",
            "max_tokens": 5000,
            "stream": True,
        },
    )
    stream.read(10)
    begin = time.monotonic()
    code, text = s.stop(signal.SIGTERM, signal.SIGTERM)
    assert time.monotonic() - begin < 30 and code == 1 and "Stopped." in text, (code, text)
    stream.close()


def an_end_takes_no_longer_than_allowed():
    s = Server(
        *DUMMY,
        "--port",
        "0",
        "--device",
        "sim",
        "--sim-step-us",
        "200000",
        "--max-model-len",
        "8k",
        "--shutdown-timeout",
        "1",
    )
    model = json.loads(s.get("/v1/models")[1])["data"][0]["id"]
    stream = s.post("/v1/completions", {"model": model, "prompt": "abc", "max_tokens": 5000, "stream": True})
    stream.read(10)
    begin = time.monotonic()
    s.p.send_signal(signal.SIGTERM)
    rest = stream.read()
    code, text = s.stop()
    assert time.monotonic() - begin < 60 and code == 1, (code, text)
    assert b"stopping" in rest and b"[DONE]" not in rest, rest[-300:]
    assert "--shutdown-timeout" in text, text


def a_taken_port_is_said():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        for flags, says in (
            (["--port", str(port), "--admin-listen", "off"], "--port"),
            (["--port", "0", "--admin-listen", f"127.0.0.1:{port}"], "--admin-listen"),
        ):
            r = run("serve", *DUMMY, *flags)
            assert r.returncode == 1 and str(port) in err(r) and "in use" in err(r) and says in err(r), err(r)
            assert "Loading" not in err(r), "it was known before the model was loaded"


def bad_keys_are_said_before_the_model_is_loaded():
    r = run("serve", *DUMMY, "--port", "0", "--dry-run", "--device", "sim", env={"VLLM_API_KEY": "sekrit"})
    assert r.returncode == 0 and "every client is let in" in err(r) and "sekrit" not in err(r), err(r)
    with tempfile.NamedTemporaryFile() as empty:
        for flags, says in (
            (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
            (["--admin-key-file", empty.name], "no key"),
            (["--api-key", "a=b=c"], "--api-key-file"),
        ):
            r = run("serve", *DUMMY, "--port", "0", *flags)
            assert r.returncode == 1 and says in err(r) and "Loading weights" not in err(r), err(r)
    r = run(
        "serve",
        *DUMMY,
        "--port",
        "0",
        "--dry-run",
        "--device",
        "sim",
        "--api-key-file",
        "/dev/stdin",
        stdin="one=two team\n",
    )  # read once
    assert r.returncode == 0 and "1 key of tenants team" in err(r), err(r)


def keys_stay_out_of_the_log_and_the_process_list():
    keys = tempfile.NamedTemporaryFile("w")
    keys.write("# ours\nfiled=sekrit filed\n")
    keys.flush()
    s = Server(
        *DUMMY,
        "--port",
        "0",
        "--device",
        "sim",
        "--api-key",
        "sekrit=team",
        "--admin-key=sekrit-root",
        "--api-key-file",
        keys.name,
        "--enable-log-requests",
    )
    try:
        with open(f"/proc/{s.p.pid}/cmdline", "rb") as f:
            words = f.read()
        assert b"sekrit" not in words and b"--api-key\0***********\0--admin-key=***********\0" in words, words
        request = urllib.request.Request(s.url + "/v1/models", headers={"Authorization": "Bearer filed=sekrit"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as r:
            assert r.status == 200
        try:
            s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            raise AssertionError("no key was needed")
        except urllib.error.HTTPError as e:
            assert e.code == 401
            e.close()
    finally:
        code, text = s.stop(signal.SIGINT)
    assert code == 0 and "sekrit" not in text


def write_folder(to, tokenizer=True):
    """A small Llama as Hugging Face has it: all zeros but norms and embeddings, so that every token leads to the last
    one."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
        "vocab_size": 98,
        "tie_word_embeddings": False,
    }
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": [98, 64],
        "lm_head.weight": [98, 64],
        "model.norm.weight": [64],
        layer + "input_layernorm.weight": [64],
        layer + "post_attention_layernorm.weight": [64],
        **{f"{layer}self_attn.{p}_proj.weight": [64, 64] for p in "qkvo"},
        **{f"{layer}mlp.{p}_proj.weight": [64, 64] for p in ("gate", "up", "down")},
    }
    head, data = {}, b""
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        ones = "embed" in name or "norm" in name
        values = struct.pack("<f", 1.0) * n if ones else b"\0\0\0\0" * n
        if name.startswith("lm_head"):
            values = b"\0\0\0\0" * (64 * 96) + struct.pack("<f", 1.0) * 64 + b"\0\0\0\0" * 64  # token 96, "ab"
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(head).encode()
    with open(os.path.join(to, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    vocab = {"\u0120": 0, **{chr(c): c - 32 for c in range(33, 127)}, "end": 95, "ab": 96}
    files = {"config.json": config, "tokenizer_config.json": {"chat_template": "{{ messages[0].content }}"}}
    if tokenizer:
        files["tokenizer.json"] = {
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        }
    for name, content in files.items():
        with open(os.path.join(to, name), "w", encoding="utf-8") as f:
            json.dump(content, f)


def a_folder_is_served_with_its_own_tokenizer():
    with tempfile.TemporaryDirectory() as site, tempfile.TemporaryDirectory() as bare:
        write_folder(site)
        write_folder(bare, tokenizer=False)
        few = ["--kv-cache-memory-bytes", "4MiB", "-t", "1", "-n", "3", "--temperature", "0"]
        r = run("run", site, *few, "hello")
        assert r.returncode == 0 and out(r) == "ababab\n", r
        r = run("run", bare, *few, "hello")
        assert r.returncode == 1 and "there is no tokenizer.json; name a GGUF file" in err(r), r
        r = run("run", bare, "--tokenizer", site, *few, "hello")
        assert r.returncode == 0 and out(r) == "ababab\n", r


def policies_are_checked():
    good = run("policy", "check", "policies/fcfs.lua")
    assert good.returncode == 0 and "params" in out(good), good
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as f:
        f.write("return {\n  api = 1,\n  step = function(view, act, p) os.exit(1) end,\n}\n")
        f.flush()
        bad = run("policy", "check", f.name)
    assert bad.returncode == 1 and ":3:" in err(bad) and "os" in err(bad), bad
    wrong = run("policy", "check", "policies/fcfs.lua", "--policy-param", "budget=-5")
    assert wrong.returncode == 1 and "budget" in err(wrong), wrong


CASES = [
    version_and_help,
    wrong_words,
    too_little_memory_says_what_fits,
    start_up_lines,
    json_log_lines,
    answers_on_pipes,
    piped_text_comes_before_the_question,
    chat_with_line_editing,
    chat_at_a_terminal_that_edits_nothing,
    typed_lines_are_edited_and_kept,
    no_colours_where_none_are_wanted,
    interrupts_stop_the_answer_only,
    no_control_bytes_on_a_terminal,
    a_server_serves_and_drains,
    a_second_signal_stops_at_once,
    an_end_takes_no_longer_than_allowed,
    a_taken_port_is_said,
    bad_keys_are_said_before_the_model_is_loaded,
    keys_stay_out_of_the_log_and_the_process_list,
    policies_are_checked,
    a_folder_is_served_with_its_own_tokenizer,
]

cases.run(CASES)
