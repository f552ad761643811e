"""A server on simulated ranks with a --state-dir, and what tests of versions of policies ask it. Tests only."""

import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
DUMMY = ["--load-format", "dummy", "--hf-config", "tests/data/sim_model.json", "--device", "sim", "--port", "0"]
DUMMY += ["--admin-listen", "127.0.0.1:0", "--served-model-name", "m", "--disable-log-stats"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
FCFS = open("policies/fcfs.lua").read()
WAIT_S = 60


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def variant(n):
    """A policy like fcfs, with a hash of its own."""
    return f"{FCFS}-- variant {n}\n"


def command(folder, *more):
    return [BINARY, "serve", *DUMMY, *(["--state-dir", folder] if folder else []), *more]


def verify(text):
    """What an audit log says, and whether it is a chain; independent of the program."""
    entries, prev = [], "0" * 64
    for i, line in enumerate(text.split("\n")[:-1], 1):
        entry = json.loads(line)
        assert entry["seq"] == i and entry["prev"] == prev, (i, line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["time"]), line
        entries.append(entry)
        prev = hashlib.sha256(line.encode()).hexdigest()
    assert text == "" or text.endswith("\n"), text[-200:]
    return entries


def read_log(folder):
    with open(os.path.join(folder, "audit.jsonl")) as f:
        return verify(f.read())


def wait_for(what, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about")


class Site:
    def __init__(self, folder, *more):
        # restore_signals: SIGXFSZ stays ignored, as a write that a limit refuses has to fail like one on a full disk
        self.p = subprocess.Popen(
            command(folder, *more), stderr=subprocess.PIPE, text=True, env=ENV, restore_signals=False
        )
        self.said, self.port, self.public, self.rest = "", None, None, None
        for text in self.p.stderr:
            self.said += text
            if found := re.search(r" on http://127.0.0.1:(\d+)", text):
                self.public = int(found.group(1))
            if found := re.search(r"Admin routes on port (\d+)", text):
                self.port = int(found.group(1))
                break
        if self.port is None:
            self.p.wait()
            self.p.stderr.close()
            raise AssertionError(self.said)
        self.rest = threading.Thread(target=self._read, daemon=True)
        self.rest.start()

    def _read(self):
        for text in self.p.stderr:
            self.said += text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, how=signal.SIGTERM):
        if self.p.poll() is None:
            self.p.send_signal(how)
        code = self.p.wait(WAIT_S)
        self.rest.join()
        self.p.stderr.close()
        return code

    def ask(self, method, where, body=None, key=None, port=None):
        c = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=WAIT_S)
        try:
            c.request(method, where, body, {"Authorization": f"Bearer {key}"} if key else {})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def json(self, method, where, body=None, status=200, key=None):
        got, text = self.ask(method, where, body, key)
        assert got == status, (method, where, got, text)
        return json.loads(text)

    def live(self):
        active = self.json("GET", "/admin/policy")["active"]
        return active["name"], active["sha256"]

    def versions(self):
        return {(v["name"], v["sha256"]): v for v in self.json("GET", "/admin/policies")["versions"]}

    def put(self, name, source, more="", status=200):
        return self.json("PUT", f"/admin/policies/{name}{more}", source, status)

    def run_one(self):
        """One request, so that the policy decides steps."""
        body = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 4})
        c = http.client.HTTPConnection("127.0.0.1", self.public, timeout=WAIT_S)
        try:
            c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()
