"""python3 tests/bench/watching_bench.py: what stories of requests, the decision log, probation's guards, the window of
what-if, watchers of /admin/events and a policy beside the live one cost a live server: CPU of the whole process a step,
and tokens a second, 96 clients on two groups of the simulated device. Rounds in turn; medians, least and most."""

import http.client
import json
import os
import re
import statistics
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
from serving import Server

ROUNDS, CLIENTS, ANSWERS, TOKENS = 5, 96, 3, 400
NO_WINDOW = ["--what-if-memory", "0"]
OFF = ["--request-history", "0", "--decision-log-memory", "0", "--policy-probation-seconds", "0", *NO_WINDOW]
CASES = {  # flags, watchers, a policy beside
    "all off": (OFF, 0, None),
    "without a window": (NO_WINDOW, 0, None),
    "as usual": ([], 0, None),
    "as usual, 8 watchers": ([], 8, None),
    "fair beside": ([], 0, "policies/fair.lua"),
}


def watch(port):
    c = http.client.HTTPConnection("127.0.0.1", port)
    try:
        c.request("GET", "/admin/events")
        for _ in c.getresponse():
            pass
    except (OSError, http.client.HTTPException):
        pass  # the server is gone


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        user, system = f.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def together(n, what):
    threads = [threading.Thread(target=what) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def once(flags, watchers, beside):
    with Server("--max-num-seqs", "64", "--kv-cache-memory-bytes", "64MiB", *flags, policy="static:dp=2") as s:
        for _ in range(watchers):
            threading.Thread(target=watch, args=(s.admin,), daemon=True).start()
        if beside:
            r, text = s.ask("POST", "/admin/policies/beside/shadow", open(beside).read())
            assert r.status == 200, text
        wall, cpu = time.monotonic(), cpu_s(s.p.pid)
        together(CLIENTS, lambda: [s.complete(TOKENS) for _ in range(ANSWERS)])
        wall, cpu = time.monotonic() - wall, cpu_s(s.p.pid) - cpu
        metrics = s.ask("GET", "/metrics", port=s.port)[1].decode()
        steps = float(re.search(r"^moonshift:steps_total\S* (\S+)", metrics, re.M)[1])
        if beside:
            it = json.loads(s.ask("GET", "/admin/shadow")[1])
            print(f"beside: {it['decisions']}, {it['call_us']:.1f} us a decision, {100 * it['share']:.2f}% of the time")
        return 1e6 * cpu / steps, CLIENTS * ANSWERS * TOKENS / wall


seen = {name: [] for name in CASES}
for i in range(ROUNDS):
    for name in list(CASES)[:: 1 if i % 2 == 0 else -1]:
        seen[name].append(once(*CASES[name]))
for name, rounds in seen.items():
    us, rate = ([r[k] for r in rounds] for k in (0, 1))
    print(
        f"{name:21s} {statistics.median(us):6.1f} us a step ({min(us):.1f} to {max(us):.1f}), "
        f"{statistics.median(rate):7.0f} tokens/s ({min(rate):.0f} to {max(rate):.0f})"
    )
