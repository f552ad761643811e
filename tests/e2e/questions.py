"""docs/questions.md: what users of other engines ask for, and what a policy gives on a stated trace, beside first come,
first served. Every row is a command; it is run here, and the page has to say what came out. --update writes the page,
--traces makes the traces anew (tests/data/questions, by a fixed seed)."""

import csv
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, "tests/rig")
import cases

PAGE = "docs/questions.md"
TRACES = "tests/data/questions"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
BINARY = os.path.join(os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build")), "moonshift")
MACHINE = "--hardware h200x8 --model llama-3.1-8b --ranks 1"
WAIT_S = 300

# ---- traces


def write_trace(name, head, rows):
    os.makedirs(TRACES, exist_ok=True)
    with open(f"{TRACES}/{name}.csv", "w", encoding="utf-8") as f:
        f.write(head + "\n")
        f.writelines(",".join(str(v) for v in row) + "\n" for row in sorted(rows, key=lambda r: r[0]))


def arrivals(r, rate, seconds, start=0.0):
    at = start
    while True:
        at += r.expovariate(rate)
        if at >= start + seconds:
            return
        yield round(at, 3)


def make_tiers(r):
    """Interactive, batch and background requests, more than the machine takes at once."""
    kinds = ((0, 2.0, (200, 800), 100), (1, 2.5, (2000, 6000), 200), (2, 1.0, (4000, 8000), 200))
    for priority, rate, prompt, answer in kinds:
        for at in arrivals(r, rate, 60):
            yield at, r.randint(*prompt), answer, priority


def make_sessions(r):
    """Conversations whose next turn has the one before it as its beginning, and single requests between them."""
    block = 0
    for at in arrivals(r, 1.2, 60):
        blocks, now = [], at
        for _ in range(r.randint(3, 7)):
            new = r.randint(2, 6)
            blocks += range(block, block + new)
            block += new
            yield round(now, 3), 512 * len(blocks), 60, " ".join(str(b) for b in blocks)
            now += r.uniform(4, 12)
    for at in arrivals(r, 1.5, 70):
        n = r.randint(1, 8)
        yield at, 512 * n, 60, " ".join(str(b) for b in range(block, block + n))
        block += n


def make_tenants(r):
    """Nine tenants who ask now and then, and one who floods."""
    for i in range(9):
        for at in arrivals(r, 0.25, 60):
            yield at, r.randint(200, 2000), r.randint(20, 200), f"calm-{i}"
    for at in arrivals(r, 12, 30, 10):
        yield at, r.randint(200, 4000), r.randint(20, 300), "flood"


def make_day(r):
    """A quiet minute, a busy one, a quiet one."""
    for start, rate in ((0, 1.5), (60, 7.5), (120, 1.5)):
        for at in arrivals(r, rate, 60, start):
            yield at, r.choice((r.randint(100, 800), r.randint(100, 800), r.randint(4000, 12000))), r.randint(50, 250)


def make_traces():
    head = "arrival_s,input_tokens,output_tokens"
    write_trace("tiers", head + ",priority", make_tiers(random.Random(1)))
    write_trace("sessions", head + ",hash_ids", make_sessions(random.Random(2)))
    write_trace("tenants", head + ",tenant", make_tenants(random.Random(3)))
    write_trace("day", head, make_day(random.Random(4)))


# ---- what is asked, and what is looked at


class Row:
    """One question: who asks it, what was hoped for, and the policies to compare on a trace by some figures."""

    def __init__(self, asked, question, hope, policies, trace, flags, figures):
        self.asked, self.question, self.hope = asked, question, hope
        self.policies, self.trace, self.flags, self.figures = policies, trace, flags, figures

    def command(self):
        trace = self.trace if ":" in self.trace else f"{TRACES}/{self.trace}.csv"
        policies = " ".join(f"--policy {p}" for p in ("fcfs", *self.policies))
        return f"moonshift simulate {MACHINE} --trace {trace} {self.flags} {policies}"


def seconds(ms):
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.0f} ms"


def quantile(values, share):
    """As the engine's: the smallest value that so many are not above."""
    values = sorted(values)
    return values[max(0, -(-len(values) * share // 100) - 1)]


def ttft(share, which=None, name=""):
    """Of all requests, or of those for which `which` holds of a row of the trace."""

    def figure(run, log, rows):
        some = [r for r in log if r["first_s"] and (not which or which(rows[int(r["row"])]))]
        return seconds(quantile([1000 * (float(r["first_s"]) - float(r["arrival_s"])) for r in some], share))

    return f"TTFT p{share}{name}", figure


def tpot(share):
    return f"TPOT p{share}", lambda run, log, rows: f"{run['tpot_ms'][f'p{share}']:.1f} ms"


def twice(run):
    return run["recomputed_tokens"] / (run["prompt_tokens"] + run["output_tokens"] + run["recomputed_tokens"])


CALM = lambda row: row["tenant"] != "flood"
FLOOD = lambda row: row["tenant"] == "flood"
RECOMPUTED = ("recomputed tokens", lambda run, log, rows: f"{run['recomputed_tokens']:,} ({100 * twice(run):.1f}%)")
PREEMPTED = ("preemptions", lambda run, log, rows: str(run["preemptions"]))
CACHED = ("prompt tokens cached", lambda run, log, rows: f"{100 * run['cached_tokens'] / run['prompt_tokens']:.1f}%")
GOOD = ("within the objectives", lambda run, log, rows: f"{100 * run['good'] / run['requests']:.1f}% of all")
REFUSED = ("refused", lambda run, log, rows: str(run["refused"]))


def refused(which, name):
    gone = lambda log, rows: [r for r in log if r["ending"] == "refused" and which(rows[int(r["row"])])]
    return f"refused{name}", lambda run, log, rows: str(len(gone(log, rows)))


def tier(priority, name):
    return lambda row: int(row["priority"]) == priority, f", {name}"


ROWS = (
    Row(
        ("vllm#54644",),
        "Who gives way when KV runs out wastes the least",
        "10 to 23% of the tokens that are computed online are computed twice, about half of it by the choice of the "
        "victim; least computed first wastes 24 to 30% less, at the same latency",
        ("leastwaste", "leastwaste:spare=20"),
        "poisson:rate=2.6,requests=600,input=100-3000,output=100-1500",
        "--max-num-seqs 256 --kv-cache-memory-bytes 6GiB",
        (RECOMPUTED, PREEMPTED, ttft(50), tpot(99)),
    ),
    Row(
        ("vllm#42185", "sglang#31954"),
        "The longest cached prefix first, and nobody starves",
        "as SGLang's lpm: more of the prompts found in the cache. There, under lpm without ageing, 5% of the requests, "
        "which had nothing cached, waited for 20 to 60 s",
        ("prefix", "prefix:ageing=0"),
        "sessions",
        "--max-num-seqs 64 --kv-cache-memory-bytes 6GiB",
        (CACHED, ttft(50), ttft(90), ttft(99)),
    ),
    Row(
        ("vllm#51384",),
        "The next turn of a session that is cached goes first, within bounds",
        "turns find their KV before it is evicted; at most one overtakes in a step, and nobody who has waited long",
        ("session", "session:patience_ms=20000"),
        "sessions",
        "--max-num-seqs 64 --kv-cache-memory-bytes 6GiB",
        (CACHED, ttft(50), ttft(90), ttft(99)),
    ),
    Row(
        ("vllm#29406", "vllm#33392"),
        "Short requests first, and waiting counts",
        "vllm#29366: 6.2% more throughput within TTFT 500 ms and TPOT 50 ms; vllm#33392: 30 to 50% more throughput",
        ("shortest", "shortest:patience=1"),
        "poisson:rate=8,requests=600,input=50-8000,output=100",
        "--max-num-seqs 32 --slo-ttft-ms 500 --slo-tpot-ms 50",
        (GOOD, ttft(50), ttft(90), ttft(99)),
    ),
    Row(
        ("vllm#51375",),
        "Shortest first by what is left: less what is cached",
        "a long prompt that is cached is not taken for a long one; waiting is bounded",
        ("shortest", "shortest:patience=1"),
        "sessions",
        "--max-num-seqs 64 --kv-cache-memory-bytes 6GiB",
        (CACHED, ttft(50), ttft(90), ttft(99)),
    ),
    Row(
        ("vllm#30256",),
        "Interactive, batch and background tiers on one server",
        "interactive requests keep their latency beside batch work, and no tier starves",
        ("tiers", "tiers:batch_ms=5000,background_ms=10000"),
        "tiers",
        "--rate 9 --max-num-seqs 32",
        tuple(ttft(90, *tier(*t)) for t in ((0, "interactive"), (1, "batch"), (2, "background"))),
    ),
    Row(
        ("vllm#20608",),
        "Lower priority numbers first, and waiting makes up for priority",
        "what is urgent goes first and takes the place of running work of lower rank; the rest still moves on",
        ("priority", "priority:ageing=3"),
        "tiers",
        "--rate 9 --max-num-seqs 32",
        tuple(ttft(90, *tier(*t)) for t in ((0, "priority 0"), (1, "priority 1"), (2, "priority 2"))),
    ),
    Row(
        ("vllm#24484", "sglang#31953"),
        "An order that follows the load",
        "neither order is right all day; a policy that follows the workload needs no restart",
        ("daynight", "daynight:day_budget=512"),
        "day",
        "--max-num-seqs 128",
        (ttft(50), ttft(90), ttft(99), tpot(90)),
    ),
    Row(
        ("vllm#31909",),
        "Tenants share by tokens (VTC)",
        "one who floods slows himself only, at 92 to 95% of the throughput",
        ("fair",),
        "tenants",
        "--rate 14 --max-num-seqs 32",
        (ttft(50, CALM, ", calm"), ttft(99, CALM, ", calm"), ttft(50, FLOOD, ", flooding")),
    ),
    Row(
        ("litellm#18128",),
        "A bucket of tokens for each tenant",
        "beyond it 429 with Retry-After, and others notice nothing",
        ("bucket:rate=4000",),
        "tenants",
        "--rate 14 --max-num-seqs 32",
        (ttft(99, CALM, ", calm"), refused(CALM, ", calm"), refused(FLOOD, ", flooding")),
    ),
    Row(
        ("vllm#41250",),
        "Refuse at once who would be served too late",
        "a bounded queue; here bounded by time, and a Retry-After that says how long",
        ("ontime:limit_ms=2000",),
        "poisson:rate=12,requests=600,input=50-8000,output=100",
        "--max-num-seqs 128 --slo-ttft-ms 2000",
        (GOOD, REFUSED, ttft(50), ttft(99)),
    ),
)

# ---- tables


def run_all(row):
    """The figures of each policy, fcfs first."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = os.path.join(folder, "out.json"), os.path.join(folder, "log.csv")
        words = [BINARY, *shlex.split(row.command())[1:], "--json", out, "--request-log", log]
        r = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, env=ENV)
        assert r.returncode == 0, (row.command(), r.stderr)
        with open(out, encoding="utf-8") as f:
            runs = json.load(f)["runs"]
        with open(log, encoding="utf-8") as f:
            logs = list(csv.DictReader(f))
    rows = []
    if ":" not in row.trace:
        with open(f"{TRACES}/{row.trace}.csv", encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
    for i, run in enumerate(runs):
        assert run["conserved"] and not run["failed"], (row.command(), run["label"])
        mine = [x for x in logs if int(x["run"]) == i]
        yield run["label"], [figure(run, mine, rows) for _, figure in row.figures]


def sections():
    """A section for each question: the hope, the command, a table."""
    for row in ROWS:
        yield f"### {row.question}"
        yield ""
        said = ", ".join(row.asked) + f". Hoped for or claimed: {row.hope}."
        yield textwrap.fill(said, 120, break_long_words=False, break_on_hyphens=False)
        yield ""
        yield "| | " + " | ".join(name for name, _ in row.figures) + " |"
        yield "|---" * (len(row.figures) + 1) + "|"
        for label, figures in run_all(row):
            yield f"| `{label}` | " + " | ".join(figures) + " |"
        yield ""
        yield "```sh by hand"
        yield row.command().replace("moonshift", "build/moonshift", 1)
        yield "```"
        yield ""


def read_page():
    with open(PAGE, encoding="utf-8") as f:
        return f.read()


def page_made():
    made = "\n".join(sections()).strip()
    text, n = re.subn(r"(?<=<!-- made: questions -->\n\n).*?(?=\n\n<!-- -->)", lambda m: made, read_page(), flags=re.S)
    assert n == 1, f"{PAGE} has no place for the questions"
    return text


def the_page_says_what_comes_out():
    page, made = read_page().split("\n"), page_made().split("\n")
    for i, (is_now, to_be) in enumerate(zip(page, made), 1):
        assert is_now == to_be, f"{PAGE}:{i}: {is_now!r} is {to_be!r}: python3 tests/e2e/questions.py --update"
    assert len(page) == len(made), f"{PAGE} is not what comes out: python3 tests/e2e/questions.py --update"


if "--traces" in sys.argv:
    make_traces()
elif "--update" in sys.argv:
    text = page_made()
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(text)
else:
    cases.run([the_page_says_what_comes_out])
