"""A server of its own for an oracle: starts the program on free ports, waits until it is ready, ends it. Also a small
streaming client over asyncio sockets, light enough for hundreds of streams beside the server on one machine."""

import argparse
import asyncio
import ctypes
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request

ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_") and not k.lower().endswith("_proxy")}


class Checks:
    """Call it with a name, whether that holds, and what to say of it; `end` gives the exit status."""

    def __init__(self):
        self.held = []

    def __call__(self, name, ok, note=""):
        self.held.append(bool(ok))
        print("ok  " if ok else "FAIL", name, note if not ok or isinstance(note, str) else "", flush=True)

    def end(self):
        print(f"{sum(self.held)} passed, {len(self.held) - sum(self.held)} failed")
        return 0 if all(self.held) else 1


def arguments(seconds, **more):
    """What every oracle with a server of its own takes; more: further options by name, with their defaults."""
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--seconds", type=float, default=seconds)
    for name, default in more.items():
        p.add_argument(f"--{name}", type=type(default), default=default)
    p.add_argument("serve", nargs="+")
    return p.parse_args()


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Site:
    def __init__(self, binary, args):
        self.process = subprocess.Popen(
            [binary, "serve", *args, "--port", "0", "--admin-listen", "127.0.0.1:0"],
            env=ENV,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent,  # noqa: PLW1509 (it only calls prctl)
        )
        self.lines = []
        self.port = self.admin_port = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        deadline = time.time() + 300
        while not (self.port and self.admin_port):
            if self.process.poll() is not None or time.time() > deadline:
                raise SystemExit("the server did not start:\n" + "".join(self.lines[-20:]))
            time.sleep(0.05)
        self.base, self.admin = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.admin_port}"

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            del self.lines[:-2000]
            if m := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(m[1])
            if m := re.search(r"Admin routes on port (\d+)", line):
                self.admin_port = int(m[1])

    def get(self, path, admin=False, timeout=30):
        with urllib.request.urlopen((self.admin if admin else self.base) + path, timeout=timeout) as r:
            return r.read().decode()

    def state(self):
        return json.loads(self.get("/admin/state", admin=True))

    def metric(self, name):
        """The sum of all series of this name."""
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.get("/metrics").splitlines()
            if re.match(re.escape(name) + r"[{ ]", line)
        ]
        return sum(values)

    def settles(self, seconds=60):
        deadline = time.time() + seconds
        while time.time() < deadline:
            s = self.state()
            if s["front"]["live"] == 0 and s["engine"]["requests"]["live"] == 0:
                return s
            time.sleep(0.1)
        return None

    def terminate(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)


def books(state):
    """What must hold when nothing is under way; a list of what does not."""
    e, f, wrong = state["engine"], state["front"], []
    kv, r = e["kv"], e["requests"]
    if kv["free"] + kv["held"] + kv["cached"] != kv["total"]:
        wrong.append(f"KV blocks: {kv}")
    if kv["held"]:
        wrong.append(f"{kv['held']} KV blocks are held by nobody")
    if not e["conserved"]:
        wrong.append("the engine's recount differs")
    if not r["submitted"] == r["ended"] == f["submitted"] == f["ended"]:
        wrong.append(f"endings: engine {r}, front {f['submitted']} / {f['ended']}")
    if f["live"] or f["answers"] or f["orders"] or f["text_jobs"]:
        wrong.append(f"the front still has {f}")
    return wrong


async def post(port, path, body, headers=""):
    """Sends a request and returns (reader, writer) behind the response's head, and its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
        + data
    )
    head = await reader.readuntil(b"\r\n\r\n")
    return reader, writer, int(head.split(b" ", 2)[1])


async def events(reader):
    """The data of each SSE frame of a chunked body, as bytes; ends with the body."""
    buffer = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")), 16)
        buffer += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return
        while (at := buffer.find(b"\n\n")) >= 0:
            frame, buffer = buffer[:at], buffer[at + 2 :]
            if not frame.startswith(b":"):
                yield frame.partition(b"data: ")[2]


async def frames(reader):
    """The JSON of each SSE frame of a chunked body; ends at [DONE]."""
    async for data in events(reader):
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise EOFError("the stream ended without [DONE]")
