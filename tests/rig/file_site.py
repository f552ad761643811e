"""A server with made-up weights and a folder for files and batches, and what its tests ask it. Tests only."""

import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
DUMMY = ["--load-format", "dummy", "--hf-config", "tests/data/layout_gqa.json", "--served-model-name", "m", "-t", "1"]
DUMMY += ["--port", "0", "--kv-cache-memory-bytes", "64MiB", "--admin-listen", "off"]
KEYS = ["--api-key", "one", "--api-key", "two"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
FOLDER = tempfile.TemporaryDirectory()
B = "boundary"


def command(folder, *more, flags=DUMMY):
    where = ["--batch-dir", os.path.join(FOLDER.name, folder)] if folder else []
    return [BINARY, "serve", *flags, *where, *more]


class Site:
    def __init__(self, folder, *more, flags=DUMMY):
        self.p = subprocess.Popen(command(folder, *more, flags=flags), stderr=subprocess.PIPE, text=True, env=ENV)
        atexit.register(self.p.kill)  # a test that fails leaves nobody who would keep its caller waiting
        said = ""
        for text in self.p.stderr:
            said += text
            if found := re.search(r" on http://127.0.0.1:(\d+)", text):
                self.port = int(found.group(1))
                break
        else:
            raise AssertionError(said)
        self.rest = threading.Thread(target=self.p.stderr.read, daemon=True)
        self.rest.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, how):
        if self.p.poll() is None:
            self.p.send_signal(how)
        code = self.p.wait(60)
        self.rest.join()
        self.p.stderr.close()
        return code

    def ask(self, method, where, body=None, key="one", **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            c.request(method, where, body, {"Authorization": f"Bearer {key}", **headers})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def json(self, method, where, body=None, key="one", **headers):
        status, text = self.ask(method, where, body, key, **headers)
        return status, json.loads(text)

    def upload(self, data, name="lines.jsonl", key="one", purpose="batch"):
        return self.json("POST", "/v1/files", form(data, name, purpose), key, **{"Content-Type": TYPE})


TYPE = f"multipart/form-data; boundary={B}"


def form(data, name="lines.jsonl", purpose="batch", more=""):
    head = f'--{B}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n{more}'
    head += f'--{B}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    return head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + data + f"\r\n--{B}--\r\n".encode()
