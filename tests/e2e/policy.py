"""What an author of policies meets at the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, "tests/rig")
import cases

BUILD = os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build"))
BINARY = os.path.join(BUILD, "moonshift")
DUMMY = ["--load-format", "dummy", "--hf-config", "tests/data/sim_model.json", "--device", "sim"]
SIMULATE = [
    "simulate",
    "--hf-config",
    "tests/data/sim_model.json",
    "--trace",
    "poisson:rate=50,requests=5,input=10,output=3",
]
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("MOONSHIFT_", "LUA_"))}
WAIT_S = 120


def run(*args, **more):
    r = subprocess.run([BINARY, *args], capture_output=True, timeout=WAIT_S, text=True, env=ENV, **more)
    return r.returncode, r.stdout, r.stderr


def serve_takes_params_with_the_policy_as_simulate_does():
    for words in ([*DUMMY, "--dry-run"], SIMULATE[1:]):
        command = "serve" if words[0] == "--load-format" else "simulate"
        code, _, err = run(command, *words, "--ranks", "2", "--policy", "shift:threshold=128,hysteresis=0")
        assert code == 0, err
        for asked, says in (
            ("shift:treshold=1", "did you mean 'threshold'?"),
            ("shift:128", "parameters as NAME=VALUE, not '128'"),
            ("shift:threshold=-3", "threshold"),
            ("shift:threshold=1,x", "parameters are NAME=VALUE, not 'x'"),
        ):
            code, _, err = run(command, *words, "--policy", asked)
            assert code == 1 and says in err, (command, asked, err)
    # what is said with the policy wins over what is said apart; only one of the two is a number that shift takes
    code, _, err = run(
        "serve", *DUMMY, "--dry-run", "--policy-param", "threshold=-1", "--policy", "shift:threshold=128"
    )
    assert code == 0, err
    code, _, err = run(
        "serve", *DUMMY, "--dry-run", "--policy-param", "threshold=128", "--policy", "shift:threshold=-1"
    )
    assert code == 1 and "threshold" in err, err


def a_policy_that_is_nearly_there_is_named():
    for words in (["serve", *DUMMY, "--dry-run"], SIMULATE):
        code, _, err = run(*words, "--policy", "shft")
        assert code == 1 and "there is no shft.lua in policies; did you mean shift?" in err, err
        code, _, err = run(*words, "--policy", "nativ")
        assert code == 1 and "did you mean native?" in err, err


def blocks(path):
    """The fenced blocks of a page: what stands behind the fence, and their text."""
    return re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", open(path).read(), re.S | re.M)


def the_page_on_testing_goes_from_empty_to_green():
    with tempfile.TemporaryDirectory() as folder:
        last, ran = None, 0
        env = {**ENV, "PATH": BUILD + ":" + ENV["PATH"]}
        for kind, text in blocks("policies/TESTING.md"):
            if kind.startswith("lua "):
                open(os.path.join(folder, kind.split()[1]), "w").write(text)
            elif kind == "output":
                assert re.sub(r" : [\d.e-]+ seconds", "", last).strip().endswith(text.strip()), (last, text)
            elif kind == "sh" and "eval" in text:
                last = subprocess.run(
                    ["bash", "-e", "-c", text], cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S
                )
                assert last.returncode == 0 and "1 success / 0 failures" in last.stdout, last
                ran += 1
            elif kind == "sh":
                for line in text.strip().split("\n"):
                    want = re.search(r"# exit status (\d)", line)
                    r = subprocess.run(
                        ["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S
                    )
                    assert r.returncode == int(want[1] if want else 0), (line, r)
                    last, ran = r.stdout, ran + 1
        assert ran == 5, ran


def has_module():
    return os.path.exists(os.path.join(BUILD, "moonshift.so"))  # not under the sanitizers


FCFS = open("policies/fcfs.lua").read()
GREEN = (
    "it('is', function() local e = require('moonshift').engine { policy = '%s' } e:submit {} e:run() e:close() end)\n"
)


WAY = """local way = {}
function way.serve(view, act)
  for _, g in ipairs(view.idle) do
    local b = act.batch(g) b:decodes() b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end
  end
end
return way"""
SHARING = 'return { api = 1, lib = { "way" }, step = function(view, act) lib.way.serve(view, act) end }'


def write(folder, **files):
    for name, text in files.items():
        path = os.path.join(folder, name.replace("__", "/") + ".lua")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write(text)


def which_files_are_tested_and_the_exit_status():
    with tempfile.TemporaryDirectory(prefix="a folder ") as folder:
        good = {
            "a": FCFS,
            "b": FCFS,
            "a_spec": GREEN % "a.lua",
            "spec__b_spec": "require('common') " + GREEN % "b.lua",
            "spec__common": "return {}",
        }
        write(folder, **good)
        a = os.path.join(folder, "a.lua")
        for path, specs, policies in (
            (folder, "a_spec.lua spec/b_spec.lua", 2),
            (a, "a_spec.lua", 1),
            (os.path.join(folder, "b.lua"), "spec/b_spec.lua", 1),
        ):
            code, out, err = run("policy", "test", path)
            assert (
                code == 0 and f"\n{specs}\n" in out and f"policies: {policies} passed, 0 failed; specs: passed" in out
            ), (path, code, out, err)
        code, out, _ = run("policy", "test", os.path.join(folder, "spec", "b_spec.lua"))
        assert code == 0 and "policies: 0 passed, 0 failed; specs: passed" in out, (
            out
        )  # its policy is in the folder above
        # a test of its own fails: the others are still run
        write(
            folder,
            a="return { api = 1, step = function() end, tests = "
            "{ one = function() assert(false, 'wrong') end, two = function() end } }",
        )
        code, out, _ = run("policy", "test", a)
        assert code == 1 and "FAIL one" in out and "wrong" in out and "ok   two" in out, out
        write(folder, a="return { api = 1 }")
        code, out, _ = run("policy", "test", a)
        assert code == 1 and "FAIL it does not load: a.lua: step is missing" in out, out
        write(folder, a=FCFS, a_spec="it('is not', function() assert(false) end)\n")
        code, out, _ = run("policy", "test", a)
        assert code == 1 and "specs: FAILED" in out, out
    with tempfile.TemporaryDirectory() as empty:
        for words, status, says in (
            ((empty,), 1, "has no policy"),
            ((empty + "/none.lua",), 1, "No such file"),
            ((), 2, "which file?"),
            ((empty, "--wach"), 2, "did you mean --watch"),
        ):
            code, _, err = run("policy", "test", *words)
            assert code == status and says in err, (words, code, err)
    code, _, err = run("policy", "tset", "x.lua")
    assert code == 2 and "did you mean test?" in err, err


def without_busted_it_says_what_to_install():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, a=FCFS, a_spec=GREEN % "a.lua")
        bare = {**ENV, "PATH": folder}
        r = subprocess.run([BINARY, "policy", "test", folder], capture_output=True, text=True, timeout=WAIT_S, env=bare)
        assert (
            r.returncode == 3
            and "ok   dry runs" in r.stdout
            and "specs: 1 not run: " in r.stdout
            and "apt-get install" in r.stdout
        ), r
        os.remove(folder + "/a_spec.lua")
        r = subprocess.run([BINARY, "policy", "test", folder], capture_output=True, text=True, timeout=WAIT_S, env=bare)
        assert r.returncode == 0 and "specs: none" in r.stdout, r


def read_until(p, text):
    seen = ""
    while text not in seen:
        line = p.stdout.readline()
        assert line, seen
        seen += line
    return seen


def watching_runs_again_and_ends_with_ctrl_c():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, a=FCFS)
        p = subprocess.Popen([BINARY, "policy", "test", folder, "--watch"], stdout=subprocess.PIPE, text=True, env=ENV)
        try:
            assert "policies: 1 passed" in read_until(p, "Ctrl-C ends")
            write(folder, a="return {")
            assert "FAIL it does not load" in read_until(p, "Ctrl-C ends")
            write(folder, a=FCFS, b=FCFS)
            assert "policies: 2 passed, 0 failed" in read_until(p, "Ctrl-C ends")
            write(folder, spec__common="return {}")  # what specs share counts, too
            assert "policies: 2 passed, 0 failed" in read_until(p, "Ctrl-C ends")
            write(folder, b=SHARING, lib__way=WAY)
            assert "policies: 2 passed, 0 failed" in read_until(p, "Ctrl-C ends")
            write(folder, lib__way="return {")  # and what policies share
            assert "lib/way.lua:1: " in read_until(p, "Ctrl-C ends")
            p.send_signal(signal.SIGINT)
            assert p.wait(WAIT_S) == 0
        finally:
            p.kill()
            p.wait()
            p.stdout.close()


def installed_it_is_found_from_any_folder():
    with tempfile.TemporaryDirectory() as prefix:
        r = subprocess.run(
            ["cmake", "--install", BUILD, "--prefix", prefix], capture_output=True, text=True, timeout=WAIT_S
        )
        assert r.returncode == 0, r
        there = os.path.join(prefix, "bin", "moonshift")
        r = subprocess.run(
            [there, "lua-path", "--cpath"], capture_output=True, text=True, timeout=WAIT_S, env=ENV, cwd="/"
        )
        assert r.returncode == 0 and r.stdout == os.path.realpath(prefix) + "/lib/lua/5.1/?.so\n", r
        r = subprocess.run(
            [
                "bash",
                "-c",
                f'eval "$({there} lua-path)"; cd /; luajit -e "print(require([[moonshift]]).engine {{}}:now())"',
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env=ENV,
        )
        assert r.returncode == 0 and r.stdout == "0\n", r
        write(prefix, own=FCFS, own_spec=GREEN % "own.lua")
        r = subprocess.run(
            [there, "policy", "test", prefix], capture_output=True, text=True, timeout=WAIT_S, env=ENV, cwd="/"
        )
        assert r.returncode == 0 and "specs: passed" in r.stdout, r
        r = subprocess.run(
            [
                there,
                "serve",
                "--load-format",
                "dummy",
                "--hf-config",
                os.path.abspath("tests/data/sim_model.json"),
                "--device",
                "sim",
                "--dry-run",
                "--policy",
                "fair",
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env=ENV,
            cwd="/",
        )
        assert r.returncode == 0, r


LIMITED = """return { api = 1,
  admit = function(r, view, act)
    if r.open_ended then act.refuse(r, 429, 7, "say max_tokens") return end
    local waiting, running = view.tenant(r.tenant)
    assert(r.again or waiting + running >= 1)
  end,
  step = function(view, act)
    for _, g in ipairs(view.idle) do
      local b = act.batch(g) b:decodes() b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end
    end
  end }"""


def a_policy_knows_who_gave_no_limit_in_serve_and_in_simulate():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, limited=LIMITED)
        policy, trace, result = (os.path.join(folder, f) for f in ("limited.lua", "trace.csv", "out.json"))
        open(trace, "w").write(
            "arrival_s,input_tokens,output_tokens,tenant,open_ended\n"
            + "".join(f"{i * 0.1},20,5,t{i % 3},{int(i % 4 == 0)}\n" for i in range(20))
        )
        code, _, err = run(
            "simulate",
            "--hf-config",
            "tests/data/sim_model.json",
            "--trace",
            trace,
            "--policy",
            policy,
            "--json",
            result,
        )
        assert code == 0, err
        refused = re.search(r'"refused":\s*(\d+)', open(result).read())
        assert refused and refused[1] == "5", open(result).read()[:3000]
        p = subprocess.Popen(
            [BINARY, "serve", *DUMMY, "--port", "0", "--chat-template", "chatml", "--policy", policy],
            stderr=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        try:
            port = None
            for line in p.stderr:
                port = re.search(r"on http://127.0.0.1:(\d+)", line)
                if port:
                    break
            for more, status in (({}, 429), ({"max_tokens": 3}, 200), ({"max_completion_tokens": 3}, 200)):
                body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **more}).encode()
                ask = urllib.request.Request(
                    f"http://127.0.0.1:{port[1]}/v1/chat/completions", body, {"Content-Type": "application/json"}
                )
                try:
                    with urllib.request.urlopen(ask, timeout=WAIT_S) as r:
                        got, text = r.status, r.read().decode()
                except urllib.error.HTTPError as e:
                    got, text = e.code, e.read().decode()
                    e.close()
                assert got == status and (status == 200 or "say max_tokens" in text), (more, got, text)
        finally:
            p.terminate()
            p.communicate(timeout=WAIT_S)


def code_is_shared_by_every_command():
    with tempfile.TemporaryDirectory() as folder:
        policy = os.path.join(folder, "mine.lua")
        write(folder, mine=SHARING, lib__way=WAY, mine_spec=GREEN % "mine.lua")
        code, out, err = run("policy", "check", policy)
        assert code == 0 and "libs: way" in out, (out, err)
        first = re.search(r"version: (\w+)", out)[1]
        code, out, err = run("policy", "test", folder)
        assert code in (0, 3), (out, err)
        assert "policies: 1 passed, 0 failed" in out and ("specs: passed" in out or not has_module()), (out, err)
        code, _, err = run(*SIMULATE, "--policy", policy)
        assert code == 0, err
        code, _, err = run("serve", *DUMMY, "--dry-run", "--policy", "mine", "--policy-dir", folder)
        assert code == 0, err
        write(folder, lib__way=WAY + "\n")
        code, out, _ = run("policy", "check", policy)
        assert re.search(r"version: (\w+)", out)[1] != first, out
        os.remove(os.path.join(folder, "lib", "way.lua"))
        code, _, err = run(*SIMULATE, "--policy", policy)
        assert code == 1 and "mine.lua:1: there is no lib/way.lua in " + folder in err, err


def a_new_policy_passes_its_tests_and_nothing_is_overwritten():
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        read = lambda name: open(at(name)).read()
        code, out, err = run("policy", "new", "mine", cwd=folder)
        assert code == 0 and out.startswith("mine.lua\n"), (out, err)
        code, out, err = run("policy", "test", at("mine.lua"))
        assert code == 0 and "policies: 1 passed, 0 failed" in out and out.count("  ok   ") == 3, (out, err)
        open(at("mine.lua"), "a").write("-- mine\n")
        before = read("mine.lua")
        for name in ("mine", "mine.lua", "./mine"):
            code, out, err = run("policy", "new", name, cwd=folder)
            assert code == 1 and not out and "mine.lua is there already" in err, (out, err)
        assert read("mine.lua") == before
        code, out, err = run("policy", "new", at("copy.lua"), "--from", "shortest")
        assert code == 0, err
        assert read("copy.lua") == open("policies/shortest.lua").read()
        assert sorted(os.listdir(at("lib"))) == ["order.lua", "serve.lua"], os.listdir(at("lib"))
        code, out, err = run(
            "policy", "new", at("again"), "--from", at("copy.lua")
        )  # its libraries are there, and the same
        assert code == 0 and "lib/" not in out, (out, err)
        open(at("lib/serve.lua"), "a").write("-- mine\n")
        code, out, err = run("policy", "new", at("other"), "--from", "prefix")
        assert code == 1 and not out and "lib/serve.lua is there already, and is another one" in err, (out, err)
        assert not os.path.exists(at("other.lua")) and read("lib/serve.lua").endswith("-- mine\n")
        code, out, err = run("policy", "test", folder)
        assert code == 0 and "policies: 3 passed, 0 failed" in out, (out, err)
        for words, says in (
            ((), "what shall it be called?"),
            (("a b",), "a policy's name has 1 to 40 letters"),
            (("x", "--from", "shortst"), "did you mean shortest?"),
            (("x", "--from", "native"), "--from wants a policy's NAME or FILE"),
            (("x", "--from", "fcfs:budget=4"), "--from wants a policy's NAME or FILE"),
            (("none/x",), "none/x.lua cannot be written"),
        ):
            code, out, err = run("policy", "new", *words)
            assert code in (1, 2) and not out and says in err, (words, code, out, err)
        assert not os.path.exists("x.lua")


CASES = [
    a_new_policy_passes_its_tests_and_nothing_is_overwritten,
    code_is_shared_by_every_command,
    a_policy_knows_who_gave_no_limit_in_serve_and_in_simulate,
    serve_takes_params_with_the_policy_as_simulate_does,
    a_policy_that_is_nearly_there_is_named,
    watching_runs_again_and_ends_with_ctrl_c,
]
if has_module():
    CASES += [
        without_busted_it_says_what_to_install,
        the_page_on_testing_goes_from_empty_to_green,
        which_files_are_tested_and_the_exit_status,
        installed_it_is_found_from_any_folder,
    ]

cases.run(CASES)
