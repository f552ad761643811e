"""A server of the simulated device, two ranks, with an admin listener (file_site.Site has none). Tests only."""

import http.client
import json
import re
import subprocess
import threading

import file_site

SIM = ["--load-format", "dummy", "--hf-config", "tests/data/sim_ranks.json", "--device", "sim", "--ranks", "2"]
SIM += ["--kv-cache-memory-bytes", "16MiB", "--port", "0", "--served-model-name", "m"]


class Server:
    """A server of the sim device with an admin listener; file_site.Site has none."""

    def __init__(self, *more, policy):
        self.p = subprocess.Popen(
            [file_site.BINARY, "serve", *SIM, "--admin-listen", "127.0.0.1:0", "--policy", policy, *more],
            stderr=subprocess.PIPE,
            text=True,
            env=file_site.ENV,
        )
        self.said = ""
        for line in self.p.stderr:
            self.said += line
            if found := re.search(r"on http://127.0.0.1:(\d+)", line):
                self.port = int(found.group(1))
            if found := re.search(r"Admin routes on (?:\S+ )?port (\d+)", line):
                self.admin = int(found.group(1))
                break
        else:
            raise AssertionError(self.said)
        threading.Thread(target=self.p.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait()

    def ask(self, method, path, body=None, key="sesame", port=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", port or self.admin, timeout=60)
        c.request(method, path, body, {**({"Authorization": f"Bearer {key}"} if key else {}), **headers})
        r = c.getresponse()
        return r, r.read()

    def complete(self, n=20):
        body = json.dumps({"model": "m", "prompt": [5, 6, 7], "max_tokens": n, "ignore_eos": True})
        r, text = self.ask("POST", "/v1/completions", body, port=self.port, **{"Content-Type": "application/json"})
        assert r.status == 200, text
