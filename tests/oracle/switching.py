#!/usr/bin/env python3
"""The partition changes while clients stream: N greedy streams over HTTP, some of which leave, while every 200 ms
another policy (static, shift, flying, auto) or other parameters of it go live. Every text that is whole must equal that
of a server with one rank that never switches; the books balance; /admin/state tells each switch with its parts.
usage: switching.py --binary build/moonshift [--seconds 60] [--streams 32] [--ranks 4] -- SERVE_ARGUMENTS"""

import asyncio
import itertools
import json
import random
import sys
import time

from live_edit import admin, request, stream
from own_server import Checks, Site, arguments, books, frames, post

POLICIES = ("static", "shift", "flying", "auto")
LAYOUTS = [{"dp": d, "sp": s, "tp": t} for d, s, t in itertools.product((1, 2, 4), repeat=3) if d * s * t == 4]


def edit(site, sources, rng, wrong):
    """One change of what decides. Returns its name."""
    name = rng.choice(POLICIES)
    status, reply = admin(site, "PUT", f"/admin/policies/{name}", sources[name])
    if status != 200:
        wrong.append((name, status, reply))
    if name == "static":
        how = rng.choice(LAYOUTS)
        status, reply = admin(site, "PATCH", "/admin/policy/params", json.dumps(how).encode())
        if status != 200:
            wrong.append((how, status, reply))
    if name == "flying":
        how = {
            "many": rng.choice((1, 8)),
            "few": rng.choice((0, 64)),
            "min_gap_ms": 50,
            "kv": rng.choice(("migrate", "park", "recompute")),
        }
        status, reply = admin(site, "PATCH", "/admin/policy/params", json.dumps(how).encode())
        if status != 200:
            wrong.append((how, status, reply))
    return name


def edit_until(site, sources, until, wrong):
    rng, n = random.Random(5), 0
    while time.time() < until:
        edit(site, sources, rng, wrong)
        n += 1
        time.sleep(0.2)
    return n


async def leave_early(site, i, rng):
    reader, writer, _ = await post(site.port, "/v1/completions", request(i))
    n, until = 0, rng.randrange(1, 20)
    async for _ in frames(reader):
        n += 1
        if n >= until:
            break
    writer.close()


async def again_and_again(site, i, want, until, tally):
    rng = random.Random(i)
    while time.time() < until:
        if rng.random() < 0.2:
            await leave_early(site, i, rng)
            tally["left"] += 1
            continue
        got = await stream(site, i)
        tally["whole"] += 1
        if got != want:
            tally["different"] += 1
            print(f"stream {i}: {want} became {got}")


async def quiet(site, n):
    return await asyncio.gather(*[stream(site, i) for i in range(n)])


def main():
    args = arguments(60, streams=32, ranks=4)
    check = Checks()
    sources = {n: open(f"policies/{n}.lua", "rb").read() for n in POLICIES}
    site = Site(args.binary, args.serve)
    try:
        wanted = asyncio.run(quiet(site, args.streams))
    finally:
        site.kill()
    site = Site(args.binary, [*args.serve, "--ranks", str(args.ranks), "--policy", "static"])
    try:
        got = asyncio.run(quiet(site, args.streams))
        check(f"{args.ranks} ranks say what one says", got == wanted)
        tally, wrong, until = {"whole": 0, "left": 0, "different": 0}, [], time.time() + args.seconds

        async def swapped():
            edits = asyncio.to_thread(edit_until, site, sources, until, wrong)
            return (
                await asyncio.gather(edits, *[again_and_again(site, i, w, until, tally) for i, w in enumerate(wanted)])
            )[0]

        n = asyncio.run(swapped())
        state = site.settles()
        e = (state or site.state())["engine"]
        done = [s for s in e["switches"] if s["outcome"] == "done"]
        print(
            f"{tally}, {n} edits, {e['n_switches']} switches, "
            f"{int(site.metric('moonshift:kv_moves_total'))} sequences copied, "
            f"{site.metric('moonshift:kv_moved_bytes_total') / 2**20:.0f} MiB, withdrawn {e['policy']['withdrawn']}, "
            f"fallback {e['policy']['fallback_steps']}"
        )
        check("every whole text equals that of one rank", tally["different"] == 0 and tally["whole"] >= args.streams)
        check("every edit went live", not wrong, wrong[:3])
        check(
            "the partition changed, and says why and what it took",
            e["n_switches"] >= 10
            and done
            and all(
                s["reason"] and s["wait_ms"] >= 0 and "cutover_ms" in s and "moved_bytes" in s and "worst_stall_ms" in s
                for s in done
            ),
        )
        check("some KV was copied from rank to rank", site.metric("moonshift:kv_moves_total") > 0)
        check("nobody waits for ever", not e["pending"] and not e["running"] and not e["waiting"])
        check("no policy was withdrawn", e["policy"]["withdrawn"] == 0)
        troubles = books(state or site.state())
        check("the books balance", state and not troubles, "; ".join(troubles))
        on_ranks = all(
            r["alive"]
            and r["kv"]["free"] + r["kv"]["held"] + r["kv"]["cached"] == r["kv"]["total"]
            and not r["kv"]["held"]
            for r in e["ranks"]
        )
        check("the books of every rank balance", on_ranks and len(e["ranks"]) == args.ranks)
    finally:
        site.kill()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
