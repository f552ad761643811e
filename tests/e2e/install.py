"""The package: built by cpack, installed into a root of its own, and used from there; also the unit and the
container file beside it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

BUILD = os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build"))
HERE = os.path.abspath("engine/cli/package")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
WAIT_S = 60
MODEL = os.path.abspath("tests/data/sim_model.json")
DUMMY = ["--load-format", "dummy", "--hf-config", MODEL, "--kv-cache-memory-bytes", "64MiB", "--device", "sim"]


def run(*words, cwd, env=None, check=True):
    r = subprocess.run(words, cwd=cwd, env={**ENV, **(env or {})}, capture_output=True, text=True, timeout=WAIT_S)
    assert not check or r.returncode == 0, (words, r.returncode, r.stdout[-2000:], r.stderr[-2000:])
    return r


class Root:
    """A folder with the package in it, and nothing else; `at` is an empty one to call the program from."""

    def __init__(self, top):
        self.top, self.at = os.path.join(top, "root"), os.path.join(top, "elsewhere")
        self.binary = os.path.join(self.top, "usr/bin/moonshift")
        os.makedirs(self.at)
        if shutil.which("dpkg") and shutil.which("dpkg-shlibdeps"):
            self.deb = self._package(top)
            self._unpack()
        else:  # no Debian: what cmake installs there
            self.deb = None
            run("cmake", "--install", BUILD, "--prefix", "/usr", cwd=self.at, env={"DESTDIR": self.top})

    def _package(self, top):
        made = os.path.join(top, "made")
        run("cpack", "-G", "DEB", "-B", made, "--config", os.path.join(BUILD, "CPackConfig.cmake"), cwd=self.at)
        (name,) = [n for n in os.listdir(made) if n.endswith(".deb")]
        return os.path.join(made, name)

    def dpkg(self, *words):
        """As an installation runs it, with its scripts; other packages are not looked for."""
        return run(
            "dpkg",
            f"--root={self.top}",
            "--force-depends,not-root,script-chrootless,confold,bad-path",
            "--log=/dev/null",
            *words,
            cwd=self.at,
        )

    def _unpack(self):
        admin = os.path.join(self.top, "var/lib/dpkg")
        for folder in ("info", "updates", "triggers"):
            os.makedirs(os.path.join(admin, folder))
        open(os.path.join(admin, "status"), "w").close()
        if os.geteuid() == 0:
            self.dpkg("-i", self.deb)
        else:
            run("dpkg-deb", "-x", self.deb, self.top, cwd=self.at)

    def has(self, path):
        return os.path.exists(os.path.join(self.top, path))

    def run(self, *words, **more):
        return run(self.binary, *words, cwd=self.at, **more).stdout


def the_package_says_what_it_needs(root):
    if not root.deb:
        return
    field = {
        name: run("dpkg-deb", "-f", root.deb, name, cwd=root.at).stdout.strip()
        for name in ("Package", "Version", "Depends", "Description", "Architecture", "Maintainer")
    }
    version = re.search(r"project\(moonshift VERSION (\S+)", open("CMakeLists.txt").read()).group(1)
    assert field["Package"] == "moonshift" and field["Version"] == version and all(field.values()), field
    for library in ("libc6", "libcjson", "libedit", "libevent", "libluajit", "libpcre2", "libssl"):
        assert library in field["Depends"], field
    listed = run("dpkg-deb", "-c", root.deb, cwd=root.at).stdout
    assert not re.search(r"^.[rwx-]{7}w", listed, re.M), "files that anyone may write"
    for line in listed.splitlines():
        assert "root/root" in line and re.search(r" \./((etc/moonshift|usr)(/|$)|etc/$|$)", line), line


def everything_is_there(root):
    for path in (
        "usr/bin/moonshift",
        "usr/lib/lua/5.1/moonshift.so",
        "usr/lib/systemd/system/moonshift.service",
        "usr/share/moonshift/policies/fcfs.lua",
        "usr/share/moonshift/models/catalog/llama-3.3-70b-fp8.json",
        "usr/share/moonshift/models/hardware/h200x8.json",
        "usr/share/moonshift/models/papers/reproduce.json",
        "usr/share/doc/moonshift/README.md",
        "usr/share/doc/moonshift/docs/serving.md",
        "usr/share/man/man1/moonshift.1",
        "usr/share/bash-completion/completions/moonshift",
        "usr/share/zsh/site-functions/_moonshift",
    ):
        assert root.has(path), path
    if os.path.exists("LICENSE"):
        assert root.has("usr/share/doc/moonshift/LICENSE")
        assert not root.deb or root.has("usr/share/doc/moonshift/copyright")


def settings_outlive_the_package(root):
    if not root.deb or os.geteuid() != 0:
        return
    path = os.path.join(root.top, "etc/moonshift/moonshift.env")
    with open(path, "a") as f:
        f.write("MOONSHIFT_HOST=0.0.0.0\n")
    root.dpkg("-i", root.deb)
    assert "MOONSHIFT_HOST=0.0.0.0" in open(path).read(), "an upgrade took the settings away"


def removed_is_removed(root):
    if not root.deb or os.geteuid() != 0:
        return
    root.dpkg("-r", "moonshift")
    assert not root.has("usr/bin/moonshift") and root.has("etc/moonshift/moonshift.env")
    root.dpkg("-P", "moonshift")
    assert not root.has("etc/moonshift/moonshift.env")


def names_are_found(root):
    assert re.fullmatch(r"moonshift \d+\.\d+\.\d+( \(.*\))?\n", root.run("--version"))
    out = root.run(
        *(
            "simulate",
            "--hardware",
            "h200x8",
            "--model",
            "llama-3.3-70b-fp8",
            "--policy",
            "shift",
            "--policy",
            "flying",
        ),
        *("--trace", "poisson:rate=4,requests=20,input=100-200,output=20"),
    )
    assert "shift" in out and "flying" in out, out
    policy = os.path.join(root.top, "usr/share/moonshift/policies/fair.lua")
    root.run("policy", "check", policy)


def lua_finds_the_module(root):
    pattern = root.run("lua-path", "--cpath").strip()
    assert pattern.startswith(os.path.realpath(root.top) + "/usr/lib/lua/5.1/"), pattern
    if shutil.which("luajit"):
        lua = 'assert(type(require("moonshift")) == "table")'
        run("luajit", "-e", lua, cwd=root.at, env={"LUA_CPATH": pattern})


@contextlib.contextmanager
def serving(root):
    with open(os.path.join(root.at, "log"), "w+") as log:
        words = ["serve", *DUMMY, "--chat-template", "chatml", "--policy", "fair", "--port", "0"]
        p = subprocess.Popen([root.binary, *words], cwd=root.at, env=ENV, stderr=log)
        try:
            end = time.monotonic() + WAIT_S
            while True:
                said = open(log.name).read()
                if "Application startup complete." in said and "http://" in said:
                    break
                assert p.poll() is None and time.monotonic() < end, said
                time.sleep(0.05)
            yield p, re.search(r"on (http://\S+)", said).group(1)
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()


def containerfile():
    """Its instructions, lines joined, as (word, rest)."""
    text = re.sub(r"^#.*\n", "", open(os.path.join(HERE, "Containerfile")).read(), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).strip().split("\n")
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


def it_serves_and_ends(root):
    with serving(root) as (p, url):
        body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as r:
            assert json.load(r)["usage"]["completion_tokens"] == 4
        (check,) = [rest for word, rest in containerfile() if word == "HEALTHCHECK"]
        probe = json.loads(check[check.index("CMD") + 4 :])
        port = url.rsplit(":", 1)[1].strip("/")
        run(*probe, cwd=root.at, env={"MOONSHIFT_PORT": port})
        dead = run(*probe, cwd=root.at, env={"MOONSHIFT_PORT": "1"}, check=False)
        assert dead.returncode != 0
        p.send_signal(signal.SIGTERM)
        assert p.wait(WAIT_S) == 0


def the_container_file_is_one(root):
    """No container is started here: instructions are known, packages are those of ./run, and the stages match."""
    known = [
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
        "ARG",
        "LABEL",
    ]
    steps = containerfile()
    assert all(word in known for word, _ in steps), steps
    stages = [rest for word, rest in steps if word == "FROM"]
    assert len(stages) == 2 and stages[0].endswith(" AS build") and all("-slim" in s for s in stages), stages
    assert [rest for word, rest in steps if word == "USER"] == ["moonshift"]
    for word, rest in steps:
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
        if word == "RUN":
            run("bash", "-n", "-c", rest, cwd=root.at)
    table = open("tests/setup.sh").read()
    wanted = re.search(r"--no-install-recommends (.*?) &&", next(rest for word, rest in steps if word == "RUN"))
    for package in wanted.group(1).split():
        assert package in ("dpkg-dev", "file") or package in table, f"tests/setup.sh does not know {package}"
    for package in re.findall(r"\| run +\| (\S+?) *\|", table):
        assert package in wanted.group(1).split() or package.startswith("python3"), f"the image lacks {package}"


def the_unit_is_one(root):
    unit = open(os.path.join(root.top, "usr/lib/systemd/system/moonshift.service")).read()
    stop = int(re.search(r"TimeoutStopSec=(\d+)", unit).group(1))
    drain = int(
        re.search(r"\"shutdown-timeout\".*?\"SECONDS\", \"(\d+)\"", open("engine/cli/opts_table.c").read(), re.S)[1]
    )
    assert drain < stop, "systemd would end it before its answers end"
    assert "EnvironmentFile=-/etc/moonshift/moonshift.env" in unit
    assert not root.deb or root.has("etc/moonshift/moonshift.env")
    for line in open(os.path.join(HERE, "moonshift.env")):
        m = re.match(r"#?(MOONSHIFT_\w+)=", line)
        if m:
            flag = "--" + m[1][len("MOONSHIFT_") :].lower().replace("_", "-")
            assert f" {flag}" in root.run("serve", "--help"), flag
    if shutil.which("systemd-analyze"):
        path = os.path.join(root.at, "moonshift.service")
        with open(path, "w") as f:
            f.write(unit.replace("ExecStart=moonshift", f"ExecStart={root.binary}"))
        r = run("systemd-analyze", "verify", "--man=no", path, cwd=root.at, check=False)
        assert "moonshift.service" not in r.stderr, r.stderr


def shells_complete(root):
    words = os.path.join(root.top, "usr/share/bash-completion/completions/moonshift")
    ask = '. "$0"; COMP_WORDS=("${@}"); COMP_CWORD=$(($# - 1)); _moonshift; echo "${COMPREPLY[@]}"'
    for typed, answer in (
        (["rep"], "reproduce"),
        (["serve", "--max-num-b"], "--max-num-batched-tokens"),
        (["serve", "--log-format", ""], "text json"),
        (["serve", "--log-format", "=", "j"], "json"),
        (["policy", "t"], "test"),
        (["policy", "test", "--wa"], "--watch"),
        (["run", "--no-as"], "--no-async-scheduling"),
    ):
        r = run("bash", "-c", ask, words, "moonshift", *typed, cwd=root.at)
        assert r.stdout.strip() == answer, (typed, r.stdout, r.stderr)
    if shutil.which("zsh"):
        run("zsh", "-n", os.path.join(root.top, "usr/share/zsh/site-functions/_moonshift"), cwd=root.at)


def the_man_page_reads(root):
    page = os.path.join(root.top, "usr/share/man/man1/moonshift.1")
    if shutil.which("groff"):
        r = run("groff", "-man", "-ww", "-b", "-z", "-Tutf8", "-P-c", page, cwd=root.at)
        assert not r.stderr, r.stderr
    if shutil.which("mandoc"):
        r = run("mandoc", "-Tlint", "-Wwarning", page, cwd=root.at, check=False)
        found = [line for line in r.stdout.splitlines() if "missing date" not in line]  # the version is enough
        assert not found, found


passed = failed = 0
with tempfile.TemporaryDirectory() as top:
    root = Root(top)
    for case in (
        the_package_says_what_it_needs,
        everything_is_there,
        names_are_found,
        lua_finds_the_module,
        it_serves_and_ends,
        the_container_file_is_one,
        the_unit_is_one,
        shells_complete,
        the_man_page_reads,
        settings_outlive_the_package,
        removed_is_removed,
    ):
        try:
            case(root)
            passed += 1
        except Exception as e:
            failed += 1
            print(f"{case.__name__}: {type(e).__name__}: {e}")
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
