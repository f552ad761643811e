"""A server that is killed at any moment of a put, an activation, a rollback or a removal begins with the last good
version, and none of its files is torn. Moments are drawn: SEED=N repeats those of a run that failed, ROUNDS=N kills
so often."""

import json
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
import cases
from state_site import FCFS, Site, sha, variant, verify, wait_for

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
ROUNDS = int(os.environ.get("ROUNDS", "6"))


def orders(s, draw, n):
    """Orders one after the other until the server is gone."""
    try:
        while True:
            i = draw.randrange(6)
            kind = draw.randrange(5)
            if kind < 2:
                s.ask("PUT", f"/admin/policies/p{i}{'?activate=0' if draw.random() < 0.3 else ''}", variant(n * 8 + i))
            elif kind == 2:
                s.ask("POST", f"/admin/policies/p{i}/activate")
            elif kind == 3:
                s.ask("POST", "/admin/policy/rollback")
            else:
                s.ask("DELETE", f"/admin/policies/p{i}?sha={sha(variant(n * 8 + i))}")
    except OSError:
        pass
    except Exception as e:  # an answer that was cut off
        assert "IncompleteRead" in repr(e) or "RemoteDisconnected" in repr(e), e


def files_are_whole(folder):
    """The last good version that the folder names, after a look at all that lies there."""
    text = open(os.path.join(folder, "audit.jsonl")).read()
    log = verify(text[: text.rfind("\n") + 1])
    sources = os.path.join(folder, "policies")
    for name in os.listdir(sources):
        if ".tmp-" not in name:
            assert name == sha(open(os.path.join(sources, name)).read()) + ".lua", name
    path = os.path.join(folder, "last-good.json")
    if not os.path.exists(path):
        return None, log
    good = json.load(open(path))
    assert os.path.exists(os.path.join(sources, good["sha256"] + ".lua")), good
    return (good["name"], good["sha256"]), log


def wherever_it_is_killed_it_begins_with_the_last_good_one(folder):
    draw = random.Random(SEED)
    print(f"SEED={SEED}")
    good, seen = None, set()
    for n in range(ROUNDS):
        s = Site(folder, "--policy-probation-seconds", "0.05")
        try:
            assert s.live() == (good or ("fcfs", sha(FCFS))), (n, good, s.live(), s.said)
            begun = time.monotonic()
            s.put("first", variant(n * 8 + 7))
            took = time.monotonic() - begun  # of one order here, so that the moments lie within a few of them
            if n == 0:  # there is a good one from now on, however slow this machine is
                wait_for(lambda: os.path.exists(os.path.join(folder, "last-good.json")))
            worker = threading.Thread(target=orders, args=(s, random.Random(draw.random()), n))
            killer = threading.Timer(draw.uniform(0, 4) * took, s.p.kill)
            killer.start()
            worker.start()
            worker.join()
        finally:
            assert s.end(signal.SIGKILL) == -signal.SIGKILL
        good, log = files_are_whole(folder)
        seen |= {e["event"] for e in log}
    assert good and {"boot", "load", "activate", "commit"} <= seen, (good, seen)


cases.run([wherever_it_is_killed_it_begins_with_the_last_good_one], in_folder=True)
