"""What if, on a running server of the simulated device: the live policy predicts itself about as well as the engine
measured; one that fails, or lets requests starve, is told so and nothing is touched; one at a time, and with whoever
asked, or the server, its process and its files go."""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
import cases
from file_site import BINARY, ENV
from serving import Server

WAIT_S = 60
FLAGS = ["--admin-key", "sesame", "--sim-step-us", "2000", "--starvation-seconds", "2"]
FCFS = open("policies/fcfs.lua").read()
PLAIN = FCFS[: FCFS.index("  tests = {")] + "}\n"


def later(what, at=150):
    """fcfs, and from its 150th step on something else first: the dry runs of loading are shorter."""
    text = PLAIN.replace(
        "return {",
        f"local n = 0\nlocal function late(act)\n  n = n + 1\n  if n < {at} then return end\n  {what}\nend\nreturn {{",
        1,
    )
    return re.sub(r"(step\s*=\s*function\(view, act, p\))", r"\1\n    if late(act) then return end\n", text, count=1)


FAILING = later("error('fifty')")
STARVING = later("act.wake(0.05) return true")
ENDLESS = later("local x = 0 for i = 1, 4e6 do x = x + i % 7 end")
UNFIT = PLAIN.replace("return {", "return { start = function(n) assert(n.max_num_seqs ~= 77, 'not with 77') end,", 1)
assert len({PLAIN, FAILING, STARVING, ENDLESS}) == 4 and "late(act)" in FAILING


def traffic(s, n=6, each=25):
    def client():
        for _ in range(each):
            s.complete(12)

    threads = [threading.Thread(target=client) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def what_if(s, body=None, query="?name=mine", status=200):
    r, text = s.ask("POST", "/admin/what-if" + query, body)
    assert r.status == status, (r.status, text)
    return json.loads(text)


def live(s):
    policy = json.loads(s.ask("GET", "/admin/policy")[1])
    return policy["active"]["sha256"], policy["strikes"], policy["withdrawn"], policy["fallback_steps"]


def children(pid):
    """Who runs a program of its own: between fork and exec a child still has its parent's words."""
    out = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = open(path).read().rsplit(")", 1)[1].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                child = int(path.split("/")[2])
                words = open(f"/proc/{child}/cmdline").read().split("\0")
                if "--trace" in words:
                    out.append((child, words))
        except OSError:
            pass  # it has gone meanwhile
    return out


def has_ended(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def until(true, what, within=WAIT_S):
    end = time.monotonic() + within
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < end, what
        time.sleep(0.02)


def folder_of(words):
    return os.path.dirname(words[words.index("--trace") + 1])


def means(s):
    text = s.ask("GET", "/metrics", port=s.port)[1].decode()

    def mean(name):
        total, n = (float(re.search(rf"^\S*{name}_{x}\S* (\S+)", text, re.M)[1]) for x in ("sum", "count"))
        return 1e3 * total / n

    return {"ttft_ms": mean("time_to_first_token_seconds"), "tpot_ms": mean("time_per_output_token_seconds")}


def it_predicts_itself():
    with Server(*FLAGS, policy="static:dp=2") as s:
        traffic(s)
        measured, before = means(s), live(s)
        it = what_if(s, open("policies/static.lua").read(), "?name=static")
        assert it["ok"] and not it["problems"], it
        w = it["window"]
        assert w["requests"] == w["ended"] == 150 and w["left_away"] == 0 and w["steps"] > 150, w
        assert it["live"]["sha256"] == it["other"]["sha256"] == before[0]
        assert "both are the same" in " ".join(it["notes"])
        for run in (it["live"], it["other"]):
            assert run["finished"] == run["requests"] == w["requests"] and run["errors"] == 0, run
            assert run["guessed"] < 0.2, run["guessed"]
            for name, most in (("ttft_ms", 2), ("tpot_ms", 1.6)):
                ratio = run[name]["mean"] / measured[name]
                assert 1 / most < ratio < most, (name, run[name], measured)
            c = run["curve"]
            assert c["bin_s"] == 1 and len(c["ttft_ms"]) == len(c["tpot_ms"]) == len(c["waiting"]) >= 1
            assert max(v for v in c["throughput"] if v) > 0
        half = w["seconds"] / 2
        part = what_if(s, PLAIN, f"?name=mine&seconds={half}")["window"]
        assert part["seconds"] <= half and 0 < part["requests"] < w["requests"], part
        assert live(s) == before
        look = json.loads(s.ask("GET", "/admin/what-if")[1])
        assert look["requests"] == w["requests"] and not look["busy"] and 0 < look["bytes"] <= look["max_bytes"], look


def what_fails_is_told_and_nothing_is_touched():
    with Server(*FLAGS, "--max-num-seqs", "77", policy="static:dp=2") as s:
        traffic(s)
        before = live(s)
        it = what_if(s, FAILING)
        assert not it["ok"] and it["other"]["errors"] > 0 and it["other"]["withdrawn"] > 0, it["other"]
        line = 1 + FAILING[: FAILING.index("fifty")].count("\n")
        assert f"mine.lua:{line}:" in it["problems"][0] and "fifty" in it["problems"][0], it["problems"]
        assert it["live"]["errors"] == 0 and it["live"]["finished"] == it["live"]["requests"]
        it = what_if(s, STARVING)
        # which of the two it is depends on whether all had started by then
        assert not it["ok"] and it["other"]["withdrawn"] > 0, it["other"]
        assert re.search("starv|stalled", " ".join(it["problems"])), it["problems"]
        assert it["other"]["ttft_ms"]["p99"] > 1000 > it["live"]["ttft_ms"]["p99"], it["other"]["ttft_ms"]
        broken = what_if(s, FCFS.replace("return {", "return {,", 1), status=400)["error"]
        assert broken["file"] == "mine.lua" and broken["line"] > 0, broken
        unfit = what_if(s, UNFIT, status=400)["error"]  # its dry runs are on other nodes
        assert unfit["file"] == "mine.lua" and "not with 77" in unfit["message"], unfit
        assert live(s) == before
        s.complete()


def versions_and_libraries():
    with Server(*FLAGS, policy="static:dp=2") as s:
        traffic(s)
        url = ["--server", f"http://127.0.0.1:{s.admin}", "--admin-key", "sesame"]

        def run(*words):
            p = subprocess.run(
                [BINARY, "policy", *words, *url], capture_output=True, text=True, env=ENV, timeout=WAIT_S
            )
            return p.returncode, p.stdout, p.stderr

        with_libs = next(
            f for f in sorted(glob.glob("policies/*.lua")) if re.search(r"^  lib = ", open(f).read(), re.M)
        )
        name = os.path.basename(with_libs)[:-4]
        code, out, err = run("what-if", with_libs)
        assert code == 0 and "TTFT p50 (ms)" in out and "went without an error" in out, (out, err)
        code, out, err = run("push", with_libs, "--no-activate")
        assert code == 0, err
        sha = re.search(r"\((\w+)\) is kept", out)[1]
        it = what_if(s, None, f"?policy={name}&sha={sha}")
        assert it["ok"] and it["other"]["sha256"].startswith(sha), it["other"]
        code, out, _ = run("what-if", name, "--sha", sha, "--seconds", "60", "--json")
        assert code == 0 and json.loads(out)["other"]["sha256"].startswith(sha)
        before = live(s)
        path = os.path.join(sys.argv[0] + f".{os.getpid()}.lua")
        try:
            open(path, "w").write(FAILING)
            code, out, _ = run("push", path, "--name", "bad", "--try")
            assert code == 1 and "Failed: " in out and "fifty" in out and live(s) == before, out
            assert "bad" not in run("list")[1]
            open(path, "w").write(PLAIN)
            code, out, _ = run("push", path, "--name", "good", "--try")
            assert code == 0 and re.search(r"^good \(\w+\) is live", out, re.M), out
        finally:
            os.unlink(path)
        assert run("what-if", "nobody")[0] == 1 and run("what-if", "nobody.lua")[0] == 2
        assert run("what-if", with_libs, "--sha", sha)[0] == 2


def what_cannot_be_is_refused():
    with Server(*FLAGS, "--what-if-memory", "1MiB", policy="fcfs") as s:
        assert "no request has come" in what_if(s, PLAIN, status=409)["error"]["message"]
        for query, body, status in (
            ("?seconds=x", PLAIN, 400),
            ("?seconds=0", PLAIN, 400),
            ("?name=a/b", PLAIN, 400),
            ("", None, 400),
            ("?policy=fcfs", PLAIN, 400),
            ("?policy=nobody", None, 404),
            ("?policy=fcfs&sha=00", None, 400),
        ):
            what_if(s, body, query, status)
        assert s.ask("POST", "/admin/what-if", PLAIN, key=None)[0].status == 401
        assert s.ask("POST", "/admin/what-if", PLAIN, Origin="http://evil.example")[0].status == 403
        assert s.ask("POST", "/admin/what-if", PLAIN, **{"Sec-Fetch-Site": "cross-site"})[0].status == 403
        assert s.ask("PUT", "/admin/what-if", PLAIN)[0].status == 405
        assert s.ask("POST", "/admin/what-if", PLAIN, port=s.port)[0].status == 404
    with Server("--admin-key", "sesame", "--what-if-memory", "0", policy="fcfs") as s:
        s.complete()
        assert "--what-if-memory 0" in what_if(s, PLAIN, status=501)["error"]["message"]


def post(s, body):
    c = socket.create_connection(("127.0.0.1", s.admin))
    head = f"POST /admin/what-if?name=mine HTTP/1.1\r\nHost: 127.0.0.1:{s.admin}\r\nAuthorization: Bearer sesame\r\n"
    c.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return c


def one_at_a_time_and_it_goes_with_who_asked():
    with Server(*FLAGS, policy="static:dp=2") as s:
        traffic(s)
        c = post(s, ENDLESS)
        pid, words = until(lambda: next(iter(children(s.p.pid)), None), "a child")
        folder = folder_of(words)
        assert os.stat(folder).st_mode & 0o777 == 0o700 and os.stat(folder + "/window.rec").st_mode & 0o077 == 0
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        environ = open(f"/proc/{pid}/environ").read()
        assert "MOONSHIFT_" not in environ
        assert "another policy is being tried" in what_if(s, PLAIN, status=409)["error"]["message"]
        assert json.loads(s.ask("GET", "/admin/what-if")[1])["busy"]
        s.complete()  # it serves meanwhile
        c.close()
        until(lambda: not children(s.p.pid) and not os.path.exists(folder), "the end of the child")
        until(lambda: not json.loads(s.ask("GET", "/admin/what-if")[1])["busy"], "another one may")
        assert what_if(s, PLAIN)["ok"]


def it_goes_with_the_server():
    with Server(*FLAGS, policy="static:dp=2") as s:
        traffic(s)
        c = post(s, ENDLESS)
        pid, words = until(lambda: next(iter(children(s.p.pid)), None), "a child")
        s.p.send_signal(signal.SIGTERM)
        assert s.p.wait(WAIT_S) == 0
        c.settimeout(WAIT_S)
        assert b" 503 " in c.recv(1 << 16).split(b"\r\n", 1)[0]
        c.close()
        assert not os.path.exists(f"/proc/{pid}") and not os.path.exists(folder_of(words))


def it_goes_with_a_server_that_is_killed():
    with Server(*FLAGS, policy="static:dp=2") as s:
        traffic(s)
        c = post(s, ENDLESS)
        pid, words = until(lambda: next(iter(children(s.p.pid)), None), "a child")
        s.p.kill()
        s.p.wait(WAIT_S)
        c.close()
        until(lambda: has_ended(pid), "the end of the child", within=5)  # of itself after more than ten
        shutil.rmtree(folder_of(words))


cases.run(
    [
        it_predicts_itself,
        what_fails_is_told_and_nothing_is_touched,
        versions_and_libraries,
        what_cannot_be_is_refused,
        one_at_a_time_and_it_goes_with_who_asked,
        it_goes_with_the_server,
        it_goes_with_a_server_that_is_killed,
    ]
)
