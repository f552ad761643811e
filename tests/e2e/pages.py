"""Examples of the pages work as they stand, in their order, in a copy of the tree: see walk() for what is run.

docs/serving.md has curl lines of four columns' indent, against the server that the page starts; the other pages have
fenced blocks. A page that needs the demo model, or the Lua module, is left out where that is missing."""

import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

BUILD = os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build"))
BINARY = os.path.join(BUILD, "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("MOONSHIFT_", "LUA_"))}
MODEL = sorted(glob.glob("models/weights/*.gguf"))
WALKED = sorted(set(glob.glob("docs/*.md")) | {"README.md", "policies/README.md"})
WAIT_S = 240


class Server:
    """What a line of a page starts in the background: on free ports, which stand for the page's 8000 and 8001."""

    def __init__(self, line, **more):
        # exec: a signal reaches the server, not the shell
        self.process = subprocess.Popen(
            ["bash", "-c", "exec " + line + " --port 0"], stderr=subprocess.PIPE, text=True, env=ENV, **more
        )
        self.seen, self.ports = [], {}
        while "8001" not in self.ports:
            text = self.process.stderr.readline()
            self.seen.append(text)
            if not text:
                raise AssertionError("the server did not start:\n" + "".join(self.seen))
            for name, pattern in (("8000", r"on http://127\.0\.0\.1:(\d+)"), ("8001", r"Admin routes on .*?(\d+)\s*$")):
                m = re.search(pattern, text)
                if m:
                    self.ports[name] = m.group(1)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.seen.append(line)

    def on_ports(self, line):
        return re.sub(r"127\.0\.0\.1:(8000|8001)", lambda m: "127.0.0.1:" + self.ports[m.group(1)], line)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


def blocks(path):
    """The fenced blocks of a page: what stands behind the fence, and their text."""
    return re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", open(path, encoding="utf-8").read(), re.S | re.M)


def copy_tree(folder):
    """Everything is a link but what a page may write to."""
    for name in os.listdir("."):
        if name == "policies":
            shutil.copytree(name, os.path.join(folder, name))
        elif not name.startswith((".", "build")):
            os.symlink(os.path.abspath(name), os.path.join(folder, name))
    os.symlink(BUILD, os.path.join(folder, "build"))


def shows(output, wanted):
    """Each line of the block is in the output, in its order; "..." stands for anything."""
    at = 0
    for line in wanted.strip().split("\n"):
        if line.strip() == "...":
            continue
        pattern = r"\s+".join(".*?".join(re.escape(p) for p in w.split("...")) for w in line.split())
        m = re.compile(pattern).search(output, at)
        if not m:
            return line
        at = m.end()
    return None


class Walk:
    def __init__(self, folder):
        self.folder, self.server, self.last, self.ran = folder, None, "", 0

    def line(self, line):
        want = re.search(r"# exit status (\d+)", line)
        if line.startswith("./run"):  # builds and fetches, then becomes this
            line = f"build/moonshift serve {MODEL[0]} --chat-template chatml" + line[len("./run") :]
        if line.endswith("&"):
            if self.server:
                self.server.stop()
            self.server = Server(line.rstrip("& "), cwd=self.folder)
            self.ran += 1
            return
        if self.server:
            line = self.server.on_ports(line)
        if line.startswith("curl "):
            line = "curl --fail-with-body --max-time 60" + line[len("curl") :]
        r = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=ENV, capture_output=True, text=True, timeout=WAIT_S
        )
        self.last, self.ran = r.stdout + r.stderr, self.ran + 1
        if "/admin/drain" in line:
            assert self.server.process.wait(60) == 0
        assert r.returncode == int(want[1] if want else 0), f"{line}\n  status {r.returncode}: {self.last[-1500:]}"

    def block(self, kind, text):
        words = kind.split()
        if len(words) == 2 and words[0] in ("lua", "json", "csv", "yaml") and "." in words[1]:
            with open(os.path.join(self.folder, words[1]), "w", encoding="utf-8") as f:
                f.write(text)
        elif kind == "sh" or (kind == "sh wide" and "MOONSHIFT_WIDE" in os.environ):
            for line in re.sub(r" *\\\n *", " ", text).strip().split("\n"):
                if line.strip() and not line.startswith("#"):
                    self.line(line)
        elif kind == "output":
            line = shows(self.last, text)
            assert line is None, f"the output has no '{line}':\n{self.last[-3000:]}"


def walk(page):
    """`sh` blocks are run line by line ("# exit status N" where it is not 0; a trailing & starts a server; a line that
    begins with # is a remark), `sh wide` ones, whose lines take minutes, by `./test wide`; `lua NAME` writes a file,
    `output` is compared with the last line's. Other blocks (`sh by hand`, `lua`, `text`) are shown only."""
    found = blocks(page)
    text = "\n".join(t for kind, t in found if kind == "sh")
    if not text:
        return None
    if (re.search(r"^\./run", text, re.M) or "models/weights" in text) and not MODEL:
        return "no demo model"
    if "policy test" in text and not os.path.exists(os.path.join(BUILD, "moonshift.so")):
        return "no Lua module"
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(folder)
        w = Walk(folder)
        try:
            for kind, text in found:
                w.block(kind, text)
        finally:
            if w.server:
                w.server.stop()
    print(f"{page}: {w.ran} lines")
    return None


def serving():
    page = open("docs/serving.md", encoding="utf-8").read()
    lines = re.findall(r"^    (curl .*)$", page, re.M)
    assert len(lines) > 15, lines
    server = Server(
        re.search(r"^    (build/moonshift serve --load-format dummy.*)$", page, re.M)
        .group(1)
        .replace("build/moonshift", shlex.quote(BINARY))
    )
    failed = []
    try:
        for line in lines:
            r = subprocess.run(
                [*shlex.split(server.on_ports(line)), "--fail-with-body", "--max-time", "60"],
                capture_output=True,
                text=True,
                timeout=90,
            )
            if r.returncode:
                failed.append(f"{line}\n  status {r.returncode}: {r.stdout[:300]}{r.stderr[:200]}")
        if "/admin/drain" in lines[-1]:
            assert server.process.wait(60) == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert not failed, "\n".join(failed)


def main():
    asked = sys.argv[1:]
    passed = failed = 0
    for page in WALKED:
        if asked and page not in asked:
            continue
        try:
            if page == "docs/serving.md":
                serving()
            left_out = walk(page)
            passed += 1
            if left_out:
                print(f"{page}: left out: {left_out}")
        except (AssertionError, subprocess.TimeoutExpired) as e:
            failed += 1
            print(f"{page}: {e}")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
