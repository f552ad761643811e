"""Versions of policies over the admin routes: what is kept, what goes live, the way back, the record. That is verified
by a reader of its own (tests/rig/state_site.py)."""

import itertools
import os
import signal
import sys
import threading

sys.path.insert(0, "tests/rig")
import cases
from state_site import FCFS, Site, read_log, sha, variant, verify, wait_for


def events(folder):
    return [(e["event"], e["result"], e["actor"]) for e in read_log(folder)]


def every_version_is_kept_and_can_come_back(folder):
    with Site(folder) as s:
        first = s.live()
        assert first == ("fcfs", sha(FCFS)), first
        for i in range(3):
            s.put("mine", variant(i))
        assert s.live() == ("mine", sha(variant(2)))
        states = {k: v["state"] for k, v in s.versions().items()}
        assert states[("mine", sha(variant(2)))] == ["live"] and states[("mine", sha(variant(1)))] == ["previous"], (
            states
        )
        assert s.ask("GET", "/admin/policies/mine") == (200, variant(2))
        assert s.ask("GET", f"/admin/policies/mine?sha={sha(variant(0))[:8]}") == (200, variant(0))
        # one back, the other one back again, and further than one
        s.json("POST", "/admin/policy/rollback")
        assert s.live() == ("mine", sha(variant(1)))
        s.json("POST", f"/admin/policy/rollback?to={sha(FCFS)[:12]}")
        assert s.live() == first
        s.json("POST", "/admin/policies/mine/rollback")
        assert s.live() == ("mine", sha(variant(1)))
        s.json("POST", f"/admin/policies/mine/activate?sha={sha(variant(0))}")
        assert s.live() == ("mine", sha(variant(0)))
        s.json("POST", "/admin/policies/mine/rollback", status=200)
        assert s.live() == ("mine", sha(variant(1)))
        assert s.end() == 0
    for path in os.listdir(os.path.join(folder, "policies")):
        text = open(os.path.join(folder, "policies", path)).read()
        assert path == sha(text) + ".lua", path
    log = read_log(folder)
    assert log[0]["event"] == "load" and log[1]["event"] == "boot" and log[1]["actor"] == "boot", log[:2]
    lively = [
        (e["from"], e["to"]) for e in log if e["event"] in ("boot", "activate", "rollback") and e["result"] == "ok"
    ]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(lively)), lively


def what_is_only_kept_does_not_go_live(folder):
    with Site(folder) as s:
        before = s.live()
        kept = s.put("mine", variant(1), "?activate=0")
        assert kept == {"name": "mine", "sha256": sha(variant(1))} and s.live() == before
        assert s.versions()[("mine", sha(variant(1)))]["state"] == []
        s.put("mine", "return {", "?activate=0", 400)
        assert [v["state"] for v in s.versions().values() if v["bytes"] == 0] == [["refused"]]
        r = s.json("POST", "/admin/policies/mine/check", variant(2))
        assert r["ok"] and ("mine", sha(variant(2))) not in s.versions()
        s.json("DELETE", f"/admin/policies/fcfs?sha={sha(FCFS)}", status=409)
        s.json("DELETE", f"/admin/policies/mine?sha={sha(variant(1))[:8]}")
        assert ("mine", sha(variant(1))) not in s.versions()
        assert not os.path.exists(os.path.join(folder, "policies", sha(variant(1)) + ".lua"))
        s.json("DELETE", f"/admin/policies/mine?sha={sha(variant(1))}", status=404)


def names_hashes_and_paths_are_checked(folder):
    with Site(folder) as s:
        for name in ("..%2fx", ".x", "a%20b", "a/b", "%2e%2e", "x" * 41, ".lua", "a/b/activate", "/activate"):
            for method, more in (("PUT", ""), ("GET", ""), ("DELETE", "?sha=" + "0" * 64)):
                assert s.ask(method, f"/admin/policies/{name}{more}", "return {}")[0] in (400, 404), (method, name)
        assert s.ask("POST", "/admin/policies/../activate")[0] in (400, 404)
        assert s.ask("POST", "/admin/policies/fcfs/destroy")[0] == 404
        for given, status in (("abc", 400), ("0" * 7, 400), ("0" * 8, 404), ("XYZ" * 4, 400), ("0" * 65, 400)):
            for where in (f"policy/rollback?to={given}", f"policies/fcfs/activate?sha={given}"):
                assert s.ask("POST", "/admin/" + where)[0] == status, where
        assert s.ask("GET", f"/admin/policies/fcfs?sha={sha(FCFS)[:8]}")[0] == 200
        assert s.ask("GET", "/admin/audit?from=x")[0] == 400 and s.ask("GET", "/admin/audit?n=0")[0] == 400


def one_source_under_two_names_is_no_doubt(_):
    with Site(None) as s:
        s.put("one", variant(1), "?activate=0")
        s.put("two", variant(1), "?activate=0")
        s.json("POST", f"/admin/policy/rollback?to={sha(variant(1))[:8]}")
        assert s.live() == ("two", sha(variant(1)))


def the_record_is_read_over_http_and_names_keys_not_the_keys(folder):
    keys = os.path.join(folder, "keys")
    open(keys, "w").write("secret-of-alice alice\nsecret-of-nobody\n")
    state = os.path.join(folder, "state")
    with Site(state, "--admin-key-file", keys) as s:
        for i, key in enumerate(("secret-of-alice", "secret-of-nobody")):
            s.json("PUT", "/admin/policies/mine", variant(i), key=key)
        status, text = s.ask("GET", "/admin/audit", key="secret-of-alice")
        assert status == 200 and "secret" not in text
        log = verify(text)
        assert [e["actor"] for e in log if e["event"] == "activate"] == ["key:alice", "key"], log
        status, part = s.ask("GET", "/admin/audit?from=3&n=2", key="secret-of-alice")
        assert part == "".join(line + "\n" for line in text.split("\n")[2:4])
        assert s.ask("GET", "/admin/audit")[0] == 401
    assert open(os.path.join(state, "audit.jsonl")).read().startswith(text)


def without_a_folder_the_doors_are_the_same(_):
    with Site(None) as s:
        s.put("mine", variant(1))
        s.put("mine", variant(2))
        s.json("POST", f"/admin/policy/rollback?to={sha(variant(1))}")
        assert s.live() == ("mine", sha(variant(1)))
        log = verify(s.ask("GET", "/admin/audit")[1])
        assert log[-1]["event"] == "rollback" and log[-1]["to"] == sha(variant(1))
        assert s.json("GET", "/admin/policies")["state_dir"] is None


def sighup_reads_the_live_file_now(folder):
    path = os.path.join(folder, "own.lua")
    open(path, "w").write(FCFS)
    with Site(os.path.join(folder, "state"), "--policy", path) as s:
        s.p.send_signal(signal.SIGHUP)  # nothing was edited: the file is read all the same
        wait_for(lambda: ("activate", "ok", "signal") in events(os.path.join(folder, "state")))
        wait_for(lambda: "SIGHUP" in s.said)
        assert s.live() == ("own", sha(FCFS))
        open(path, "w").write(variant(1))
        wait_for(lambda: s.live() == ("own", sha(variant(1))))


def orders_at_once_are_one_after_the_other(folder):
    with Site(folder) as s:
        results = []

        def one(i):
            results.append(s.ask("PUT", f"/admin/policies/p{i}", variant(i))[0])
            results.append(s.ask("POST", "/admin/policy/rollback")[0])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert results == [200] * 12, results
        live = s.live()
    lively = [e for e in read_log(folder) if e["event"] in ("boot", "activate", "rollback")]
    assert len(lively) == 13 and lively[-1]["to"] == live[1]
    assert all(a["to"] == b["from"] for a, b in itertools.pairwise(lively)), lively


cases.run(
    [
        every_version_is_kept_and_can_come_back,
        what_is_only_kept_does_not_go_live,
        names_hashes_and_paths_are_checked,
        one_source_under_two_names_is_no_doubt,
        the_record_is_read_over_http_and_names_keys_not_the_keys,
        without_a_folder_the_doors_are_the_same,
        sighup_reads_the_live_file_now,
        orders_at_once_are_one_after_the_other,
    ],
    in_folder=True,
)
