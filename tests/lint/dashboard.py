"""docs/monitoring: the Grafana dashboard is what PANELS says, the alert rules are the table of docs/operating.md, and
both ask only for metrics that the server has (those that tests/e2e/metrics.py sees move). --update writes the files.
tests/oracle/monitoring.py has promtool look at the rules and at the metrics themselves."""

import json
import re
import sys

sys.path.insert(0, "tests/lint")
from source import Rules, read

DASHBOARD, ALERTS, TABLE = "docs/monitoring/dashboard.json", "docs/monitoring/alerts.yml", "docs/operating.md"
LABELS = '{model_name=~"$model"}'


def rate(metric, by=None, labels=LABELS):
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{labels}[$__rate_interval]))"


def quantile(q, metric, labels=LABELS):
    return f"histogram_quantile({q}, {rate(metric + '_bucket', 'le', labels)})"


def gauge(metric, by=None):
    return f"sum{f' by ({by})' if by else ''} ({metric}{LABELS})"


def by_tenant(metric):
    return [(f"histogram_quantile(0.9, {rate(metric + '_bucket', 'le, tenant')})", "{{tenant}}")]


def latency(metric):
    return [(quantile(q, metric), f"p{round(q * 100)}") for q in (0.5, 0.9, 0.99)]


# A row: its title, and its panels: title, unit (Grafana's), and what is drawn: (expression, legend). What the front and
# the policy host say has no model label.
PANELS = [
    (
        "Latency",
        [
            ("Time to first token", "s", latency("vllm:time_to_first_token_seconds")),
            ("Between tokens", "s", latency("vllm:inter_token_latency_seconds")),
            ("Queue", "s", latency("vllm:request_queue_time_seconds")),
            ("Whole request", "s", latency("vllm:e2e_request_latency_seconds")),
        ],
    ),
    (
        "Load",
        [
            (
                "Tokens a second",
                "short",
                [
                    (rate("vllm:generation_tokens_total"), "out"),
                    (rate("vllm:prompt_tokens_total"), "prompt"),
                    (rate("vllm:prompt_tokens_cached_total"), "prompt, from the prefix cache"),
                    (rate("moonshift:recomputed_tokens_total"), "computed twice"),
                ],
            ),
            (
                "Requests",
                "short",
                [
                    (gauge("vllm:num_requests_running"), "running"),
                    (gauge("vllm:num_requests_waiting_by_reason", "reason"), "waiting: {{reason}}"),
                ],
            ),
            (
                "Ended, by reason",
                "reqps",
                [
                    (rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),
                    (rate("moonshift:admission_rejected_total", "reason"), "refused: {{reason}}"),
                ],
            ),
            (
                "Generated tokens a second by tenant",
                "short",
                [(rate("moonshift:tenant_generation_tokens_total", "tenant"), "{{tenant}}")],
            ),
        ],
    ),
    (
        "Tenants",
        [
            ("Time to first token, p90", "s", by_tenant("moonshift:tenant_time_to_first_token_seconds")),
            ("Queue, p90", "s", by_tenant("moonshift:tenant_queue_time_seconds")),
            (
                "Prompt tokens a second",
                "short",
                [(rate("moonshift:tenant_prompt_tokens_total", "tenant"), "{{tenant}}")],
            ),
            ("Requests a second", "reqps", [(rate("moonshift:tenant_requests_total", "tenant"), "{{tenant}}")]),
        ],
    ),
    (
        "Machine",
        [
            (
                "KV blocks in use",
                "percentunit",
                [
                    (f"max (vllm:kv_cache_usage_perc{LABELS})", "held"),
                    (
                        f"{gauge('moonshift:kv_blocks_cached')} / {gauge('moonshift:kv_blocks')}",
                        "kept for prefixes alone",
                    ),
                ],
            ),
            ("Step", "s", latency("moonshift:step_seconds")),
            (
                "Groups and switches",
                "short",
                [
                    (gauge("moonshift:groups"), "groups"),
                    (gauge("moonshift:ranks_alive"), "ranks alive"),
                    (gauge("moonshift:switches_pending"), "orders that wait"),
                    (f"sum (increase(moonshift:switches_total{LABELS}[$__rate_interval]))", "switches"),
                ],
            ),
            ("Error of step estimates", "percentunit", [(f"max (moonshift:step_estimate_error{LABELS})", "mean")]),
        ],
    ),
    (
        "Policy",
        [
            (
                "Decisions a second",
                "short",
                [(rate("policy_decisions_total", "action", ""), "{{action}}")],
            ),
            (
                "Steps decided without it, and calls that failed",
                "short",
                [
                    ("sum by (reason) (increase(policy_fallback_total[$__rate_interval]))", "without it: {{reason}}"),
                    (
                        "sum by (hook, kind) (increase(policy_hook_errors_total[$__rate_interval])) > 0",
                        "{{hook}}: {{kind}}",
                    ),
                ],
            ),
            ("Time of a call", "s", [(quantile(0.99, "policy_hook_duration_seconds", ""), "p99")]),
            (
                "Swaps",
                "short",
                [("sum by (kind) (increase(policy_swaps_total[$__rate_interval]))", "{{kind}}")],
            ),
        ],
    ),
    (
        "Server",
        [
            ("HTTP requests a second", "reqps", [(rate("http_requests_total", "status", ""), "{{status}}")]),
            ("Unsent bytes", "bytes", [("sum (http_unsent_bytes)", "bytes")]),
            ("Memory", "bytes", [("sum (process_resident_memory_bytes)", "resident")]),
            ("Cores", "short", [("sum (rate(process_cpu_seconds_total[$__rate_interval]))", "in use")]),
        ],
    ),
]
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(number, title, unit, drawn, x, y):
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": 6, "h": 7},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(drawn)
        ],
    }


def mark(name, expr, text, colour):
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": colour,
        "expr": expr,
        "titleFormat": name,
        "textFormat": text,
    }


def dashboard():
    panels, number, y = [], 1, 0
    for title, row in PANELS:
        panels.append(
            {
                "id": number,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        number, y = number + 1, y + 1
        for i, one in enumerate(row):
            panels.append(panel(number, *one, 6 * i, y))
            number += 1
        y += 7
    return {
        "title": "Moonshift",
        "uid": "moonshift",
        "schemaVersion": 38,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "model",
                    "label": "Model",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(vllm:num_requests_running, model_name)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "annotations": {
            "list": [
                mark("Policy", "changes(policy_generation[1m]) > 0", "another policy is live", "purple"),
                mark(
                    "Withdrawn",
                    'increase(policy_swaps_total{kind="withdrawn"}[1m]) > 0',
                    "the policy was withdrawn",
                    "red",
                ),
            ]
        },
        "panels": panels,
    }


def alerts():
    """The rows of the table: (name, expression, minutes, what to do)."""
    table = read(TABLE).split("| alert | expression | what to do |")[1].split("\n\n")[0]
    for title, expr, more, do in re.findall(r"^\| ([^|]+) \| `([^`]+)`([^|]*) \| ([^|]+) \|$", table, re.M):
        minutes = re.search(r"for (\d+) minutes", more)
        name = "".join(w.capitalize() for w in re.findall(r"[A-Za-z]+", title))
        yield f"Moonshift{name}", title, expr, int(minutes[1]) if minutes else 0, re.sub(r"[`*]", "", do)


def rules():
    out = ["# Made from the table in docs/operating.md by tests/lint/dashboard.py --update.", "groups:"]
    out += ["  - name: moonshift", "    rules:"]
    for name, title, expr, minutes, do in alerts():
        out += [f"      - alert: {name}", f"        expr: {json.dumps(expr)}"]
        out += [f"        for: {minutes}m"] if minutes else []
        out += [
            "        annotations:",
            f"          summary: {json.dumps(title)}",
            f"          description: {json.dumps(do)}",
        ]
    return "\n".join(out) + "\n"


def known():
    """Names of series that tests/e2e/metrics.py sees move, histograms by their parts."""
    names = set(re.findall(r"^    [\"']([a-z0-9_:]+)", read("tests/e2e/metrics.py"), re.M))
    return names | {n + part for n in names for part in ("_bucket", "_sum", "_count")}


def asked(expr):
    return set(
        re.findall(r"(?<![\w:$\"])((?:vllm:|moonshift:|policy_|http_|front_|process_)[a-z0-9_]+)(?![\w(])", expr)
    )


def files_are_made():
    for path, want in ((DASHBOARD, json.dumps(dashboard(), indent=1) + "\n"), (ALERTS, rules())):
        if read(path) != want:
            yield f"{path} is not what it is made from: python3 tests/lint/dashboard.py --update"


def metrics_are_there():
    exprs = [t["expr"] for p in dashboard()["panels"] for t in p.get("targets", ())]
    exprs += [m["expr"] for m in dashboard()["annotations"]["list"]] + [a[2] for a in alerts()]
    for expr in exprs:
        if not asked(expr):
            yield f"asks for nothing: {expr}"
        for name in asked(expr) - known():
            yield f"{name} is no metric: {expr}"


def the_table_is_read():
    rows = len(
        re.findall(r"^\| .*`.* \|$", read(TABLE).split("| alert | expression | what to do |")[1].split("\n\n")[0], re.M)
    )
    found = list(alerts())
    if len(found) != rows or len({a[0] for a in found}) != rows:
        yield f"{TABLE}: {rows} rows of alerts, {len(found)} are understood"


if "--update" in sys.argv:
    for path, text in ((DASHBOARD, json.dumps(dashboard(), indent=1) + "\n"), (ALERTS, rules())):
        with open(path, "w") as f:
            f.write(text)

rules_of_pages = Rules()
rules_of_pages.check("files are what they are made from", files_are_made())
rules_of_pages.check("only metrics that there are", metrics_are_there())
rules_of_pages.check("the table of alerts is read whole", the_table_is_read())
rules_of_pages.close()
