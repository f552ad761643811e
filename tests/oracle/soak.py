#!/usr/bin/env python3
"""A long mixed load, with everything at once: three tenants, streams and whole answers, chats and completions, clients
that leave, a swap among all policies of policies/ every second (some of them rolled back), and busy neighbours on the
same cores; on 1, 2, 4 and 8 ranks in turn. Afterwards: no policy was withdrawn, every request ended once and said how,
no group is closed, no order is pending, nobody is held or parked, every block came back, memory is flat, and a quiet
request is answered as if nothing had been.
usage: soak.py --binary build/moonshift [--seconds 300] [--ranks 1,2,4,8] [--neighbours 2] -- SERVE_ARGUMENTS
       (seconds: on each number of ranks)"""

import asyncio
import glob
import json
import multiprocessing
import os
import random
import sys
import time

from live_edit import admin
from own_server import Checks, Site, arguments, books, events, frames, post

TENANTS = ("alpha", "beta", "gamma")
STREAMS = 6  # of each tenant, at once
RSS_SHARE, RSS_BYTES = 0.05, 24 << 20  # what memory may grow by in the second half: buffers that follow the load


def burn():
    while True:
        pass


class Neighbours:
    """Processes that want a core each, all the time."""

    def __init__(self, n):
        self.all = [multiprocessing.Process(target=burn, daemon=True) for _ in range(n)]

    def __enter__(self):
        for p in self.all:
            p.start()

    def __exit__(self, *_):
        for p in self.all:
            p.kill()
            p.join()


def order_of(rng):
    """A request as some client may send it: (path, body)."""
    shared = f"The common beginning of conversation {rng.randrange(6)}. " * rng.choice((1, 4, 12))
    words = shared + " ".join(
        rng.choice(("moon", "tide", "shift", "rank", "seven")) for _ in range(rng.randrange(1, 40))
    )
    body = {
        "max_tokens": rng.choice((1, 4, 16, 48)),
        "temperature": rng.choice((0, 0.8)),
        "stream": rng.random() < 0.7,
        "ignore_eos": True,
        "priority": rng.randrange(-1, 3),
    }
    if rng.random() < 0.3:
        return "/v1/messages", body | {"messages": [{"role": "user", "content": words}]}
    if rng.random() < 0.3:
        body["max_output_tokens"] = body.pop("max_tokens")
        return "/v1/responses", body | {"input": words}
    if rng.random() < 0.1:
        body["n"] = 2
    if rng.random() < 0.5:
        body["logprobs"] = True
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}
    return "/v1/completions", body | {"prompt": words}


class Tally:
    def __init__(self):
        self.whole = self.left = self.refused = self.swaps = self.rollbacks = 0
        self.wrong = []

    def trouble(self, text):
        self.wrong.append(text)
        print("     ", text, flush=True)


def how_it_ended(answer):
    """Of an answer of /v1/responses or /v1/messages, or of the last event of its stream."""
    return answer.get("status") or answer.get("stop_reason") or answer["type"]


async def read_items(reader, body, tally):
    """Of the APIs whose answers are lists of items: the only one of its kind has to be the last event."""
    ends = []
    if body["stream"]:
        async for data in events(reader):
            ends.append(how_it_ended(json.loads(data)))
    else:
        ends.append(how_it_ended(json.loads(await reader.read())))
    good = ("response.incomplete", "message_stop") if body["stream"] else ("incomplete", "max_tokens")
    if [e for e in ends if e in good] != ends[-1:]:
        tally.trouble(f"an answer ended so: {ends[-3:]}")
        return
    tally.whole += 1


async def read_answer(reader, status, body, tally):
    if status in (429, 503):
        tally.refused += 1
        return
    if status != 200:
        tally.trouble(f"status {status}: {(await reader.read(400))!r}")
        return
    if "max_output_tokens" in body or ("messages" in body and "logprobs" not in body):
        await read_items(reader, body, tally)
        return
    ends = {}
    if body["stream"]:
        async for f in frames(reader):
            if "error" in f:
                tally.trouble(f"a stream ended with {f}")
                return
            for c in f["choices"]:
                if c["finish_reason"]:
                    ends[c["index"]] = ends.get(c["index"], 0) + 1
    else:
        for c in json.loads(await reader.read())["choices"]:
            ends[c["index"]] = ends.get(c["index"], 0) + (c["finish_reason"] is not None)
    if ends != dict.fromkeys(range(body.get("n", 1)), 1):
        tally.trouble(f"choices ended so often: {ends}")
        return
    tally.whole += 1


async def client(site, tenant, rng, until, tally):
    key = f"Authorization: Bearer key-{tenant}\r\n"
    while time.time() < until:
        path, body = order_of(rng)
        writer = None

        async def talk():
            nonlocal writer
            reader, writer, status = await post(site.port, path, body, key)
            await read_answer(reader, status, body, tally)

        try:
            if rng.random() < 0.3:
                await asyncio.wait_for(talk(), rng.choice((0.01, 0.1, 0.5, 2.0)))
            else:
                await talk()
        except asyncio.TimeoutError:
            tally.left += 1
            if writer and rng.random() < 0.5:
                writer.transport.abort()
        except (EOFError, ConnectionError, asyncio.IncompleteReadError) as e:
            tally.trouble(f"an answer broke off: {e!r}")
        finally:
            if writer:
                writer.close()
        await asyncio.sleep(rng.random() * 0.2)


def params_of(name, ranks, rng):
    """Params under which a policy changes the partition often, where it can; None: as they are."""
    if name == "flying":
        return {
            "many": rng.choice((1, 8)),
            "few": rng.choice((0, 64)),
            "min_gap_ms": 50,
            "kv": rng.choice(("migrate", "park", "recompute")),
        }
    if name == "static":
        dp = 1 << rng.randrange(ranks.bit_length())
        sp = 1 << rng.randrange((ranks // dp).bit_length())
        return {"dp": dp, "sp": sp, "tp": ranks // dp // sp}
    return None


def swap_until(site, policies, ranks, until, tally):
    """Each second another policy goes live, some with other params, or the one before comes back."""
    rng = random.Random(7)
    while time.time() < until:
        name = rng.choice(sorted(policies))
        if tally.swaps and rng.random() < 0.15:
            status, reply = admin(site, "POST", "/admin/policy/rollback")
            tally.rollbacks += 1
        else:
            status, reply = admin(site, "PUT", f"/admin/policies/{name}", policies[name])
            params = params_of(name, ranks, rng)
            if status == 200 and params:
                status, reply = admin(site, "PATCH", "/admin/policy/params", json.dumps(params).encode())
            tally.swaps += 1
        if status != 200 and not (status == 409 and "rollback" in json.dumps(reply)):
            tally.trouble(f"{name}: {status} {reply}")
        time.sleep(1)


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def watch_memory(site, until, sizes):
    while time.time() < until:
        sizes.append(resident(site.process.pid))
        await asyncio.sleep(0.5)


async def load(site, policies, ranks, args, tally, sizes):
    until = time.time() + args.seconds
    clients = [client(site, t, random.Random(f"{t}{i}"), until, tally) for t in TENANTS for i in range(STREAMS)]
    await asyncio.gather(
        asyncio.to_thread(swap_until, site, policies, ranks, until, tally), watch_memory(site, until, sizes), *clients
    )


async def quiet_answer(site):
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": False}
    reader, writer, status = await post(site.port, "/v1/completions", body, "Authorization: Bearer key-alpha\r\n")
    text = await reader.read()
    writer.close()
    return status, json.loads(text)["choices"][0]["text"] if status == 200 else text


def is_flat(sizes):
    """Whether the most of the last quarter is no more than that of the second, but for a little: the first is
    warm-up."""
    q = len(sizes) // 4
    before, after = max(sizes[q : 2 * q] or [0]), max(sizes[3 * q :] or [0])
    return after <= before * (1 + RSS_SHARE) + RSS_BYTES, f"{before / 2**20:.0f} MiB, then {after / 2**20:.0f} MiB"


def soak(args, ranks, policies, check):
    keys = [w for t in TENANTS for w in ("--api-key", f"key-{t}={t}")]
    site = Site(args.binary, [*args.serve, "--ranks", str(ranks), *keys])
    tally, sizes = Tally(), []
    try:
        first = asyncio.run(quiet_answer(site))
        with Neighbours(args.neighbours):
            asyncio.run(load(site, policies, ranks, args, tally, sizes))
        state = site.settles(120)
        e = (state or site.state())["engine"]
        policy = admin(site, "GET", "/admin/policy")[1]
        print(
            f"{ranks} ranks: {tally.whole} answers, {tally.left} left early, {tally.refused} refused, "
            f"{tally.swaps} swaps, {tally.rollbacks} rollbacks, "
            f"{e['n_switches']} switches, fallback steps {policy['fallback_steps']}",
            flush=True,
        )
        for line in [x for x in site.lines if "step: stalled" in x or "step: starved" in x][
            :3
        ]:  # lawful, but somebody should know why
            print("     ", line.rstrip(), flush=True)
        check(
            f"{ranks} ranks: every answer is whole and ends once", not tally.wrong and tally.whole > 0, tally.wrong[:3]
        )
        if (
            ranks > 1 and args.seconds >= 30
        ):  # in a short run each order may be dropped with its policy before it could be carried out
            check(f"{ranks} ranks: the partition changed", e["n_switches"] > 1, e["n_switches"])
        check(
            f"{ranks} ranks: no policy was withdrawn",
            policy["withdrawn"] == 0,
            [line for line in site.lines if "withdrawn" in line][:3],
        )
        check(
            f"{ranks} ranks: no group is closed, no order is pending",
            not e["pending"] and not any(g["closed"] or g["held"] for g in e["groups"]),
            [e["pending"], e["groups"]],
        )
        troubles = books(state or site.state())
        check(
            f"{ranks} ranks: every request ended and every block came back", state and not troubles, "; ".join(troubles)
        )
        flat, note = is_flat(sizes)
        check(f"{ranks} ranks: memory is flat", flat, note)
        check(f"{ranks} ranks: a quiet request is answered as before", asyncio.run(quiet_answer(site)) == first)
        check(f"{ranks} ranks: SIGTERM ends it", site.terminate() == 0)
    finally:
        site.kill()


def main():
    args = arguments(300, ranks="1,2,4,8", neighbours=2)
    check = Checks()
    policies = {os.path.basename(f)[:-4]: open(f, "rb").read() for f in glob.glob("policies/*.lua")}
    for ranks in map(int, args.ranks.split(",")):
        soak(args, ranks, policies, check)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
