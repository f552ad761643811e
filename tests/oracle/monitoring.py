"""promtool, Prometheus' own checker, reads the metrics of a server, the alert rules and every expression of the
dashboard: $python tests/oracle/monitoring.py --binary BINARY. Where promtool is missing, Debian's package is fetched
and unpacked, not installed: it would start a service."""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/rig")
parser = argparse.ArgumentParser()
parser.add_argument("--binary", required=True)
options = parser.parse_args()
sys.argv[1:] = []
os.environ["MOONSHIFT_BUILD"] = os.path.dirname(options.binary)

import cases  # noqa: E402
from serving import Server  # noqa: E402

# What promtool does not like and Prometheus takes: vLLM's names, which its dashboards ask for.
KNOWN = (
    r"(vllm|moonshift):\S+ metric names should not contain ':'",
    r"vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix",
)
FOLDER = tempfile.TemporaryDirectory()


def promtool():
    if found := shutil.which("promtool"):
        return found
    at = FOLDER.name
    if not glob.glob(f"{at}/usr/bin/promtool"):
        for words in (["apt-get", "-qq", "download", "prometheus"], ["sh", "-c", "dpkg-deb -x prometheus_*.deb ."]):
            r = subprocess.run(words, cwd=at, capture_output=True, text=True)
            assert r.returncode == 0, f"no promtool here (package prometheus), and: {r.stdout}{r.stderr}"
    return f"{at}/usr/bin/promtool"


def check(*words, said=None):
    r = subprocess.run([promtool(), "check", *words], input=said, capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def metrics():
    with Server(policy="static:dp=2") as s:
        s.complete()
        r, text = s.ask("GET", "/metrics", port=s.port)
        assert r.status == 200
        return text.decode()


def promtool_reads_the_metrics():
    text = metrics()
    _, said = check("metrics", said=text)
    wrong = [line for line in said.splitlines() if line and not any(re.fullmatch(k, line) for k in KNOWN)]
    assert not wrong, wrong
    _, said = check("metrics", said=text.replace("# TYPE vllm:num_requests_running gauge", "# TYPE x nonsense"))
    assert "nonsense" in said, said  # it would have said so


def the_alert_rules_are_rules():
    code, said = check("rules", "docs/monitoring/alerts.yml")
    assert code == 0 and "SUCCESS" in said, said


def every_expression_of_the_dashboard_is_one():
    board = json.load(open("docs/monitoring/dashboard.json"))
    exprs = [t["expr"] for p in board["panels"] for t in p.get("targets", ())]
    exprs += [m["expr"] for m in board["annotations"]["list"]]
    assert len(exprs) > 30
    path = os.path.join(FOLDER.name, "rules.yml")
    with open(path, "w") as f:
        f.write("groups:\n  - name: board\n    rules:\n")
        for i, expr in enumerate(exprs):
            plain = expr.replace("$__rate_interval", "1m").replace("$model", ".*")
            f.write(f"      - record: board:{i}\n        expr: {json.dumps(plain)}\n")
    code, said = check("rules", path)
    assert code == 0 and f"{len(exprs)} rules found" in said, said


cases.run([promtool_reads_the_metrics, the_alert_rules_are_rules, every_expression_of_the_dashboard_is_one])
