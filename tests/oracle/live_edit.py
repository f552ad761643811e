#!/usr/bin/env python3
"""Policies replaced under load: N greedy streams run all the time while the live policy is changed some thirty times a
second, as far as the machine keeps up (1,000 swaps in a minute are 16.7 a second), by PUT (fcfs, priority), by a broken
PUT (which must be refused and change nothing), by params, by rollback, and by writing the live policy's file; another
policy is asked beside it all the time. Every text must equal that of a run without any change, token by token. Then,
under the priority policy, a late urgent request must overtake.
usage: live_edit.py --binary build/moonshift [--seconds 60] [--streams 64] -- SERVE_ARGUMENTS"""

import asyncio
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request

from own_server import Checks, Site, arguments, books, frames, post

TOKENS, PACE_S = 48, 0.02
BROKEN = "return {\n  api = 1,\n  step = function(view, act, p)\n    act.forward(\n"


def request(i):
    return {
        "prompt": f"Story number {i}: once there were {i * 7} stones and",
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
        "priority": i % 3 - 1,
    }


async def stream(site, i):
    """(text, token ids) of one greedy stream."""
    reader, writer, status = await post(site.port, "/v1/completions", request(i))
    assert status == 200, (status, await reader.read(300))
    text, ids, reason = "", [], None
    async for f in frames(reader):
        assert "error" not in f, f
        for c in f["choices"]:
            text += c["text"]
            ids += c.get("token_ids") or []
            reason = c["finish_reason"] or reason
    writer.close()
    assert reason == "length", reason
    return text, ids


def admin(site, method, path, body=b""):
    r = urllib.request.Request(site.admin + path, data=body, method=method)
    try:
        with urllib.request.urlopen(r, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


class Editor:
    """Changes the live policy, one way after the other."""

    def __init__(self, site, folder):
        self.site, self.folder = site, folder
        self.source = {n: open(f"{folder}/{n}.lua").read() for n in ("fcfs", "priority", "fair")}
        self.swap_us = []
        self.counts = {"put": 0, "broken": 0, "params": 0, "rollback": 0, "file": 0}
        self.wrong = []

    def _expect(self, what, ok, note):
        if not ok:
            self.wrong.append(f"{what}: {note}")
        self.counts[what] += 1

    def put(self, name):
        status, reply = admin(self.site, "PUT", f"/admin/policies/{name}", self.source[name].encode())
        self._expect("put", status == 200 and reply["active"]["name"] == name, (status, reply))
        if self.counts["put"] % 10 == 0:
            found = re.search(r"^policy_swap_seconds (\S+)", self.site.get("/metrics"), re.M)
            self.swap_us.append(1e6 * float(found[1]))

    def shadow(self):
        """From now on another policy is asked beside the live one, whichever that is."""
        source = self.source["fair"] + "-- beside\n"
        status, reply = admin(self.site, "POST", "/admin/policies/beside/shadow?seconds=3600", source.encode())
        assert status == 200 and reply["state"] == "on", (status, reply)

    def broken(self):
        before = admin(self.site, "GET", "/admin/policy")[1]["active"]
        status, reply = admin(self.site, "PUT", "/admin/policies/broken", BROKEN.encode())
        e = reply.get("error", {})
        after = admin(self.site, "GET", "/admin/policy")[1]["active"]
        self._expect(
            "broken",
            status == 400
            and e.get("file") == "broken.lua"
            and e.get("line", 0) >= 3
            and e.get("reason")
            and after["generation"] == before["generation"],
            (status, reply),
        )

    def params(self):
        name = next(iter(admin(self.site, "GET", "/admin/policy")[1]["active"]["params"]))
        status, reply = admin(self.site, "PATCH", "/admin/policy/params", json.dumps({name: 64}).encode())
        self._expect("params", status == 200 and reply["active"]["params"][name]["value"] == 64, (status, reply))
        status, _ = admin(self.site, "PATCH", "/admin/policy/params", json.dumps({name: "x"}).encode())
        self._expect("params", status == 400, status)

    def rollback(self):
        status, reply = admin(self.site, "POST", "/admin/policy/rollback")
        self._expect("rollback", status in (200, 409), (status, reply))

    def file(self, number):
        """An edit of the live policy's file, by rename, goes live by itself."""
        self.put("fcfs")
        before = admin(self.site, "GET", "/admin/policy")[1]["active"]
        with open(f"{self.folder}/.new", "w") as f:
            f.write(self.source["fcfs"] + f"-- edit {number}\n")
        os.rename(f"{self.folder}/.new", f"{self.folder}/fcfs.lua")
        after = before
        for _ in range(100):
            time.sleep(0.05)
            after = admin(self.site, "GET", "/admin/policy")[1]["active"]
            if after["sha256"] != before["sha256"]:
                break
        self._expect("file", after["sha256"] != before["sha256"] and after["name"] == "fcfs", after)

    def run(self, until):
        turn = 0
        while time.time() < until:
            began = time.time()
            turn += 1
            if turn % 20 == 0:
                self.file(turn)
            elif turn % 10 == 5:
                self.broken()
            elif turn % 10 == 7:
                self.params()
            elif turn % 10 == 9:
                self.rollback()
            else:
                self.put("priority" if turn % 2 else "fcfs")
            time.sleep(max(0, PACE_S - (time.time() - began)))


async def again_and_again(site, i, want, until, tally):
    while time.time() < until:
        got = await stream(site, i)
        tally["streams"] += 1
        if got != want:
            tally["different"] += 1
            print(f"stream {i}: {want} became {got}")


async def swapped(site, editor, wanted, seconds):
    tally = {"streams": 0, "different": 0}
    until = time.time() + seconds
    await asyncio.gather(
        asyncio.to_thread(editor.run, until), *[again_and_again(site, i, w, until, tally) for i, w in enumerate(wanted)]
    )
    return tally


async def overtake(site):
    """Many patient requests, then an urgent one: how many of the patient had begun to speak before it did."""
    begun = []

    async def one(name, priority):
        body = request(1) | {"prompt": f"Queue {name}", "priority": priority, "max_tokens": 32}
        reader, writer, _ = await post(site.port, "/v1/completions", body)
        spoke = False
        async for _ in frames(reader):  # the status alone says nothing: it comes early to those who wait for long
            if not spoke:
                begun.append(name)
            spoke = True
        writer.close()

    before = site.state()["engine"]["requests"]["submitted"]
    patient = [asyncio.create_task(one(i, 5)) for i in range(160)]
    while site.state()["engine"]["requests"]["submitted"] < before + len(
        patient
    ):  # all of them stand in the queue: only then is the urgent one late
        await asyncio.sleep(0.01)
    await one("urgent", -5)
    await asyncio.gather(*patient)
    return begun.index("urgent"), len(begun)


def main():
    args = arguments(60, streams=64)
    check = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("fcfs", "priority", "fair"):
            shutil.copy(f"policies/{name}.lua", folder)
        shutil.copytree("policies/lib", os.path.join(folder, "lib"))
        site = Site(args.binary, [*args.serve, "--policy-dir", folder, "--policy", "fcfs", "--max-num-seqs", "16"])
        try:

            async def quiet():
                return await asyncio.gather(*[stream(site, i) for i in range(args.streams)])

            wanted = asyncio.run(quiet())
            check("quiet streams are whole", all(len(ids) == TOKENS for _, ids in wanted))
            editor = Editor(site, folder)
            editor.shadow()
            first = admin(site, "GET", "/admin/policy")[1]["active"]["generation"]
            tally = asyncio.run(swapped(site, editor, wanted, args.seconds))
            beside = admin(site, "GET", "/admin/shadow")[1]
            seen = beside["decisions"]
            print(
                f"a swap took {statistics.median(editor.swap_us):.0f} us (at most {max(editor.swap_us):.0f}, of "
                f"{len(editor.swap_us)} looked at); beside: {seen}, {beside['call_us']:.0f} us a decision, "
                f"{100 * beside['share']:.2f}% of the time"
            )
            check("the one beside was asked to the end", beside["state"] == "on" and seen["compared"] > 100, beside)
            state = site.settles()
            policy = admin(site, "GET", "/admin/policy")[1]
            print(
                f"{tally['streams']} streams, edits {editor.counts}, generation {policy['active']['generation']}, "
                f"{(policy['active']['generation'] - first) / args.seconds:.1f} swaps a second, "
                f"withdrawn {policy['withdrawn']}, "
                f"fallback steps {policy['fallback_steps']}"
            )
            check("every text equals the quiet one", tally["different"] == 0 and tally["streams"] >= args.streams)
            check(
                "every edit did what it should",
                not editor.wrong and all(editor.counts.values()),
                "; ".join(map(str, editor.wrong[:5])),
            )
            wrong = books(state or site.state())
            check("the books balance", state and not wrong, "; ".join(wrong))
            editor.put("priority")
            at, n = asyncio.run(overtake(site))
            check("a late urgent request overtakes", at < 64, f"{at} of {n} had begun before it")
            editor.put("fcfs")
            at, n = asyncio.run(overtake(site))
            check("under fcfs it does not", at > 128, f"{at} of {n} had begun before it")
            check("the server is up", site.get("/health") == "")
        finally:
            site.kill()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
