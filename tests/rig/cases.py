"""Runs the cases of an end-to-end test, all or those named on the command line, and closes with "N passed, N
failed"."""

import glob
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error


def end_children():
    """What a failed case has started and not ended would hold the test's output open, and load the next case."""
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            pid, _, rest = open(stat).read().partition(" ")
        except OSError:  # it has ended meanwhile
            continue
        if int(rest.rpartition(")")[2].split()[1]) == os.getpid():
            os.kill(int(pid), signal.SIGKILL)


def told(e):
    if isinstance(e, urllib.error.HTTPError):
        return f"{e}: {e.read().decode(errors='replace')}"
    return str(e)


def run(cases, in_folder=False):
    """in_folder: each case is called with an empty folder of its own; KEEP=PATH keeps that of a case that failed."""
    wanted = [c for c in cases if not sys.argv[1:] or c.__name__ in sys.argv[1:]]
    failed = 0
    for case in wanted:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(folder) if in_folder else case()
            except Exception as e:  # a case's every failure is reported, and the others still run
                failed += 1
                at = e.__traceback__.tb_next
                print(f"{case.__name__}: {type(e).__name__}: line {at.tb_lineno if at else '?'}: {told(e)[:3000]}")
                end_children()
                if in_folder and os.environ.get("KEEP"):
                    shutil.copytree(folder, os.path.join(os.environ["KEEP"], case.__name__), dirs_exist_ok=True)
        if "MOONSHIFT_TEST_TIMES" in os.environ:
            print(f"{case.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
