"""`moonshift state` and `moonshift top`: what a running server does, on one page for a person; top on a terminal of its
own, which is left as it was found by q, by Ctrl-C and when the server goes."""

import http.client
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

sys.path.insert(0, "tests/rig")
import cases
import file_site
from serving import Server

HOME = {**file_site.ENV, "HOME": "/nonexistent", "XDG_CONFIG_HOME": ""}
WAIT_S = 60
HOLDS = """return { api = 1, doc = "x",
  admit = function(r, view, act) if r.priority > 0 then act.hold(r, "later", view.now + 3000) end end,
  step = function(view, act) for _, g in ipairs(view.idle) do local b = act.batch(g)
    b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }"""


def run(*words):
    r = subprocess.run([file_site.BINARY, *words], capture_output=True, text=True, env=HOME, timeout=WAIT_S)
    return r.returncode, r.stdout, r.stderr


def start(s, priority=0):
    """A request that goes on until its connection is closed."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S)
    body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": True, "stream": True}
    c.request(
        "POST", "/v1/completions", json.dumps({**body, "priority": priority}), {"Content-Type": "application/json"}
    )
    return c


def state(s):
    return json.loads(s.ask("GET", "/admin/state")[1])["engine"]


def wait(ready):
    end = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def a_page_for_a_person(_):
    with Server("--sim-step-us", "20000", policy="fcfs") as s:
        at = ("--server", f"http://127.0.0.1:{s.admin}")
        assert s.ask("PUT", "/admin/policies/holds", HOLDS)[0].status == 200
        assert s.ask("PATCH", "/admin/limits", '{"max_num_seqs": 7}')[0].status == 200
        open_ones = [start(s, p) for p in (0, 4, 4)]
        wait(lambda: (state(s)["n_running"], state(s)["held"]) == (1, 2))
        for words in (("state", *at), ("top", *at)):  # top: standard output is no terminal
            code, out, err = run(*words)
            assert code == 0 and not err, err
            for says in (
                "policy     holds (",
                "requests   1 running, 2 waiting (2 held, 0 parked), 0 ended, 0 preemptions\n",
                "output tokens/s, ",
                "limits     max_num_seqs 7 (128 at the start), max_num_batched_tokens 2048,",
                "priority  waiting  oldest\n       4        2  ",
                "held now  in all  the policy's reason\n       2       2  later\n",
                "    1  0-1       sp 1 tp 2 pp 1             1  ",
                "rank 0         1        0      127      128     1%\n",
            ):
                assert says in out, (says, out)
            assert "\x1b" not in out
        code, out, _ = run("state", *at, "--json")
        e = json.loads(out)["engine"]
        assert code == 0 and e["holds"] == [{"reason": "later", "now": 2, "times": 2}], e["holds"]
        assert [r["held"]["reason"] for r in e["waiting"]] == ["later"] * 2, e["waiting"]
        for c in open_ones:
            c.close()
        wait(lambda: state(s)["requests"]["live"] == 0)
        assert state(s)["holds"] == [{"reason": "later", "now": 0, "times": 2}]
        code, _, err = run("state", *at, "word")
        assert code == 2 and "a word too many" in err, err
    code, _, err = run("state", *at)
    assert code == 3 and "no answer from" in err, err


class Top:
    """moonshift top on a pseudo-terminal."""

    def __init__(self, s):
        self.fd, side = pty.openpty()
        self.keys = termios.tcgetattr(side)
        self.side = side
        self.p = subprocess.Popen(
            [file_site.BINARY, "top", "--server", f"http://127.0.0.1:{s.admin}"],
            stdin=side,
            stdout=side,
            stderr=side,
            env=HOME,
            start_new_session=True,
        )
        self.said = b""

    def read_until(self, says, times=1):
        end = time.monotonic() + WAIT_S
        while self.said.count(says) < times:
            assert time.monotonic() < end, self.said
            if select.select([self.fd], [], [], 0.2)[0]:
                self.said += os.read(self.fd, 65536)

    def ends(self):
        code = self.p.wait(WAIT_S)
        self.read_until(b"\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(self.side) == self.keys  # as it was found
        os.close(self.side)
        os.close(self.fd)
        return code


def top_is_left_by_a_key_a_signal_and_a_server_that_goes(_):
    with Server(policy="fcfs") as s:
        for key in (b"q", b"\x03"):
            t = Top(s)
            t.read_until(b"policy     fcfs", 2)  # it is drawn anew
            assert t.said.startswith(b"\x1b[?1049h\x1b[?25l\x1b[H"), t.said[:40]
            os.write(t.fd, key)
            assert t.ends() == 0
        t = Top(s)
        t.read_until(b"policy     fcfs")
        t.p.send_signal(signal.SIGTERM)
        assert t.ends() == 0
        t = Top(s)
        t.read_until(b"policy     fcfs")
        s.p.kill()
        s.p.wait()
        t.read_until(b"moonshift: no answer from")
        assert t.ends() == 3
        assert t.said.index(b"\x1b[?1049l") < t.said.index(b"moonshift: no answer")  # on the screen of before


cases.run([a_page_for_a_person, top_is_left_by_a_key_a_signal_and_a_server_that_goes], in_folder=True)
