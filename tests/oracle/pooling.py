#!/usr/bin/env python3
"""A node whose FFN weights are pooled serves while its policy is swapped: bursts of greedy streams that drain to one,
on a slow link, so that steps fetch while batches are large and send rows in the tail. Every text must equal that of a
server with one rank and all weights; both ways are seen in /admin/state and in the counters; the books balance.
usage: pooling.py --binary build/moonshift [--seconds 20] [--streams 24] [--ranks 4] -- SERVE_ARGUMENTS"""

import asyncio
import sys
import time

from live_edit import admin, stream
from own_server import Checks, Site, arguments, books

POLICIES = ("sidp", "fcfs", "sidp", "shift")
POOLED = ["--weights", "pooled", "--link-gbps", "0.3", "--policy", "sidp"]


async def burst(site, n):
    return await asyncio.gather(*[stream(site, i) for i in range(n)])


async def bursts(site, wanted, until, tally):
    """All streams at once, then one alone, again and again."""
    while time.time() < until:
        got = [*await burst(site, len(wanted)), await stream(site, 0)]
        tally["whole"] += len(got)
        tally["different"] += sum(a != b for a, b in zip(got, [*wanted, wanted[0]]))


def watch(site, sources, until, ways):
    """What groups do, and another policy every few seconds. Returns what went wrong."""
    wrong, swap_at, n = [], time.time() + 6, 0
    while time.time() < until:
        ways.update(g["ffn"] for g in site.state()["engine"]["groups"] if g["running"])
        if time.time() > swap_at:
            n += 1
            name, swap_at = POLICIES[n % len(POLICIES)], time.time() + 4
            status, reply = admin(site, "PUT", f"/admin/policies/{name}", sources[name])
            if status != 200:
                wrong.append((name, status, reply))
        time.sleep(0.1)
    return wrong, n


def main():
    args = arguments(20, streams=24, ranks=4)
    check = Checks()
    sources = {n: open(f"policies/{n}.lua", "rb").read() for n in POLICIES}
    site = Site(args.binary, args.serve)
    try:
        wanted = asyncio.run(burst(site, args.streams))
    finally:
        site.kill()
    site = Site(args.binary, [*args.serve, "--ranks", str(args.ranks), *POOLED])
    try:
        tally, ways, until = {"whole": 0, "different": 0}, set(), time.time() + args.seconds

        async def served():
            watched = asyncio.to_thread(watch, site, sources, until, ways)
            return (await asyncio.gather(watched, bursts(site, wanted, until, tally)))[0]

        wrong, n = asyncio.run(served())
        state = site.settles()
        e = (state or site.state())["engine"]
        print(
            f"{tally}, {n} swaps, ways {sorted(ways)}, "
            f"{site.metric('moonshift:was_bytes_total') / 2**20:.0f} MiB fetched, "
            f"waited {site.metric('moonshift:was_wait_seconds_total'):.1f} s, "
            f"{int(site.metric('moonshift:cas_rows_total'))} rows sent, {e['ffn']['calls']} calls in "
            f"{e['ffn']['products']} products, at most {e['ffn']['most_readers']} readers of an owner"
        )
        check("every text equals that of one rank", tally["different"] == 0 and tally["whole"] > args.streams)
        check("every swap went live", n > 0 and not wrong, wrong[:3])
        check("groups were seen to fetch and to send rows", {"was", "cas"} <= ways, sorted(ways))
        check("weights were fetched, and waited for", site.metric("moonshift:was_wait_seconds_total") > 0)
        check("rows of several ranks shared products", e["ffn"]["calls"] > e["ffn"]["products"] > 0)
        check("no policy was withdrawn", e["policy"]["withdrawn"] == 0, e["policy"])
        troubles = books(state or site.state())
        check("the books balance", state and not troubles, "; ".join(troubles))
    finally:
        site.kill()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
