"""moonshift simulate from outside: the table, JSON, CSV and pictures agree, two runs are the same bytes, all trace
formats work, mistakes are told, Ctrl-C shows what is there."""

import csv
import json
import math
import os
import re
import signal
import subprocess
import tempfile
import time
import xml.dom.minidom

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
NODE = [
    "--hf-config",
    "tests/data/sim_ranks.json",
    "--ranks",
    "4",
    "--kv-cache-memory-bytes",
    "16MiB",
    "--sim-step-us",
    "5000",
    "--sim-row-us",
    "20",
]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
LOAD = ["--trace", "gamma:rate=12,burstiness=0.3,requests=150,input=20-900,output=5-60", "--seed", "7"]
WAIT_S = 400


def simulate(*args):
    return subprocess.run([BINARY, "simulate", *args], capture_output=True, text=True, timeout=WAIT_S, env=ENV)


def good(*args):
    r = simulate(*args)
    assert r.returncode == 0, (args, r.stderr)
    return r


def rows(text):
    """The table's rows: name -> cells."""
    out = {}
    for line in text.split("\n"):
        m = re.match(r"(\S.*?|  \S.*?)  +([-\d].*)$", line)
        if m and not line.startswith(("Trace", "Machine", "Limits")):
            out[m.group(1).strip()] = m.group(2).split()
    return out


def nearest_rank(values, percent):
    values = sorted(values)
    return values[max(0, math.ceil(percent * len(values) / 100) - 1)]


def results_agree(folder):
    args = [
        *NODE,
        *LOAD,
        "--policy",
        "fcfs",
        "--policy",
        "static:dp=4",
        "--policy",
        "flying",
        "--slo-ttft-ms",
        "200",
        "--slo-tpot-ms",
        "40",
    ]
    files = ["--json", f"{folder}/a.json", "--request-log", f"{folder}/a.csv", "--plots", f"{folder}/plots"]
    r = good(*args, *files)
    assert "simulated seconds a second" in r.stderr and "simulated seconds" not in r.stdout
    table = rows(r.stdout)
    data = json.load(open(f"{folder}/a.json"))
    log = list(csv.DictReader(open(f"{folder}/a.csv")))
    assert [x["label"] for x in data["runs"]] == ["fcfs", "static:dp=4", "flying"] and len(log) == 450
    for i, run in enumerate(data["runs"]):
        mine = [x for x in log if x["run"] == str(i)]
        ttft = [(float(x["first_s"]) - float(x["arrival_s"])) * 1e3 for x in mine]
        done = [(float(x["last_s"]) - float(x["arrival_s"])) * 1e3 for x in mine]
        tpot = [(float(x["last_s"]) - float(x["first_s"])) * 1e3 / (int(x["output_tokens"]) - 1) for x in mine]
        for name, values in (("TTFT", ttft), ("TPOT", tpot), ("completion", done)):
            for p in (50, 90, 99):
                cell = float(table[f"{name} p{p} (ms)"][i])
                assert abs(cell - nearest_rank(values, p)) < 0.006, (name, p, cell)
                assert abs(run[f"{name.lower()}_ms"][f"p{p}"] - nearest_rank(values, p)) < 0.001
        good_ones = sum(a <= 200 and b <= 40 for a, b in zip(ttft, tpot))
        assert run["good"] == good_ones and good_ones > 0
        assert run["finished"] == run["requests"] == 150 == int(table["finished"][i]) and run["conserved"]
        tokens = sum(int(x["input_tokens"]) + int(x["output_tokens"]) for x in mine)
        assert abs(run["throughput"] * run["seconds"] / tokens - 1) < 1e-9
        series = run["series"]
        assert sum(series["arrived"]) == sum(series["ended"]) == 150
        assert abs(sum(series["throughput"]) * series["bin_s"] / tokens - 1) < 1e-6
        assert (
            sum(series["output_tokens"]) == run["output_tokens"]
            and sum(x["steps"] for x in run["layouts"]) == run["steps"]
        )
        assert run["policy"]["active"]["sha256"] == run["sha256"]
    assert (
        data["runs"][1]["series"]["groups"][-1] == 4
        and data["runs"][1]["n_switches"] == len(data["runs"][1]["switches"]) == 4
    )
    for name in ("throughput", "queue", "kv", "layouts", "ttft", "tpot", "completion"):
        text = open(f"{folder}/plots/{name}.svg").read()
        xml.dom.minidom.parseString(text)
        assert "nan" not in text and "inf" not in text and "flying" in text, name
    # again: every byte is the same
    files = ["--json", f"{folder}/b.json", "--request-log", f"{folder}/b.csv", "--plots", f"{folder}/plots2"]
    again = good(*args, *files)
    assert again.stdout == r.stdout
    for a, b in (
        ("a.json", "b.json"),
        ("a.csv", "b.csv"),
        ("plots/ttft.svg", "plots2/ttft.svg"),
        ("plots/layouts.svg", "plots2/layouts.svg"),
    ):
        assert open(f"{folder}/{a}").read() == open(f"{folder}/{b}").read(), (a, b)
    # however many run at once: so are all files
    for jobs in ("1", "3", "64"):
        files = ["--json", f"{folder}/j.json", "--request-log", f"{folder}/j.csv", "--plots", f"{folder}/plots_j"]
        assert good(*args, *files, "--jobs", jobs).stdout == r.stdout, jobs
        for a, b in (("a.json", "j.json"), ("a.csv", "j.csv"), ("plots/queue.svg", "plots_j/queue.svg")):
            assert open(f"{folder}/{a}").read() == open(f"{folder}/{b}").read(), (jobs, a)
    other = good(*args[:-4], "--seed", "8")
    assert other.stdout != r.stdout


def inside(node, text_size):
    """The boxes of everything in a picture, of texts by the widest that a sans-serif font draws them."""
    for x in node.getElementsByTagName("*"):
        value = lambda k: float(x.getAttribute(k) or 0)
        if x.tagName == "text" and not x.parentNode.getAttribute("transform"):
            size = float(x.parentNode.getAttribute("font-size") or text_size)
            wide = 0.6 * size * len("".join(t.data for t in x.childNodes if t.nodeType == t.TEXT_NODE))
            left = value("x") - wide * {"start": 0, "middle": 0.5, "end": 1}[x.getAttribute("text-anchor")]
            yield left, value("y") - size * 0.8, left + wide, value("y") + size * 0.25
        elif x.tagName == "line":
            yield (
                min(value("x1"), value("x2")),
                min(value("y1"), value("y2")),
                max(value("x1"), value("x2")),
                max(value("y1"), value("y2")),
            )
        elif x.tagName == "rect" and not x.getAttribute("width").endswith("%"):
            yield value("x"), value("y"), value("x") + value("width"), value("y") + value("height")
        elif x.tagName == "polyline":
            for p in x.getAttribute("points").split():
                a, b = map(float, p.split(","))
                yield a, b, a, b
        elif x.tagName == "path" and x.getAttribute("transform"):
            a, b = map(float, re.match(r"translate\(([-.\d]+) ([-.\d]+)\)", x.getAttribute("transform")).groups())
            yield a - 5, b - 5, a + 5, b + 5


def pictures_can_be_read(folder):
    """Of 2, 4 and 8 policies: labelled axes, everything inside the picture, no line that another hides, SLOs, switches
    and dp by name."""
    policies = [
        "shift",
        "static:dp=4",
        "flying:many=3,few=1,narrow=1,premium=-2,min_gap_ms=50",
        "auto",
        "static:dp=2,sp=2",
        "fcfs",
        "native",
        "shift:threshold=64,budget=512",
    ]
    texts = lambda d, c: [
        "".join(t.data for t in x.childNodes if t.nodeType == t.TEXT_NODE)
        for x in d.getElementsByTagName("text")
        if x.getAttribute("class") == c
    ]
    of = lambda d, c: [x for x in d.getElementsByTagName("*") if x.getAttribute("class") == c]
    for n, slo in ((2, False), (4, True), (8, True)):
        where, limits = f"{folder}/plots{n}", ["--slo-ttft-ms", "300", "--slo-tpot-ms", "40"] if slo else []
        good(
            *NODE,
            *LOAD,
            *[w for p in policies[:n] for w in ("--policy", p)],
            *limits,
            "--plots",
            where,
            "--json",
            f"{folder}/p.json",
        )
        runs = json.load(open(f"{folder}/p.json"))["runs"]
        for name in ("throughput", "queue", "kv", "layouts", "ttft", "tpot", "completion"):
            d = xml.dom.minidom.parse(f"{where}/{name}.svg")
            svg = d.documentElement
            width, height = map(float, svg.getAttribute("viewBox").split()[2:])
            assert (width, height) == (float(svg.getAttribute("width")), float(svg.getAttribute("height")))
            for a, b, x, y in inside(svg, 12):
                assert 0 <= a <= x <= width and 0 <= b <= y <= height, (name, n, a, b, x, y)
            ticks = texts(d, "tick-x")
            assert len(ticks) >= 3 and len(set(ticks)) == len(ticks), (name, n, ticks)
            legend, wanted = texts(d, "legend"), list(policies[:n])
            switched = [r for r in runs if r["n_switches"]]
            assert switched and bool([x for x in legend if "switch" in x]) == (
                name in ("throughput", "queue", "kv", "layouts")
            ), (name, legend)
            if name == "layouts":
                assert len(texts(d, "label")) == n and any(x.startswith("dp 4, sp 1, tp 1") for x in legend), legend
                marks = len(of(d, "switch"))
                assert len(switched) <= marks <= sum(r["n_switches"] for r in runs), marks
                continue
            assert len(texts(d, "tick-y")) >= 3 and legend[:n] == wanted, (name, legend)
            lines = of(d, "run")
            assert (
                len(lines)
                == n
                == len({(x.getAttribute("stroke"), x.getAttribute("stroke-dasharray")) for x in lines})
                == len({x.getAttribute("stroke-dasharray") for x in lines})
            )
            marks = of(d, "mark")
            assert len({x.getAttribute("d") for x in marks}) == n and len(
                {x.getAttribute("transform") for x in marks}
            ) == len(marks), (name, n)
            assert len([x for x in of(d, "slo") if x.tagName == "line"]) == (slo and name in ("ttft", "tpot")), name
            if slo and name in ("ttft", "tpot"):
                assert texts(d, "slo") == [f"SLO: {300 if name == 'ttft' else 40} ms"] and texts(d, "slo")[0] in legend


def pictures_of_the_pages(folder):
    """The commands of docs/pictures/README.md still draw the pictures beside it."""
    commands = re.findall(r"^build/moonshift simulate (.*)$", open("docs/pictures/README.md").read(), re.M)
    drawn = ({"layouts": "switch", "queue": "switch-queue"}, {"pool": "pool"})
    assert len(commands) == len(drawn), commands
    for i, command in enumerate(commands):
        words = command.split()
        assert words[-2:] == ["--plots", "plots"], command
        good(*words[:-1], f"{folder}/pages{i}")
        for name, kept in drawn[i].items():
            same = open(f"{folder}/pages{i}/{name}.svg").read() == open(f"docs/pictures/{kept}.svg").read()
            assert same, f"docs/pictures/{kept}.svg is stale: see the README beside it"


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def formats(folder):
    ours = write(
        folder,
        "ours.csv",
        "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i * 0.5},{1024 + i % 3},8\n" for i in range(40)),
    )
    azure = write(
        folder,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:{i // 2:02d}.{i % 2 * 5}000000,{1024 + i % 3},8\n" for i in range(40)),
    )
    same = [good(*NODE, "--trace", t).stdout.split("\n", 1) for t in (ours, azure)]
    assert same[0][1] == same[1][1] and "ours.csv (sha256" in same[0][0]
    # the same beginnings, by hashes in the file, beside it, and as JSON lines
    ids = [f"1 {100 + i} {200 + i}" if i % 3 else f"1 {100 + i}" for i in range(40)]
    inside = write(
        folder,
        "inside.csv",
        "arrival_s,input_tokens,output_tokens,hash_ids\n"
        + "".join(f"{i * 0.5},{1024 + i % 3},8,{ids[i]}\n" for i in range(40)),
    )
    side = write(folder, "side.csv", "row,hash_ids\n" + "".join(f"{i},{ids[i]}\n" for i in range(40)))
    lines = write(
        folder,
        "moon.jsonl",
        "".join(
            json.dumps(
                {
                    "timestamp": i * 500,
                    "input_length": 1024 + i % 3,
                    "output_length": 8,
                    "hash_ids": [int(x) for x in ids[i].split()],
                }
            )
            + "\n"
            for i in range(40)
        ),
    )
    tables = [
        good(*NODE, *t).stdout.split("\n", 1)[1]
        for t in (["--trace", inside], ["--trace", ours, "--trace-hashes", side], ["--trace", lines])
    ]
    assert tables[0] == tables[1] == tables[2]
    cached = float(rows(tables[0])["prompt cached (%)"][0])
    assert 45 < cached < 50, cached  # half of each prompt but the first's
    assert float(rows(same[0][1])["prompt cached (%)"][0]) == 0
    assert float(rows(good(*NODE, "--trace", inside, "--no-enable-prefix-caching").stdout)["prompt cached (%)"][0]) == 0
    some = good(*NODE, "--trace", ours, "--requests", "7").stdout
    assert int(rows(some)["requests"][0]) == 7 and "its first 7 requests" in some
    assert int(rows(good(*NODE, "--trace", ours, "--seconds", "5").stdout)["requests"][0]) == 10


def described_machines():
    """Shift Parallelism's Table 5: who waits longest in bursts, and whose peak is highest; the numbers themselves
    within the model's tolerance."""
    args = [
        "--hardware",
        "h200x8-fitted",
        "--model",
        "llama-3.3-70b-fp8",
        "--trace",
        "shift-bursty",
        "--seed",
        "1",
        "--max-num-seqs",
        "1024",
        "--max-num-batched-tokens",
        "16384",
        "--policy-param",
        "budget=16384",
    ]
    r = good(*args, "--policy", "shift", "--policy", "static:dp=8", "--policy", "static:tp=8")
    shift, dp, tp = (float(x) for x in rows(r.stdout)["TTFT p50 (ms)"])
    assert shift < dp < tp, r.stdout
    shift, dp, tp = (float(x) for x in rows(r.stdout)["peak of 10 s (tokens/s)"])
    for is_, published in ((shift, 69100), (dp, 75500), (tp, 51200)):
        assert abs(is_ / published - 1) < 0.1, r.stdout
    assert "8 ranks" in r.stdout
    # with an eighth of the weights on each device there is more room for KV
    blocks = [
        int(
            re.search(
                r"(\d+) KV blocks",
                good(*args, "--requests", "5", "--policy", "static:tp=8", "--weight-shares", n).stdout,
            ).group(1)
        )
        for n in ("1", "8")
    ]
    assert blocks[1] > blocks[0] * 1.5, blocks


def shares_of_weights_come_at_the_links_pace(folder):
    """Before anything was loaded: by the description, not by what this process took to begin. --json says what the
    policy was told."""
    with open("models/hardware/a10x8.json") as f:
        machine = json.load(f)
    path, out = os.path.join(folder, "asks.lua"), os.path.join(folder, "asks.json")
    with open(path, "w") as f:
        f.write("""local asked
            return { api = 1, doc = "asks what a reshard takes", step = function(view, act)
              for _, group in ipairs(view.idle) do
                local r = not asked and group.size == 8 and view.estimate_reshard(group, { pp = 2, tp = 4 })
                if r then
                  asked = act.reshard(group, { pp = 2, tp = 4 }, { reason = string.format("%.0f %.6f", r.bytes, r.ms) })
                else
                  local batch = act.batch(group)
                  batch:decodes()
                  batch:prefill(view.waiting)
                  if batch.tokens > 0 then act.forward(group, batch) end
                end
              end
            end }""")
    node = ["--hardware", "a10x8", "--model", "llama-3-15b", "--weights", "sharded", "--json", out]
    good(*node, "--trace", "batch:requests=60,input=200,output=20", "--policy", path)
    with open(out) as f:
        reason = json.load(f)["runs"][0]["switches"][0]["reason"]
    moved, ms = map(float, reason.split())
    pace = machine["host_link_bytes_per_s"]["v"] * machine["link_share"]["v"]
    assert abs(ms / (moved / 8 / pace * 1e3) - 1) < 0.01, (reason, pace)


def drafts_are_modelled(folder):
    """Right draft tokens save steps, wrong ones cost rows, and the answers are as long as without; two runs are the
    same bytes, and who drafts is not asked where nothing is modelled."""
    args = ["--hardware", "h200x8-fitted", "--model", "llama-3.1-8b", "--ranks", "1", "--policy", "arctic"]
    args += ["--trace", "batch:requests=4,batches=3,every=30,input=600,output=300"]
    runs = []
    for chance in ("0", "0.5", "0.9", "0.9"):
        path = os.path.join(folder, "drafts.json")
        r = good(*args, "--draft-acceptance", chance, "--json", path)
        with open(path) as f:
            runs.append((json.load(f)["runs"][0], rows(r.stdout)))
    (none, plain), (half, _), (most, table), (again, _) = runs
    assert "draft_tokens" not in none and "draft tokens" not in plain
    assert most == again
    assert none["output_tokens"] == half["output_tokens"] == most["output_tokens"] == 12 * 300
    assert most["accepted_tokens"] > half["accepted_tokens"] > 0, (most, half)
    assert most["accepted_tokens"] < most["draft_tokens"]
    assert int(table["draft tokens"][0]) == most["draft_tokens"]
    assert int(table["of them right"][0]) == most["accepted_tokens"]
    assert most["steps"] < half["steps"] < none["steps"]
    assert most["tpot_ms"]["p50"] < half["tpot_ms"]["p50"] < none["tpot_ms"]["p50"]


def what_was_not_measured_is_flagged(folder):
    """Figures that rest on extrapolation are marked, and a line says which table was left, how far, and for how much of
    the time."""
    hardware = json.load(open("models/hardware/h200x8.json"))
    os.symlink(os.path.abspath("models/hardware/h200-kernels.json"), f"{folder}/h200-kernels.json")
    hardware["devices"]["v"], hardware["name"] = 16, "sixteen"
    load = [
        "--model",
        "qwen3-32b-fp8",
        "--trace",
        "poisson:rate=2,requests=12,input=500-3000,output=20",
        "--json",
        f"{folder}/o.json",
    ]

    def outside(machine, *args):
        r = good("--hardware", machine, *load, *args)
        return r.stdout, [(x["label"], x["outside"]) for x in json.load(open(f"{folder}/o.json"))["runs"]]

    sixteen = write(folder, "sixteen.json", json.dumps(hardware))
    text, ((_, tp), (_, dp)) = outside(sixteen, "--policy", "static:tp=8,dp=2", "--policy", "static:sp=16")
    reduce = [t for t in tp["tables"] if t["table"].startswith("all_reduce")]
    assert not reduce, tp
    exchange = next(t for t in dp["tables"] if t["table"] == "all_to_all")
    assert (
        exchange["axis"] == "devices"
        and exchange["measured"] == [2, 8]
        and exchange["high"] == 16
        and exchange["low"] is None
    )
    assert (
        0.01 < exchange["share"] <= dp["share"] <= 1
        and abs(sum(t["share"] for t in dp["tables"]) / dp["share"] - 1) < 1e-9
    )
    line = re.search(
        r"^static:sp=16: ~ ([\d.]+)% of the step time was priced outside of what was measured, by extrapolation: (.*)$",
        text,
        re.M,
    )
    assert (
        line
        and abs(float(line.group(1)) - 100 * dp["share"]) < 0.06
        and "all_to_all" in line.group(2)
        and "(devices up to 16, measured 2 to 8)" in line.group(2)
    ), text
    assert all(c.startswith("~") for c in re.search(r"^TTFT p50 \(ms\) +(.*)$", text, re.M).group(1).split()), text
    # a search says so of its points
    r = subprocess.run(
        [
            BINARY,
            "tune",
            "--hardware",
            sixteen,
            *load,
            "--policy",
            "static",
            "--policy-param",
            "sp=16",
            "--objective",
            "p50 TTFT",
            "--param",
            "ageing",
            "--budget",
            "2",
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=ENV,
    )
    point = json.load(open(f"{folder}/o.json"))["points"][0]
    assert r.returncode == 0 and point["outside"] == dp["share"], (r.stderr, point)
    assert (
        re.search(rf"^best +.*  ~ {100 * dp['share']:.1f}%$", r.stdout, re.M)
        and "priced outside of what was measured" in r.stdout
    ), r.stdout
    # the formulas describe groups of 2, 4 and 8; on eight devices nothing is marked
    fitted = json.load(open("models/hardware/h200x8-fitted.json"))
    fitted["devices"]["v"] = 16
    text, ((_, tp), (_, dp)) = outside(
        write(folder, "fitted.json", json.dumps(fitted)), "--policy", "static:tp=16", "--policy", "static:dp=16"
    )
    assert {t["table"] for t in tp["tables"]} == {"all_reduce", "all_reduce_eager"} and dp == {
        "share": 0,
        "tables": [],
    }, (tp, dp)
    cells = re.search(r"^TTFT p50 \(ms\) +(.*)$", text, re.M).group(1).split()
    assert cells[0].startswith("~") and not cells[1].startswith("~") and "static:dp=16: ~" not in text, text
    text, runs = outside("h200x8-fitted", "--policy", "static:tp=8")
    assert "~" not in text and runs[0][1]["share"] == 0
    # more bytes in a message than were measured, and a prompt longer than any
    text, ((_, long),) = outside(
        "h200x8",
        "--policy",
        "shift:budget=131072",
        "--max-num-batched-tokens",
        "131072",
        "--max-model-len",
        "40000",
        "--trace",
        "batch:requests=3,input=30000,output=2",
    )
    assert any(
        t["table"].startswith("prefill") and t["axis"] == "new tokens" and t["high"] > 16384 for t in long["tables"]
    ), long


def pooled_weights(folder):
    """FFN weights of an 8 x H20 node in one pool: more KV by exactly what is saved, steps that wait for a link or send
    rows, a picture of one step, and what cannot be."""
    node = ["--hardware", "h20x8-sidp", "--model", "qwen3-32b", "--gpu-memory-utilization", "0.999"]
    large = [x.replace("qwen3-32b", "llama-3-70b") for x in node]
    load = ["--max-model-len", "2048", "--trace", "batch:requests=64,input=128,output=8-200"]
    pool = ["--weights", "pooled", "--pool-slots", "8"]
    blocks = {}
    for name, args in (("all", []), ("8", pool), ("9", [*pool[:3], "9"])):
        r = good(*node, *load, "--requests", "1", "--policy", "static:dp=8", *args)
        blocks[name] = int(re.search(r"(\d+) KV blocks", r.stdout)[1])
    block = 32 * 64 * 2 * 8 * 128 * 2  # bytes: tokens, layers, K and V, heads, their elements, bf16
    layer = 3 * 5120 * 25600 * 2
    for slots in (8, 9):
        assert abs((blocks[str(slots)] - blocks["all"]) * block - layer * (64 - 8 - slots)) < block, blocks
    r = simulate(*large, *load, "--policy", "static:dp=8")  # 141 GB of weights on devices of 128
    assert r.returncode == 1 and re.search("needs .* MiB for weights .* --weights pooled", r.stderr), r.stderr
    good(*large, *load, *pool, "--policy", "static:dp=8")
    files = ["--json", f"{folder}/pool.json", "--plots", f"{folder}/pool"]
    r = good(*node, *load, *pool, *files, "--policy", "sidp", "--policy", "static:dp=8")
    assert "FFN weights pooled" in r.stdout
    sidp, was = json.load(open(f"{folder}/pool.json"))["runs"]
    assert was["cas_steps"] == 0 < sidp["cas_steps"] <= sidp["steps"] and sidp["seconds"] < was["seconds"]
    d = xml.dom.minidom.parse(f"{folder}/pool/pool.svg")
    labels = [x.firstChild.data for x in d.getElementsByTagName("text") if x.getAttribute("class") == "label"]
    assert len(labels) == 8 and labels[0] == "sidp" and "busy ranks 8" in labels[1], labels
    slow = good(*node, *load, *pool, "--link-gbps", "36", "--policy", "static:dp=8").stdout
    fast = good(*node, *load, *pool, "--link-gbps", "360", "--policy", "static:dp=8").stdout
    slow, fast = (float(rows(x)["TPOT p50 (ms)"][0]) for x in (slow, fast))
    assert 8 < slow / fast < 10.1, (slow, fast)
    plain = good(*node, *load, "--policy", "static:dp=8", "--plots", f"{folder}/none", "--json", f"{folder}/none.json")
    assert "pooled" not in plain.stdout and "pool.svg" not in os.listdir(f"{folder}/none")
    assert "cas_steps" not in json.load(open(f"{folder}/none.json"))["runs"][0]
    for args, says in (
        ([*pool, "--rank-memory", "1GiB"], "--rank-memory says what --hardware"),
        ([*pool, "--weight-shares", "8"], "--weight-shares 8 the owners are groups of 8 ranks"),
        ([*pool, "--ranks", "1"], "--ranks 2 or more"),
        (["--pool-slots", "8"], "give --weights pooled, too"),
    ):
        r = simulate(*node, *load, *args)
        assert r.returncode in (1, 2) and says in r.stderr, (args, r.stderr)


def mistakes(folder):
    bad = write(folder, "bad.csv", "arrival_s,input_tokens,output_tokens\n0,5,5\n1,five,5\n")
    loop = write(
        folder,
        "loop.lua",
        "return { api = 1, doc = 'Never ends.', step = function(view, act) while true do end end }\n",
    )
    base = ["--trace", "poisson:rate=1,requests=2"]
    for args, code, says in (
        ([], 2, "which traffic?"),
        (base, 2, "which machine and model?"),
        ([*NODE, "--trace", bad], 1, "bad.csv:3: input_tokens must be a whole number from 1 to 4194304, not 'five'"),
        ([*NODE, "--trace", "no/such.csv"], 1, "no/such.csv"),
        ([*NODE, "--trace", "poison:rate=1"], 1, "did you mean poisson?"),
        ([*NODE, "--trace", "poisson:rte=1"], 1, "did you mean rate?"),
        ([*NODE, *base, "--policy", "no-such"], 1, "no-such"),
        ([*NODE, *base, "--policy", "fcfs", "--policy", "static:nope=1"], 1, "nope"),
        ([*NODE, *base, "--policy", "fcfs:budget=1,nonsense"], 1, "NAME=VALUE"),
        ([*NODE, *base, "--policy", loop], 1, "loop.lua:1: still running after 2500 ms"),
        ([*NODE, *base, "-tp", "3"], 1, "leave 1 of the 4 ranks idle: --ranks 3 or 6"),
        # a label that promises a layout is that layout, or nothing runs under it
        (
            [*NODE, *base, "--policy", "static:sp=3"],
            1,
            "dp=1, sp=3, tp=1 is not the 4 ranks: dp * sp * tp * pp has to be 4, and groups can have 1, 2 or 4 of them",
        ),
        ([*NODE, *base, "--weights", "sharded", "--policy", "shift"], 1, "so a group runs one layout"),
        ([*NODE, *base, "--policy", "static:sp=16"], 1, "sp=16, tp=1 is not the 4 ranks"),
        (
            [*NODE, *base, "--policy", "fcfs", "--policy", "static:dp=3"],
            1,
            "--policy static:dp=3: static.lua: dp=3, sp=1, tp=1 is not the 4 ranks",
        ),
        ([*NODE, *base, "--policy", "static:dp=4,tp=2"], 1, "dp=4, sp=1, tp=2 is not the 4 ranks"),
        ([*NODE, *base, "--policy", "shift:base_sp=3"], 1, "base_sp=3, base_tp=0 is no layout of all 4 ranks"),
        ([*NODE, *base, "--policy", "flying:narrow=3"], 1, "narrow=3: on 4 ranks a group can have 1, 2, 4 of them"),
        (["--hardware", "no-such", "--model", "llama-3.3-70b-fp8", *base], 1, "no models/hardware/no-such.json"),
        (["--hardware", "h200x8-fitted", "--model", "no-such", *base], 1, "no models/catalog/no-such.json"),
        (["--hardware", bad, "--model", "llama-3.3-70b-fp8", *base], 1, "bad.csv"),
        (
            ["--hardware", "h200x8-fitted", "--model", "llama-3.3-70b-fp8", "--ranks", "16", *base],
            1,
            "16 ranks are asked for",
        ),
        ([*NODE, *base, "words"], 2, "a word too many"),
        ([*NODE, *base, "--port", "1"], 2, "belongs to moonshift serve"),
        ([*NODE, *base, "--trace-hashes", bad], 1, "leave --trace-hashes away"),
        ([*NODE, *base, "--json", "no/such/folder/x.json"], 1, "no/such/folder"),
        ([*NODE, *base, "--max-num-seqs", "0"], 2, "--max-num-seqs"),
    ):
        r = simulate(*args)
        assert r.returncode == code and says in r.stderr, (args, r.returncode, r.stderr)
        assert "--json" in args or (not r.stdout and "simulated seconds" not in r.stderr), (
            r.stderr
        )  # found before anything ran
        assert r.stderr.count("moonshift: ") == 1, r.stderr
    assert "--trace FILE|GENERATOR" in good("--help").stdout


def troubled_policies_are_told(folder):
    broken = write(
        folder,
        "broken.lua",
        """
local n = 0
return { api = 1, doc = "Breaks after a while.", step = function(view, act)
  n = n + 1
  if n > 600 then local x = nil; x.y = 1 end
  for _, g in ipairs(view.idle) do
    local b = act.batch(g); b:decodes(); b:prefill(view.waiting, 512)
    if b.tokens > 0 then act.forward(g, b) end
  end
end }
""",
    )
    r = good(*NODE, *LOAD, "--policy", broken, "--json", f"{folder}/broken.json")
    assert re.search(
        r"broken: the native policy decided \d+ of \d+ scheduling points in its place; last: .*broken", r.stdout
    ), r.stdout
    assert int(rows(r.stdout)["finished"][0]) == 150
    assert json.load(open(f"{folder}/broken.json"))["runs"][0]["policy"]["fallback_steps"]["error"] > 0
    # the watch over starving requests: on by default, with a patience of its own, or off
    unfair = write(
        folder,
        "unfair.lua",
        """
return { api = 1, doc = "Runs the longer prompts only when nobody else is there.", needs = { "waiting.prompt" },
 step = function(view, act)
  for _, g in ipairs(view.idle) do
    local ids, w = {}, view.waiting
    for row = 1, w.n do if w.prompt[row] < 300 then ids[#ids + 1] = w.id[row] end end
    local b = act.batch(g); b:decodes(); b:prefill(#ids + view.n_running > 0 and ids or w, 512)
    if b.tokens > 0 then act.forward(g, b) end
  end
end }
""",
    )
    watched = [
        good(
            *NODE,
            "--trace",
            "poisson:rate=60,seconds=10,input=20-350,output=5-60",
            "--seed",
            "7",
            "--policy",
            unfair,
            "--starvation-seconds",
            s,
        ).stdout
        for s in ("0", "0.05", "3600")
    ]
    assert "it was withdrawn for its strikes" in watched[1], watched[1]
    assert "starved" in watched[1] and "starved" not in watched[0] and watched[0] == watched[2]
    full = good(*NODE, "--trace", "batch:requests=50,input=200,output=20", "--max-num-queued-reqs", "10")
    assert int(rows(full.stdout)["refused"][0]) > 0


HOLDS = """return { api = 1, doc = "x",
  admit = function(r, view, act) if r.priority > 0 then act.hold(r, "low ones wait", view.now + 0.5) end end,
  step = function(view, act) for _, g in ipairs(view.idle) do local b = act.batch(g)
    b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }"""


def a_long_queue_in_order_starves_nobody():
    """Minutes of queue, KV full, prompts of seconds, long ones that find no room: in replicas that take turns."""
    for policy, machine in (("static:dp=8", "h200x8"), ("fcfs", "h200x8"), ("auto", "h200x8-fitted")):
        r = good(
            *("--hardware", machine, "--model", "llama-3.3-70b-fp8", "--policy", policy),
            *("--trace", "models/papers/mooncake_conversation_15min.csv"),
        )
        waited = re.search(r"^queue p90 \(ms\) +~?([\d.]+)", r.stdout, re.M)
        assert float(waited[1]) > 100000, r.stdout
        assert "native policy decided" not in r.stdout, r.stdout


def tenants_and_holds_are_told(folder):
    """A block for each tenant, and why the policy held whom; nothing of either where there is nothing to tell."""
    policy = f"{folder}/holds.lua"
    with open(policy, "w") as f:
        f.write(HOLDS)
    with open(f"{folder}/t.csv", "w") as f:
        f.write("arrival_s,input_tokens,output_tokens,priority,tenant\n")
        f.writelines(f"{i / 50},{20 + i},{5 + i % 7},{int(i % 3 == 1)},{'abc'[i % 3]}\n" for i in range(60))
        f.writelines(f"2,5,1,0,few{i}\n" for i in range(8))
    r = good(
        *NODE, "--trace", f"{folder}/t.csv", "--policy", "fcfs", "--policy", policy, "--json", f"{folder}/t.json",
        "--request-log", f"{folder}/t.log"
    )  # fmt: skip
    runs = json.load(open(f"{folder}/t.json"))["runs"]
    log = [x for x in csv.DictReader(open(f"{folder}/t.log")) if x["run"] == "1"]
    assert "holds" not in runs[0] and runs[1]["holds"] == [{"reason": "low ones wait", "times": 20}], runs[1]["holds"]
    assert rows(r.stdout)["held by the policy"] == ["0", "20"], r.stdout
    assert "holds: held requests: 20 times (low ones wait)\n" in r.stdout, r.stdout
    names = [t["tenant"] for t in runs[1]["tenants"]]
    assert names == ["a", "b", "c", *(f"few{i}" for i in range(8))], names
    for i, t in enumerate(runs[1]["tenants"][:3]):
        mine = [x for k, x in enumerate(log) if k < 60 and k % 3 == i]
        ttft = [(float(x["first_s"]) - float(x["arrival_s"])) * 1e3 for x in mine]
        assert t["requests"] == t["finished"] == len(mine) == 20
        assert t["prompt_tokens"] == sum(int(x["input_tokens"]) for x in mine)
        assert t["output_tokens"] == sum(int(x["output_tokens"]) for x in mine)
        assert abs(t["ttft_ms"]["p99"] - nearest_rank(ttft, 99)) < 1e-6, t
    block = r.stdout[r.stdout.index("\ntenant b\n") :].split("\n")
    assert [x.split()[0] for x in block[2:8]] == ["finished", "TTFT", "TTFT", "TPOT", "queue", "tokens"], block
    assert float(block[6].split()[-1]) >= 500 and r.stdout.count("\ntenant ") == 8, block
    assert "\n3 more tenants with fewer tokens: --json has them\n" in r.stdout, r.stdout
    assert "tenant" not in good(*NODE, "--trace", "batch:requests=5,input=20,output=2").stdout


def interrupts():
    args = [
        BINARY,
        "simulate",
        *NODE,
        "--trace",
        "poisson:rate=30,seconds=10000000,input=50,output=60",
        "--policy",
        "fcfs",
        "--policy",
        "native",
    ]
    for jobs in (1, 2):
        p = subprocess.Popen(
            [*args, "-j", str(jobs)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV
        )
        time.sleep(2)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=WAIT_S)
        assert p.returncode == 1 and "interrupted" in err, (p.returncode, err)
        table = rows(out)
        assert int(table["finished"][0]) > 0 and len(table["finished"]) == jobs, out
        for name in ("fcfs", "native")[:jobs]:
            assert re.search(name + r": stopped at [\d.]+ s; \d+ requests had not finished", out), out


with tempfile.TemporaryDirectory() as where:
    for check in (
        results_agree,
        pictures_can_be_read,
        pictures_of_the_pages,
        what_was_not_measured_is_flagged,
        pooled_weights,
        shares_of_weights_come_at_the_links_pace,
        drafts_are_modelled,
        formats,
        mistakes,
        troubled_policies_are_told,
        tenants_and_holds_are_told,
    ):
        check(where)
        print("ok", check.__name__)
for check in (
    (described_machines, a_long_queue_in_order_starves_nobody, interrupts)
    if "MOONSHIFT_SLOW" not in os.environ
    else (interrupts,)
):
    check()
    print("ok", check.__name__)
