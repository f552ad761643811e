"""Every curl line of docs/serving.md works as it stands, in its order, against the server that the page starts."""

import os
import re
import shlex
import subprocess
import sys

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
PAGE = open("docs/serving.md", encoding="utf-8").read()


def start():
    words = shlex.split(re.search(r"^    build/moonshift (serve --load-format dummy.*)$", PAGE, re.M).group(1))
    p = subprocess.Popen([BINARY, *words, "--port", "0"], stderr=subprocess.PIPE, text=True, env=ENV)
    seen, ports = [], {}
    while "8001" not in ports:
        line = p.stderr.readline()
        seen.append(line)
        if not line:
            sys.exit("the server did not start:\n" + "".join(seen))
        for name, pattern in (("8000", r"on http://127\.0\.0\.1:(\d+)"), ("8001", r"Admin routes on .*?(\d+)\s*$")):
            m = re.search(pattern, line)
            if m:
                ports[name] = m.group(1)
    return p, ports


def main():
    lines = re.findall(r"^    (curl .*)$", PAGE, re.M)
    assert len(lines) > 15, lines
    server, ports = start()
    failed = 0
    try:
        for line in lines:
            words = shlex.split(re.sub(r"127\.0\.0\.1:(8000|8001)", lambda m: "127.0.0.1:" + ports[m.group(1)], line))
            r = subprocess.run(
                [*words, "--fail-with-body", "--max-time", "60"], capture_output=True, text=True, timeout=90
            )
            if r.returncode:
                failed += 1
                print(f"{line}\n  status {r.returncode}: {r.stdout[:300]}{r.stderr[:200]}")
        if "/admin/drain" in lines[-1]:
            assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
    print(f"{len(lines) - failed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
