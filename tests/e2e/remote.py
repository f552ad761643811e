"""The commands that speak to a running server: policy push, list, show, diff, activate, rollback, log."""

import http.server
import json
import os
import re
import subprocess
import sys
import threading

sys.path.insert(0, "tests/rig")
import cases
from state_site import BINARY, ENV, FCFS, WAIT_S, Site, sha, variant

HOME = {**ENV, "HOME": "/nonexistent", "XDG_CONFIG_HOME": ""}


def run(*words, env=HOME):
    r = subprocess.run([BINARY, "policy", *words], capture_output=True, text=True, env=env, timeout=WAIT_S)
    return r.returncode, r.stdout, r.stderr


def write(folder, name, text, mode=0o600):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def a_policy_goes_there_and_back(folder):
    mine = write(folder, "mine.lua", variant(1))
    with Site(os.path.join(folder, "state")) as s:
        at = ["--server", f"http://127.0.0.1:{s.port}"]
        assert run("push", mine, *at) == (0, f"mine ({sha(variant(1))[:12]}) is live\n", "")
        assert s.live() == ("mine", sha(variant(1)))
        write(folder, "mine.lua", variant(2))
        assert run("push", mine, *at, "--no-activate", "--name", "other")[0] == 0 and s.live()[0] == "mine"
        code, out, _ = run("list", *at)
        assert code == 0 and re.search(rf"{sha(variant(2))[:12]}  .* other +open", out), out
        assert re.search(r" mine +open +live\n", out), out
        assert run("show", "other", *at) == (0, variant(2), "")
        assert run("show", "mine", "--sha", sha(variant(1))[:8], *at) == (0, variant(1), "")
        code, out, _ = run("diff", mine, *at)
        assert code == 0 and "\n--- variant 1\n+-- variant 2\n" in out and out.startswith("--- live"), out
        code, out, _ = run("diff", "other", f"mine@{sha(variant(1))}", *at)
        assert code == 0 and "\n--- variant 2\n+-- variant 1\n" in out, out
        said = {"from": "other", "to": f"mine@{sha(variant(1))}", "equal": False, "diff": out}
        code, out, _ = run("diff", "other", f"mine@{sha(variant(1))}", "--json", *at)
        assert code == 0 and json.loads(out) == said, out
        assert run("diff", "mine", *at) == (0, "", "")
        code, out, _ = run("diff", "mine", "--json", *at)
        assert code == 0 and json.loads(out) == {"from": "live", "to": "mine", "equal": True, "diff": ""}, out
        assert run("activate", "other", *at)[0] == 0 and s.live() == ("other", sha(variant(2)))
        assert run("rollback", *at)[0] == 0 and s.live() == ("mine", sha(variant(1)))
        assert run("rollback", "--to", sha(FCFS)[:10], *at)[0] == 0 and s.live() == ("fcfs", sha(FCFS))
        code, out, _ = run("list", "--json", *at)
        assert code == 0 and len(json.loads(out)["versions"]) == 3
        code, out, _ = run("log", *at)
        assert code == 0 and out.count("\n") == len(s.ask("GET", "/admin/audit")[1].split("\n")) - 1, out
        code, out, _ = run("log", "--verify", *at)
        assert code == 0 and "each bound to the one before" in out, out
        s.end()
    path = os.path.join(folder, "state", "audit.jsonl")
    assert run("log", "--verify", path)[0] == 0
    text = open(path).read()
    write(folder, "changed", text.replace('"rollback"', '"activate"', 1))
    write(folder, "torn", text[:-5])
    for name, says in (("changed", "does not verify: line "), ("torn", "in the middle of a line")):
        code, out, err = run("log", "--verify", os.path.join(folder, name))
        assert code == 1 and says in err, (name, out, err)


def scripts_can_tell_what_went_wrong(folder):
    bad, good = write(folder, "bad.lua", "return {"), write(folder, "good.lua", variant(3))
    with Site(None) as s:
        at = ["--server", f"http://127.0.0.1:{s.port}"]
        for words, status, says in (
            (("push", bad, *at), 1, "bad.lua:1:"),
            (("rollback", "--to", "0" * 8, *at), 1, "no version of"),
            (("show", "nothing", *at), 1, "no version of"),
            (("push", good, "--server", "http://127.0.0.1:9"), 3, "no answer from http://127.0.0.1:9: is the server"),
            (("list", "--server", "https://127.0.0.1:9"), 2, "TLS is not offered"),
            (("list", "--server", "127.0.0.1"), 2, "http://127.0.0.1:8001"),
            (("push", folder + "/none.lua", *at), 2, "none.lua"),
            (("push", good, "--name", "../x", *at), 2, "a policy's name"),
            (("rollback", "--to", "xyz", *at), 2, "8 or more"),
            (("push",), 2, "which file?"),
            (("activate",), 2, "which policy?"),
            (("list", "x"), 2, "a word too many"),
            (("show", "x", "--to", "y"), 2, "--to belongs to moonshift policy rollback"),
        ):
            code, out, err = run(*words)
            assert code == status and says in err, (words, code, out, err)


def the_key_comes_from_a_file_that_is_ones_own(folder):
    keys = write(folder, "keys", "# of the site\nsecret alice\n")
    with Site(None, "--admin-key-file", keys) as s:
        url = f"http://127.0.0.1:{s.port}"
        code, _, err = run("list", "--server", url)
        assert code == 1 and "admin key" in err, err
        assert run("list", "--server", url, "--admin-key-file", keys)[0] == 0
        assert run("list", "--server", url, "--admin-key", "secret")[0] == 0
        config = write(folder, "c.json", json.dumps({"server": url, "key": "secret"}))
        assert run("list", "--client-config", config)[0] == 0
        os.makedirs(folder + "/mine/.config/moonshift")
        write(folder, "mine/.config/moonshift/client.json", open(config).read())
        assert run("list", env={**HOME, "HOME": folder + "/mine"})[0] == 0
        os.chmod(config, 0o640)
        code, _, err = run("list", "--client-config", config)
        assert code == 2 and "others can read it" in err and "secret" not in err, err
        write(folder, "c.json", json.dumps({"server": url}), 0o644)  # without a key it is nobody's secret
        assert run("list", "--client-config", config, "--admin-key", "secret")[0] == 0
        for text in ("{", "[]1", '{"keys": "x"}', '{"key": 5}'):
            code, _, err = run("list", "--client-config", write(folder, "d.json", text))
            assert code == 2 and "d.json" in err, (text, err)


class Endless(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            pass

    def log_message(self, *_):
        pass


def an_answer_without_end_is_given_up(_):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        code, out, err = run("list", "--server", f"http://127.0.0.1:{server.server_port}")
        assert code == 3 and not out and "answer" in err, (code, out, err)
    finally:
        server.shutdown()
        server.server_close()


cases.run(
    [
        a_policy_goes_there_and_back,
        scripts_can_tell_what_went_wrong,
        the_key_comes_from_a_file_that_is_ones_own,
        an_answer_without_end_is_given_up,
    ],
    in_folder=True,
)
