"""/v1/files from outside: what is kept and what is refused, whose it is, and that a server which is killed at any
moment loses no file that it had answered for and keeps no half of one. Uses made-up weights."""

import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
import cases
from file_site import ENV, FOLDER, KEYS, TYPE, B, Site, command, form

N_KILLS = 3 if os.environ.get("MOONSHIFT_SLOW") else 12


def ids(answer):
    return [f["id"] for f in answer[1]["data"]]


def what_is_kept_comes_back():
    data = bytes(range(256)) * 999 + b"\r\n--" + B[:-1].encode() + b"\r\n"
    with Site("back", *KEYS) as s:
        status, f = s.upload(data, "größe \\ of it.jsonl")
        assert status == 200 and f["object"] == "file" and f["purpose"] == "batch" and f["status"] == "processed", f
        assert f["bytes"] == len(data) and f["filename"] == "größe \\ of it.jsonl", f
        assert abs(f["created_at"] - time.time()) < 600
        assert s.json("GET", "/v1/files/" + f["id"]) == (200, f)
        assert s.ask("GET", f"/v1/files/{f['id']}/content") == (200, data)
        others = [s.upload(b"x")[1]["id"] for _ in range(4)]
        newest = [*reversed(others), f["id"]]
        assert ids(s.json("GET", "/v1/files")) == newest
        assert ids(s.json("GET", "/v1/files?order=asc&purpose=batch")) == newest[::-1]
        assert ids(s.json("GET", "/v1/files?purpose=fine-tune")) == []
        page = s.json("GET", f"/v1/files?limit=2&after={newest[0]}")
        assert ids(page) == newest[1:3] and page[1]["has_more"] is True, page
        page = s.json("GET", f"/v1/files?limit=2&after={newest[2]}")
        assert ids(page) == newest[3:] and page[1]["has_more"] is False, page
        gone = s.json("DELETE", "/v1/files/" + f["id"])
        assert gone == (200, {"id": f["id"], "object": "file", "deleted": True}), gone
        for method, where in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert s.json(method, "/v1/files/" + f["id"] + where)[0] == 404
        assert ids(s.json("GET", "/v1/files")) == newest[:-1]
        assert s.end(signal.SIGTERM) == 0
    kept = os.listdir(os.path.join(FOLDER.name, "back"))
    assert sorted(kept) == sorted(["lock", *(f"{i}.{end}" for i in others for end in ("data", "json"))]), kept


def files_belong_to_a_key():
    with Site("keys", *KEYS) as s:
        f = s.upload(b"mine")[1]["id"]
        for method, where in (
            ("GET", ""),
            ("GET", "/content"),
            ("DELETE", ""),
            ("GET", "/more"),
            ("DELETE", "/content"),
        ):
            assert s.json(method, f"/v1/files/{f}{where}", key="two")[0] == 404
            assert s.json(method, f"/v1/files/{f}{where}", key="three")[0] == 401
        assert ids(s.json("GET", "/v1/files", key="two")) == [] and s.upload(b"x", key="three")[0] == 401
        assert s.json("GET", "/v1/files?after=" + f, key="two")[0] == 400
        assert s.ask("GET", f"/v1/files/{f}/content") == (200, b"mine")
        strange = {"Content-Type": TYPE, "Origin": "http://elsewhere"}
        assert s.json("POST", "/v1/files", form(b"x"), **strange)[0] == 403


def bad_uploads_say_what_is_wrong():
    twice = f'--{B}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    other = twice.replace("purpose", "expires_after[anchor]")
    with Site("bad") as s:
        for body, kind, word in (
            (form(b"x"), "application/json", "multipart/form-data"),
            (form(b"x"), "multipart/form-data", "boundary"),
            (form(b"x")[:-6], TYPE, "last boundary"),
            (form(b"x") + b"more", TYPE, "behind the last boundary"),
            (b"", TYPE, "begin with its boundary"),
            (form(b""), TYPE, "empty"),
            (form(b"x", purpose="fine-tune"), TYPE, "purpose must be"),
            (form(b"x", name=""), TYPE, "with a name"),
            (form(b"x", name="n" * 256), TYPE, "at most 255"),
            (form(b"x", more=twice), TYPE, "twice"),
            (form(b"x", more=other), TYPE, "not offered"),
        ):
            status, said = s.json("POST", "/v1/files", body, **{"Content-Type": kind})
            assert status == 400 and word in said["error"]["message"], (status, said)
        for query in ("limit=0", "limit=x", "order=up", "after=file-1"):
            assert s.json("GET", "/v1/files?" + query)[0] == 400, query
        assert ids(s.json("GET", "/v1/files")) == []
    assert os.listdir(os.path.join(FOLDER.name, "bad")) == ["lock"]


def limits_hold_and_a_deleted_file_makes_room():
    more = ["--batch-file-bytes", "1000", "--batch-bytes", "2500", "--batch-files", "3"]
    with Site("limits", *more) as s:
        status, said = s.upload(b"x" * 1001)
        assert status == 413 and "--batch-file-bytes" in said["error"]["message"], said
        assert s.ask("POST", "/v1/files", form(b"x" * 200000), **{"Content-Type": TYPE})[0] == 413
        kept = [s.upload(b"x" * 1000)[1]["id"] for _ in range(2)]
        status, said = s.upload(b"x" * 600)
        assert status == 507 and "--batch-bytes" in said["error"]["message"], said
        kept.append(s.upload(b"x")[1]["id"])
        status, said = s.upload(b"x")
        assert status == 507 and "--batch-files" in said["error"]["message"], said
        assert s.json("DELETE", "/v1/files/" + kept[0])[0] == 200
        assert s.upload(b"x" * 600)[0] == 200


def one_key_of_several_has_at_most_half():
    with Site("shared", *KEYS, "--batch-bytes", "4000", "--batch-files", "4") as s:
        kept = s.upload(b"x" * 1000)[1]["id"]
        status, said = s.upload(b"x" * 1000)
        assert status == 507 and "half of --batch-bytes" in said["error"]["message"], said
        assert s.upload(b"x")[0] == 200
        status, said = s.upload(b"x")
        assert status == 507 and "2 files" in said["error"]["message"], said
        assert s.upload(b"x" * 1000, key="two")[0] == 200
        assert s.json("DELETE", "/v1/files/" + kept)[0] == 200
        assert s.upload(b"x" * 1000)[0] == 200


def a_folder_has_one_server_and_flags_are_checked():
    with Site("one"):
        second = subprocess.run(command("one"), capture_output=True, text=True, timeout=60, env=ENV)
        assert second.returncode == 1 and "another server's" in second.stderr, second
    for flags, word in (("--batch-file-bytes 64MiB", "--max-body-bytes"), ("--max-answer-memory 1MiB", "--max-answer")):
        wrong = subprocess.run(command("wrong", *flags.split()), capture_output=True, text=True, timeout=60, env=ENV)
        assert wrong.returncode == 1 and word in wrong.stderr, wrong
        assert not os.path.exists("wrong"), "a folder was made for a server that cannot start"
    with Site(None) as s:
        for status, said in (s.upload(b"x"), s.json("GET", "/v1/files"), s.json("DELETE", "/v1/files/x")):
            assert status == 501 and "--batch-dir" in said["error"]["message"], said


def upload_until_it_dies(s, rng, kept):
    while True:
        data = rng.randbytes(rng.randrange(1, 1 << rng.randrange(1, 20)))
        try:
            status, f = s.upload(data)
        except (OSError, http.client.HTTPException):
            return
        assert status == 200, f
        kept[f["id"]] = data


def a_killed_server_loses_nothing_that_it_answered_for():
    rng, kept, folder = random.Random(1), {}, os.path.join(FOLDER.name, "killed")
    for _ in range(N_KILLS):
        with Site("killed", "--batch-files", "10000") as s:
            clients = [threading.Thread(target=upload_until_it_dies, args=(s, rng, kept)) for _ in range(3)]
            for c in clients:
                c.start()
            time.sleep(rng.uniform(0, 0.5))
            s.end(signal.SIGKILL)
            for c in clients:
                c.join()
    with open(os.path.join(folder, f"file-{'0' * 24}.data"), "wb") as f:
        f.write(b"an upload that did not end")
    with open(os.path.join(folder, f"file-{'1' * 24}.json"), "wb") as f:
        f.write(b'{"number":')
    with Site("killed", "--batch-files", "10000") as s:
        there = set(ids(s.json("GET", "/v1/files")))
        assert there >= kept.keys() and len(there) <= len(kept) + 3 * N_KILLS  # a kill before the answer
        for i, data in kept.items():
            assert s.ask("GET", f"/v1/files/{i}/content") == (200, data)
        now = {name for name in os.listdir(folder) if name != f"file-{'1' * 24}.json"}
        assert now == {"lock", *(f"{i}.{end}" for i in there for end in ("data", "json"))}
        assert s.end(signal.SIGTERM) == 0


cases.run(
    [
        what_is_kept_comes_back,
        files_belong_to_a_key,
        bad_uploads_say_what_is_wrong,
        limits_hold_and_a_deleted_file_makes_room,
        one_key_of_several_has_at_most_half,
        a_folder_has_one_server_and_flags_are_checked,
        a_killed_server_loses_nothing_that_it_answered_for,
    ]
)
