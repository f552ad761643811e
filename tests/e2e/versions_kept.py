"""What outlives a server of its policies: quarantine, the last good version, and the folder that holds both, torn,
changed or taken."""

import json
import os
import resource
import subprocess
import sys

sys.path.insert(0, "tests/rig")
import cases
from state_site import ENV, FCFS, WAIT_S, Site, command, read_log, sha, variant, wait_for

BAD = """return { api = 1, params = { broken = { default = 0 } },
  step = function(view, act, p)
    if p.broken > 0 then error("as it was told") end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g) b:decodes() b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end
    end
  end }
"""


def events(folder):
    return [(e["event"], e["result"], e["actor"]) for e in read_log(folder)]


def refuses_to_start(folder, *more):
    r = subprocess.run(command(folder, *more), capture_output=True, text=True, env=ENV, timeout=WAIT_S)
    assert r.returncode != 0, r.stderr
    return r.stderr


def what_was_withdrawn_is_in_quarantine(folder):
    with Site(folder) as s:
        good = s.live()
        s.put("good", variant(1))
        s.put("bad", BAD)
        s.json("PATCH", "/admin/policy/params", '{"broken": 1}')
        assert wait_for(lambda: s.run_one() and s.live()[0] != "bad" and s.live())[0] == "good"
        state = s.versions()[("bad", sha(BAD))]
        assert "quarantined" in state["state"] and state["reason"], state
        refused = s.put("again", BAD, "", 409)
        assert refused["error"]["code"] == "policy_quarantined" and "force=1" in refused["error"]["message"], refused
        s.json("POST", f"/admin/policies/bad/activate?sha={sha(BAD)}", status=409)
        s.json("POST", f"/admin/policy/rollback?to={sha(BAD)}", status=409)
        # after the withdrawal the engine has none to go back to; the versions have
        s.json("POST", "/admin/policy/rollback")
        assert s.live() == good
        s.put("bad", BAD + "-- another comment\n")  # another hash: let in, and in the record
    with Site(folder) as s:  # what the record says holds in the next process
        s.put("bad", BAD, "", 409)
        s.put("bad", BAD, "?force=1")
        assert s.live() == ("bad", sha(BAD))
    log = read_log(folder)
    withdrawn = [e for e in log if e["event"] == "withdraw"]
    assert withdrawn[0]["from"] == sha(BAD) and withdrawn[0]["to"] == sha(variant(1)), withdrawn
    assert ("release", "ok", "open") in events(folder)
    assert sum(e["result"] == "quarantined" and e["event"] != "withdraw" for e in log) == 4, log


def a_start_begins_with_the_last_good_one(folder):
    quick = ["--policy-probation-seconds", "0"]
    with Site(folder, *quick) as s:
        source = variant(5)
        s.put("mine", source)
        s.json("PATCH", "/admin/policy/params", '{"budget": 512}')
        wait_for(lambda: "last-good" in s.versions()[("mine", sha(source))]["state"])
    good = json.load(open(os.path.join(folder, "last-good.json")))
    wait = ["--policy-probation-seconds", "1000"]
    assert good == {"name": "mine", "sha256": sha(source), "params": {"budget": 512}}, good
    with Site(folder, *wait) as s:
        assert s.live() == ("mine", sha(source)) and "the last good version" in s.said, s.said
        assert s.json("GET", "/admin/policy")["active"]["params"]["budget"]["value"] == 512
        s.put("hasty", variant(1))  # live, and not long enough
    with Site(folder, *wait) as s:
        assert s.live() == ("mine", sha(source))
    with Site(folder, *wait, "--policy", "fcfs") as s:
        assert s.live() == ("fcfs", sha(FCFS)) and "--policy says so" in s.said, s.said
    with open(os.path.join(folder, "policies", sha(source) + ".lua"), "a") as f:
        f.write("-- changed behind its back\n")
    with Site(folder, *wait) as s:
        assert s.live() == ("fcfs", sha(FCFS)), s.said
        assert "was changed" in s.said and "is not kept any more" in s.said, s.said


def a_full_disk_refuses_what_is_new_and_leaves_the_way_back(folder):
    with Site(folder) as s:
        s.put("mine", variant(1))
        s.put("mine", variant(2))
        _, hard = resource.prlimit(s.p.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(s.p.pid, resource.RLIMIT_FSIZE, (1, hard))
        refused = s.put("mine", variant(3), "", 507)
        assert refused["error"]["code"] == "policy_unrecorded", refused
        assert s.put("mine", variant(3), "?activate=0", 507) and s.live() == ("mine", sha(variant(2)))
        s.json("POST", "/admin/policy/rollback")
        assert s.live() == ("mine", sha(variant(1)))
        s.json("POST", f"/admin/policy/rollback?to={sha(FCFS)}")
        assert s.live() == ("fcfs", sha(FCFS))
        failed = [
            x
            for x in s.ask("GET", "/metrics", port=s.public)[1].split("\n")
            if x.startswith("policy_record_failures_total ")
        ]
        assert float(failed[-1].split()[-1]) >= 2, failed
        resource.prlimit(s.p.pid, resource.RLIMIT_FSIZE, (hard, hard))
        s.put("mine", variant(3))
        assert s.live() == ("mine", sha(variant(3))) and s.end() == 0
    log = read_log(folder)
    assert log[-1]["event"] == "activate" and log[-1]["to"] == sha(variant(3)), log


def a_second_server_is_kept_out(folder):
    with Site(folder):
        said = refuses_to_start(folder)
        assert folder in said and "another server's" in said, said


def a_torn_line_is_set_aside_and_a_changed_one_refused(folder):
    path = os.path.join(folder, "audit.jsonl")
    with Site(folder) as s:
        s.put("mine", variant(1))
    whole = open(path).read()
    open(path, "a").write('{"seq":99,"ti')
    with Site(folder) as s:
        assert "ended in the middle of a line" in s.said, s.said
    torn = [e for e in read_log(folder) if e["event"] == "torn"]
    assert len(torn) == 1 and "13 bytes" in torn[0]["reason"], torn
    aside = [f for f in os.listdir(folder) if f.startswith("audit.torn-")]
    assert open(os.path.join(folder, aside[0])).read() == '{"seq":99,"ti'
    open(path, "w").write(whole.replace('"actor":"open"', '"actor":"file"', 1))
    said = refuses_to_start(folder)
    assert "does not verify" in said and "line " in said and "move it away" in said, said


cases.run(
    [
        what_was_withdrawn_is_in_quarantine,
        a_start_begins_with_the_last_good_one,
        a_full_disk_refuses_what_is_new_and_leaves_the_way_back,
        a_second_server_is_kept_out,
        a_torn_line_is_set_aside_and_a_changed_one_refused,
    ],
    in_folder=True,
)
