"""--disk-kv from outside: a system prompt survives a restart and a kill and is found in another layout, its text is the
same as without a disk, tenants find their own only, a reset forgets for good, and files that are not the server's stay
as they are. Uses made-up weights."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, "tests/rig")
import cases
from file_site import BINARY, DUMMY, ENV, FOLDER, Site

FILE = os.path.join(FOLDER.name, "kv")
HOST = ["--host-kv-memory", "4MiB", "--block-size", "16"]
TENANTS = ["--api-key", "one=blue", "--api-key", "two=red", "--admin-key", "boss"]
SYSTEM = "You answer shortly, and in the words of a sailor. " * 4


def site(*more, disk=FILE + ":64MiB"):
    return Site(None, *HOST, *(["--disk-kv", disk] if disk else []), *TENANTS, *more)


def complete(s, prompt=SYSTEM + "Who are you?", key="one"):
    body = {"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    status, r = s.json("POST", "/v1/completions", json.dumps(body), key)
    assert status == 200, r
    return r["choices"][0]["text"], (r["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def metric(s, name):
    for line in s.ask("GET", "/metrics")[1].decode().splitlines():
        if line.startswith("moonshift:" + name) and not line.startswith("#"):
            return float(line.split()[-1])
    raise AssertionError(name)


def wait_written(s, tokens):
    end = time.time() + 60
    while metric(s, "kv_disk_written_tokens_total") < tokens:
        assert time.time() < end, s.ask("GET", "/metrics")[1].decode()
        time.sleep(0.02)


def clean():
    if os.path.exists(FILE):
        os.unlink(FILE)


def a_system_prompt_survives_restarts_kills_and_other_layouts():
    clean()
    with site(disk=None) as s:
        plain, _ = complete(s)
        other, _ = complete(s, SYSTEM + "Where to?")
    with site() as s:
        text, cached = complete(s)
        assert (text, cached) == (plain, 0), (text, cached)
        wait_written(s, 192)
        assert metric(s, "disk_kv_blocks_cached") >= 12 and metric(s, "disk_kv_blocks") > 100
        assert s.end(signal.SIGTERM) == 0
    assert os.stat(FILE).st_mode & 0o777 == 0o600
    for how, more in ((signal.SIGKILL, ()), (signal.SIGKILL, ("--ranks", "2", "-tp", "2")), (signal.SIGTERM, ())):
        with site(*more) as s:
            text, cached = complete(s)
            assert text == plain and cached >= 176, (how, more, text, cached)
            text, cached = complete(s, SYSTEM + "Where to?")
            assert text == other and cached >= 160, (text, cached)
            assert metric(s, "kv_disk_read_tokens_total") >= 176
            s.end(how)


def tenants_find_their_own_only():
    clean()
    with site() as s:
        plain, _ = complete(s)
        wait_written(s, 192)
        s.end(signal.SIGKILL)
    with site() as s:
        assert complete(s, key="two") == (plain, 0)
        assert complete(s)[1] >= 176


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def a_reset_forgets_for_good():
    clean()
    port = free_port()
    with site("--admin-listen", f"127.0.0.1:{port}") as s:
        complete(s)
        wait_written(s, 192)
        public, s.port = s.port, port
        status, _ = s.ask("POST", "/admin/reset_prefix_cache", key="boss")
        assert status == 200, status
        s.port = public
        assert complete(s)[1] == 0
        wait_written(s, 384)
        s.port = port
        assert s.ask("POST", "/admin/reset_prefix_cache", key="boss")[0] == 200
        state = s.json("GET", "/admin/state", key="boss")[1]
        assert state["engine"]["disk_kv"]["cached"] == 0, state
        s.end(signal.SIGTERM)
    with site() as s:
        assert complete(s)[1] == 0


def another_model_begins_anew():
    """And so does another precision of the same."""
    for other in (["--seed", "9"], ["--cpu-precision", "high"]):
        clean()
        with site() as s:
            complete(s)
            wait_written(s, 192)
        with site(*other) as s:
            _, cached = complete(s)
            assert cached == 0 and metric(s, "kv_disk_read_tokens_total") == 0, other


def refused(*args):
    p = subprocess.run([BINARY, "serve", *DUMMY, *args], capture_output=True, text=True, env=ENV, timeout=60)
    assert p.returncode != 0, p.stderr
    return p.stderr


def what_cannot_be_is_refused_with_a_word():
    clean()
    assert "--host-kv-memory" in refused("--disk-kv", FILE)
    assert "--record" in refused(*HOST, "--disk-kv", FILE, "--record", FILE + ".rec")
    assert "leave --no-enable-prefix-caching out" in refused(*HOST, "--no-enable-prefix-caching", "--disk-kv", FILE)
    assert "bytes are not enough" in refused(*HOST, "--disk-kv", FILE + ":1kB")
    assert "No such file or directory" in refused(*HOST, "--disk-kv", "/no/such/folder/kv")
    with open(FILE, "w") as f:
        f.write("my thesis")
    assert "stays as it is" in refused(*HOST, "--disk-kv", FILE)
    assert open(FILE).read() == "my thesis"
    clean()
    with site():
        assert "in use by another server" in refused(*HOST, "--disk-kv", FILE)


cases.run(
    [
        a_system_prompt_survives_restarts_kills_and_other_layouts,
        tenants_find_their_own_only,
        a_reset_forgets_for_good,
        another_model_begins_anew,
        what_cannot_be_is_refused_with_a_word,
    ]
)
