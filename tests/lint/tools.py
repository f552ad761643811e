"""The formatters and linters, in the one version that requirements.txt names: of this machine where it has that one,
else fetched into the build folder. Other versions judge differently, and what passes here must pass everywhere."""

import fcntl
import os
import re
import shutil
import subprocess
import sys

PLACE = os.path.join(os.path.abspath(os.environ.get("MOONSHIFT_BUILD", "build")), "lint-tools")


def pins():
    """Program: (package, version)."""
    found = {}
    with open("tests/lint/requirements.txt", encoding="utf-8") as f:
        for line in f:
            package, version = line.strip().split("==")
            found[package.removesuffix("-py")] = (package, version)
    return found


def right(path, version):
    """Whether this program is of that version; a package may count one digit more than its program."""
    if not path or not os.path.exists(path):
        return False
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    m = re.search(r"\d+(\.\d+)+", said)
    return bool(m) and (version + ".").startswith(m.group() + ".")


def fetch(package, version):
    os.makedirs(PLACE, exist_ok=True)
    with open(os.path.join(PLACE, "lock"), "w") as lock:  # lints may run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = os.path.join(PLACE, "bin", "python3")
        for command in (
            [sys.executable, "-m", "venv", PLACE],
            [python, "-m", "pip", "-q", "--disable-pip-version-check", "install", f"{package}=={version}"],
        ):
            r = subprocess.run(command, capture_output=True, text=True)
            if r.returncode:
                sys.exit(f"{package} {version} is not here, and could not be fetched:\n{r.stdout}{r.stderr}")


def tool(name):
    package, version = pins()[name]
    mine = os.path.join(PLACE, "bin", name)
    major = version.split(".")[0]
    for path in (mine, shutil.which(name), shutil.which(f"{name}-{major}")):
        if right(path, version):
            return path
    fetch(package, version)
    if not right(mine, version):
        sys.exit(f"{mine} is not {name} {version}")
    return mine


if __name__ == "__main__":
    for name in sys.argv[1:] or pins():
        print(tool(name))
