"""python3 tests/bench/reshard_bench.py [FILE.gguf]: how fast a live server's two ranks load new shares of the weights,
beside copying as many bytes out of the same file. A policy reshards between two stages and two shares while a client
asks for short answers, one after another; the file is in the page cache. What the ranks loaded is counted packed, as
they hold it. The copies are made beside a server with the same traffic that does not reshard, by two threads at once,
into memory that was written before."""

import ctypes
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, "tests/rig")
import file_site
from file_site import Site

MODEL = (
    sys.argv[1]
    if len(sys.argv) > 1
    else subprocess.run(["models/fetch.sh"], check=True, capture_output=True, text=True).stdout.strip()
)
file_site.DUMMY[:] = [MODEL, "--served-model-name", "m", "--port", "0"]
SECONDS, RANKS, COPY = 30, 2, 48 << 20
BODY = '{"model": "m", "prompt": "the", "max_tokens": 3, "temperature": 0}'
POLICY = """
local steps = 0
return {
  api = 1, doc = "changes between stages and shares all the time",
  step = function(view, act)
    steps = steps + 1
    local group = view.groups[1]
    if steps % 4 == 0 and group and group.weights then
      act.reshard(group, group.weights.pp > 1 and { tp = 2 } or { pp = 2 })
    end
    for _, idle in ipairs(view.idle) do
      local batch = act.batch(idle)
      if batch then
        batch:decodes()
        batch:prefill(view.waiting, 512)
        if batch.tokens > 0 then act.forward(idle, batch) end
      end
    end
  end,
}
"""


def copies():
    with open(MODEL, "rb") as f:
        source = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)
    n = min(COPY, len(source) // RANKS)
    whole = ctypes.c_char.from_buffer(source)  # keeps the mapping, too
    rooms = [ctypes.create_string_buffer(n) for _ in range(RANKS)]
    move = ctypes.CDLL(None).memmove

    def copy(i):
        move(rooms[i], ctypes.c_void_p(ctypes.addressof(whole) + i * n), ctypes.c_size_t(n))

    def once():
        threads = [threading.Thread(target=copy, args=(i,)) for i in range(RANKS)]
        t0 = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return RANKS * n / (time.perf_counter() - t0) / 1e9

    return once


def metric(s, name):
    text = s.ask("GET", "/metrics")[1].decode()
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(name))


def state(admin):
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/admin/state") as r:
        return json.load(r)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(s):
    status, answer = s.ask("POST", "/v1/completions", BODY)
    assert status == 200, answer


def site(policy, admin):
    args = ["--ranks", str(RANKS), "-pp", str(RANKS), "--weights", "sharded", "--policy", policy]
    return Site(None, *args, "--admin-listen", f"127.0.0.1:{admin}")


def copy_rates():
    admin, rates, copy = free_port(), [], copies()
    with site("fcfs", admin) as s:
        end = time.monotonic() + SECONDS / 2
        asking = threading.Thread(target=lambda: [ask(s) for _ in iter(lambda: time.monotonic() < end, False)])
        asking.start()
        while time.monotonic() < end:
            rates.append(copy())
        asking.join()
    return rates


def load_rates(policy):
    admin, rates, last = free_port(), [], 0
    with site(policy, admin) as s:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            ask(s)
            ns = state(admin)["engine"]["sharded"]["load_ns_per_byte"]
            if ns != last and ns > 0:
                rates.append(RANKS / ns)
            last = ns
        return rates, metric(s, "moonshift:weights_resharded_bytes_total")


def main():
    with tempfile.TemporaryDirectory() as folder:
        policy = os.path.join(folder, "toggle.lua")
        with open(policy, "w") as f:
            f.write(POLICY)
        rates, moved = load_rates(policy)
        copy = statistics.median(copy_rates())
    median = statistics.median(rates)
    print(f"{os.path.basename(MODEL)}: {len(rates)} loads, {moved / 1e9:.1f} GB into {RANKS} ranks; ", end="")
    print(f"{median:.2f} GB/s ({min(rates):.2f} to {max(rates):.2f}), copy {copy:.2f} GB/s ({median / copy:.2f} of it)")
    return 0


sys.exit(main())
