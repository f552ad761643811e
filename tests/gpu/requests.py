#!/usr/bin/env python3
"""Some hundred requests through the real program on ranks that switch: first on one rank, for what each should say,
then on several under a policy that changes layouts or the partition all the time, while some clients leave. Nothing may
be lost: every whole answer equals one rank's, token by token, the books balance, no rank died. Prints "N passed, N
failed" last.
usage: requests.py --binary build/moonshift --policy shift|flying|sidp [--requests 500] [--small]
                   [--ranks-arg "--devices 0,0,0,0"] -- SERVE_ARGUMENTS   (those of both servers)"""

import argparse
import asyncio
import random
import sys
import time

sys.path.insert(0, "tests/oracle")
from own_server import Site, books, frames, post

PARAMS = {
    "shift": ["--policy-param", "threshold=24"],
    "flying": ["--policy-param", "crowd=6", "--policy-param", "few=2", "--policy-param", "min_gap_ms=5"],
    "sidp": ["--policy-param", "patience_ms=5"],
}
AT_ONCE = 24


def body_of(i, small):
    rng = random.Random(i)
    long = f"Story number {i % 40}: once there were {i % 40 * 7} stones and " + "one more " * rng.choice((0, 0, 3, 20))
    return {
        "prompt": f"No. {i}" if small else long,
        "max_tokens": rng.choice((1, 2, 4) if small else (4, 12, 24)),
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
        "priority": -1 if i % 17 == 0 else i % 3,
    }


async def answer(site, i, small, leave_after=None):
    """The token ids of request i; None when it was left early."""
    reader, writer, status = await post(site.port, "/v1/completions", body_of(i, small))
    if status != 200:
        raise AssertionError(f"request {i}: status {status}, {await reader.read(300)}")
    ids = []
    try:
        async for f in frames(reader):
            if "error" in f:
                raise AssertionError(f"request {i}: {f}")
            for c in f["choices"]:
                ids += c.get("token_ids") or []
            if leave_after is not None and len(ids) >= leave_after:
                return None
    finally:
        writer.close()
    return ids


async def run_all(site, n, small, leave):
    """Answers by request; waves of different sizes, so that there is a crowd at times and nobody at others."""
    rng, answers, gate = random.Random(1), {}, asyncio.Semaphore(AT_ONCE)

    async def one(i):
        async with gate:
            answers[i] = await answer(site, i, small, rng.randrange(1, 4) if leave and rng.random() < 0.1 else None)

    at = 0
    while at < n:
        wave = rng.choice((1, 2, 8 if small else 40)) if leave else AT_ONCE
        done = await asyncio.gather(*[one(i) for i in range(at, min(at + wave, n))], return_exceptions=True)
        for e in done:
            if e is not None:
                print("lost:", repr(e))
        at += wave
    return answers


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--policy", choices=sorted(PARAMS), required=True)
    p.add_argument("--requests", type=int, default=500)
    p.add_argument("--ranks-arg", default="--devices 0,0,0,0")
    p.add_argument("--small", action="store_true", help="short prompts and answers, for the emulator")
    p.add_argument("serve", nargs="+")
    args = p.parse_args()
    checks = []

    def check(name, ok, note=""):
        checks.append(bool(ok))
        print("ok  " if ok else "FAIL", name, note, flush=True)

    began = time.time()
    site = Site(args.binary, args.serve)
    try:
        wanted = asyncio.run(run_all(site, args.requests, args.small, False))
    finally:
        site.kill()
    single = time.time() - began
    site = Site(args.binary, [*args.serve, *args.ranks_arg.split(), "--policy", args.policy, *PARAMS[args.policy]])
    try:
        got = asyncio.run(run_all(site, args.requests, args.small, True))
        state = site.settles()
        e = (state or site.state())["engine"]
        whole = [i for i, ids in got.items() if ids is not None]
        different = [i for i in whole if got[i] != wanted.get(i)]
        print(
            f"{len(whole)} whole answers, {len(got) - len(whole)} left early, {e['n_switches']} "
            f"changes of the partition, one rank {single:.0f} s, "
            f"all {time.time() - began:.0f} s"
        )
        check("every request was answered", len(got) == args.requests and len(wanted) == args.requests)
        check(
            "every whole answer equals that of one rank",
            not different and len(whole) >= args.requests // 2,
            different[:5],
        )
        check("nothing waits or runs any more", not e["pending"] and not e["running"] and not e["waiting"])
        troubles = books(state or site.state())
        check("the books balance", state and not troubles, "; ".join(troubles))
        check(
            "every rank lives and holds nothing",
            all(r["alive"] and not r["kv"]["held"] for r in e["ranks"]) and len(e["ranks"]) > 1,
        )
        check("no policy was withdrawn", e["policy"]["withdrawn"] == 0)
        if args.policy == "flying":
            check("the partition changed", e["n_switches"] >= (1 if args.small else 5), e["n_switches"])
    finally:
        site.kill()
    print(f"{sum(checks)} passed, {len(checks) - sum(checks)} failed")
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
