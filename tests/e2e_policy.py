"""What an author of policies meets at the command line."""
import os
import subprocess
import sys

BUILD = os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build"))
BINARY = os.path.join(BUILD, "moonshift")
DUMMY = ["--load-format", "dummy", "--hf-config", "tests/data/sim_model.json", "--device", "sim"]
SIMULATE = ["simulate", "--hf-config", "tests/data/sim_model.json", "--trace", "poisson:rate=50,requests=5,input=10,output=3"]
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
        for asked, says in (("shift:treshold=1", "did you mean 'threshold'?"), ("shift:128", "parameters as NAME=VALUE, not '128'"), ("shift:threshold=-3", "threshold"),
                            ("shift:threshold=1,x", "parameters are NAME=VALUE, not 'x'")):
            code, _, err = run(command, *words, "--policy", asked)
            assert code == 1 and says in err, (command, asked, err)
    # what is said with the policy wins over what is said apart; only one of the two is a number that shift takes
    code, _, err = run("serve", *DUMMY, "--dry-run", "--policy-param", "threshold=-1", "--policy", "shift:threshold=128")
    assert code == 0, err
    code, _, err = run("serve", *DUMMY, "--dry-run", "--policy-param", "threshold=128", "--policy", "shift:threshold=-1")
    assert code == 1 and "threshold" in err, err


def a_policy_that_is_nearly_there_is_named():
    for words in (["serve", *DUMMY, "--dry-run"], SIMULATE):
        code, _, err = run(*words, "--policy", "shft")
        assert code == 1 and "there is no shft.lua in policies; did you mean shift?" in err, err
        code, _, err = run(*words, "--policy", "nativ")
        assert code == 1 and "did you mean native?" in err, err


CASES = [serve_takes_params_with_the_policy_as_simulate_does, a_policy_that_is_nearly_there_is_named]


def main():
    wanted = [c for c in CASES if not sys.argv[1:] or c.__name__ in sys.argv[1:]]
    failed = 0
    for case in wanted:
        try:
            case()
        except Exception as e:  # a case's every failure is reported, and the others still run
            failed += 1
            print(f"{case.__name__}: {type(e).__name__}: {str(e)[:2000]}")
    print(f"{len(wanted) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
