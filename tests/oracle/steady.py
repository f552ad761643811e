#!/usr/bin/env python3
"""Steady serving beside busy neighbours: every policy of policies/, on 1, 2, 4 and 8 ranks, under light load (some
requests a second) and heavy load (many streams at once). No policy is withdrawn, and hardly a call counts as heavy or
slow: how busy the machine is says nothing about the code. A policy that really loops is withdrawn beside the same
neighbours. For each run one line: the mean and the tail of a call.
usage: steady.py --binary build/moonshift [--seconds 300] [--ranks 1,2,4,8] [--neighbours 2] -- SERVE_ARGUMENTS
       (seconds: of each policy under each load on each number of ranks)"""

import asyncio
import glob
import json
import os
import random
import re
import sys
import time

from live_edit import admin
from own_server import Checks, Site, arguments, frames, post
from soak import Neighbours

STREAMS, RATE, LOOP_S = 32, 6, 20
REFUSE = {"bucket", "ontime"}  # whoever asks for more than there is: that is what they are for

LOOPS = b"""return { api = 1, doc = "Loops for some 1 ms, once it is told to.",
  params = { loops = { default = 0, min = 0, doc = "times" } },
  step = function(view, act, p)
    local x = 0
    for i = 1, p.loops do x = x + i end
    for _, g in ipairs(view.idle) do
      local b = act.batch(g)
      b:decodes()
      b:prefill(view.waiting)
      if b.tokens > 0 then act.forward(g, b) end
    end
  end }"""


async def one(site, rng, tally):
    body = {
        "prompt": "The tide " * rng.randrange(1, 40),
        "max_tokens": rng.choice((4, 8, 16)),
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    writer = None
    try:
        reader, writer, status = await post(site.port, "/v1/completions", body)
        if status == 200:
            async for _ in frames(reader):
                pass
        tally["whole" if status == 200 else "refused" if status in (429, 503) else "wrong"] += 1
        if status != 200:
            await asyncio.sleep(0.02)
    except (EOFError, OSError, asyncio.IncompleteReadError):
        tally["wrong"] += 1
    finally:
        if writer:
            writer.close()


async def light(site, seconds, tally):
    rng, all_of_them = random.Random(1), []
    for _ in range(max(2, int(seconds * RATE))):
        all_of_them.append(asyncio.ensure_future(one(site, rng, tally)))
        await asyncio.sleep(rng.expovariate(RATE))
    await asyncio.gather(*all_of_them)


async def heavy(site, seconds, tally):
    until = time.time() + seconds

    async def stream(i):
        rng = random.Random(i)
        while time.time() < until:
            await one(site, rng, tally)

    await asyncio.gather(*(stream(i) for i in range(STREAMS)))


def calls(site, name):
    """Of the live policy: calls of all hooks, their microseconds, those longer than 50 us and 200 us, those that
    counted."""
    n = us = short = medium = counted = 0
    for line in site.get("/metrics").splitlines():
        if line.startswith("policy_hook_duration_seconds") and f'policy="{name}"' in line:
            value = float(line.rsplit(" ", 1)[1])
            n += value if "_count{" in line else 0
            us += value * 1e6 if "_sum{" in line else 0
            short += value if 'le="5e-05"' in line else 0
            medium += value if 'le="0.0002"' in line else 0
        if m := re.match(r'policy_hook_errors_total\{.*kind="(slow|heavy)"\} (\d+)', line):
            counted += int(m[2])
    return n, us / max(n, 1), n - short, n - medium, counted


def run(site, name, source, load, seconds, ranks, check):
    status, reply = admin(site, "PUT", f"/admin/policies/{name}", source)
    before, tally = calls(site, name)[4], {"whole": 0, "wrong": 0, "refused": 0}
    asyncio.run(load(site, seconds, tally))
    n, mean, late, very, counted = calls(site, name)
    after = admin(site, "GET", "/admin/policy")[1]
    print(
        f"     {name:9s} {load.__name__:5s} {ranks} ranks: {tally['whole']:5d} answers, {n:6.0f} calls, "
        f"mean {mean:6.1f} us, "
        f"{100 * late / max(n, 1):5.2f}% above 50 us, {100 * very / max(n, 1):5.2f}% above 200 us, "
        f"{counted - before} counted",
        flush=True,
    )
    # that few calls count shows within seconds what a withdrawal (of one in ten that do) shows within minutes
    stays = (
        status == 200
        and counted - before <= max(2, n // 20)
        and after["active"]["name"] == name
        and not after["withdrawn"]
        and not tally["wrong"]
        and (name in REFUSE or not tally["refused"])
        and tally["whole"]
    )
    check(
        f"{name} stays under {load.__name__} load on {ranks} ranks",
        stays,
        [status, reply if status != 200 else "", after["last_error"], tally, counted - before],
    )


def loop(site, ranks, check):
    """By itself fcfs follows; then the looping one is withdrawn for its bytecodes, and not tried again."""
    before = admin(site, "GET", "/admin/policy")[1]["withdrawn"]
    ok = admin(site, "PUT", "/admin/policies/loops", LOOPS)[0] == 200
    ok &= admin(site, "PATCH", "/admin/policy/params", json.dumps({"loops": 250000}).encode())[0] == 200
    until, tally = time.time() + LOOP_S, {"whole": 0, "wrong": 0, "refused": 0}
    while time.time() < until and admin(site, "GET", "/admin/policy")[1]["withdrawn"] == before:
        asyncio.run(heavy(site, 0.5, tally))
    after = admin(site, "GET", "/admin/policy")[1]
    check(
        f"a policy that loops for 1 ms a call is withdrawn on {ranks} ranks",
        ok and after["withdrawn"] == before + 1 and not tally["wrong"],
        [after, tally],
    )


def main():
    args = arguments(300, ranks="1,2,4,8", neighbours=2)
    check = Checks()
    policies = {os.path.basename(f)[:-4]: open(f, "rb").read() for f in sorted(glob.glob("policies/*.lua"))}
    for ranks in map(int, args.ranks.split(",")):
        # swaps come faster here than a probation could judge, and what some refuse is no harm
        site = Site(args.binary, [*args.serve, "--ranks", str(ranks), "--policy-probation-seconds", "0"])
        try:
            with Neighbours(args.neighbours):
                for load in (light, heavy):
                    for name, source in policies.items():
                        run(site, name, source, load, args.seconds, ranks, check)
                loop(site, ranks, check)
            site.terminate()
        finally:
            site.kill()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
