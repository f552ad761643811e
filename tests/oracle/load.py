#!/usr/bin/env python3
"""Load with leaving clients: N streams at once for some time, of which many disconnect at random moments. Then nothing
may be left over: KV blocks, endings, connections; memory is flat; /health answered throughout; SIGTERM lets a running
stream end. With a real model give it a small KV cache: its pages count as resident only once they were used.
usage: load.py --binary build/moonshift [--seconds 120] [--streams 200] -- SERVE_ARGUMENTS
       (a model, or --device sim)"""

import asyncio
import random
import sys
import time

from own_server import Checks, Site, arguments, books, frames, post


def body_of(rng):
    prefix = f"Shared beginning number {rng.randrange(8)}. " * rng.choice((1, 4, 16))
    body = {
        "prompt": prefix + "x" * rng.randrange(200),
        "max_tokens": rng.choice((1, 8, 32, 96)),
        "temperature": rng.choice((0, 1)),
        "stream": rng.random() < 0.8,
        "ignore_eos": True,
    }
    if rng.random() < 0.1:
        body["n"] = 3
    if rng.random() < 0.1:
        body["logprobs"] = 2
    if rng.random() < 0.1:
        body["stop"] = ["e", "\n"]
    return body


class Tally:
    whole = left = refused = broken = 0
    worst_health = 0.0
    health = 0
    unhealthy = 0


async def one(site, rng, tally):
    """One request: read to its end, or left at a random moment, by FIN or RST."""
    leaves = rng.random() < 0.45
    body = body_of(rng)
    writer = None

    async def talk():
        nonlocal writer
        reader, writer, status = await post(site.port, "/v1/completions", body)
        if status == 503:
            tally.refused += 1
        elif status != 200:
            tally.broken += 1
            print("status", status, await reader.read(500))
        elif body["stream"]:
            async for f in frames(reader):
                assert "error" not in f, f
            tally.whole += 1
        else:
            await reader.read()
            tally.whole += 1

    try:
        if leaves:
            await asyncio.wait_for(talk(), rng.choice((0.001, 0.02, 0.2, 1.0)))
        else:
            await talk()
    except asyncio.TimeoutError:
        tally.left += 1
        if writer and rng.random() < 0.5:
            writer.transport.abort()
    except (EOFError, AssertionError, ConnectionError, asyncio.IncompleteReadError) as e:
        tally.broken += 1
        print("broken:", repr(e))
    finally:
        if writer:
            writer.close()


async def worker(site, rng, tally, until):
    while time.time() < until:
        await one(site, rng, tally)


async def watch_health(site, tally, until):
    while time.time() < until:
        began = time.time()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            line = await asyncio.wait_for(reader.readline(), 10)
            tally.unhealthy += b" 200 " not in line
            writer.close()
        except (OSError, asyncio.TimeoutError):
            tally.unhealthy += 1
        tally.health += 1
        tally.worst_health = max(tally.worst_health, time.time() - began)
        await asyncio.sleep(0.2)


async def watch_memory(site, seconds, samples):
    for part in (0.4, 0.3, 0.25):
        await asyncio.sleep(seconds * part)
        samples.append(await asyncio.to_thread(site.metric, "process_resident_memory_bytes") / 2**20)


async def load(site, args, tally, samples):
    until = time.time() + args.seconds
    rngs = [random.Random(args.seed + i) for i in range(args.streams)]
    await asyncio.gather(
        watch_health(site, tally, until),
        watch_memory(site, args.seconds, samples),
        *[worker(site, r, tally, until) for r in rngs],
    )


async def drain(site):
    """A stream that runs while SIGTERM comes ends with [DONE]; a new request is refused."""
    reader, writer, status = await post(
        site.port,
        "/v1/completions",
        {
            "prompt": "to the end",
            "max_tokens": 60,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        },
    )
    assert status == 200
    code, usage = None, {}
    async for f in frames(reader):
        if not code:
            code = asyncio.get_running_loop().run_in_executor(None, site.terminate)
        usage = f.get("usage") or usage
    writer.close()
    return usage.get("completion_tokens"), await code


def main():
    args = arguments(120, streams=200, seed=1)
    site, tally, samples = Site(args.binary, args.serve), Tally(), []
    check = Checks()
    try:
        asyncio.run(load(site, args, tally, samples))
        state = site.settles()
        print(
            f"{tally.whole} answers whole, {tally.left} left, {tally.refused} refused, {tally.broken} broken; "
            f"resident MiB {[round(m) for m in samples]}; slowest /health of {tally.health}: "
            f"{tally.worst_health * 1000:.0f} ms"
        )
        check("no answer broke", tally.broken == 0)
        check("answers were read and left", tally.whole > 0 and tally.left > 0)
        check("health was answered throughout", tally.unhealthy == 0 and tally.health > 0)
        check("everything ended", state is not None)
        wrong = books(state or site.state())
        check("the books balance", not wrong, "; ".join(wrong))
        check(
            "every sequence has one ending in /metrics",
            site.metric("front_requests_submitted_total") == site.metric("front_requests_ended_total") > 0,
        )
        check("memory is flat", samples[-1] < samples[0] * 1.1 + 32, str(samples))
        n, code = asyncio.run(drain(site))
        check("SIGTERM drains", n == 60 and code == 0, f"{n} tokens, exit {code}")
    finally:
        site.kill()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
