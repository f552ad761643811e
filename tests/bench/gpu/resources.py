"""What ptxas says of every kernel: registers, shared memory, stack, spills; one line a kernel and architecture. Needs
nvcc and c++filt, no GPU. python3 tests/bench/gpu/resources.py [NVCC] > tests/bench/results/gpu-resources.txt"""

import glob
import re
import subprocess
import sys

ARCHES = ("80", "90a")
nvcc = sys.argv[1] if len(sys.argv) > 1 else "nvcc"


def report(path, arch):
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        "--fmad=false",
        "-I.",
        f"-arch=sm_{arch}",
        "-Xptxas",
        "-v",
        "-c",
        path,
        "-o",
        "/dev/null",
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    name = stack = None
    for line in text.split("\n"):
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name = subprocess.run(["c++filt", m.group(1)], capture_output=True, text=True, check=True).stdout.strip()
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack = m.groups()
        elif name and (m := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            name = re.sub(r"^void |\([a-z_]+\)(?=\d)|\([^()]*\)$", "", name)
            yield name, m.group(1), shared.group(1) if shared else "0", *stack
            name = None


print(
    "Numbers in a kernel's name are its family (kernels/cuda/weight.h), half_type (0 f16, 1 bf16), what a cache holds "
    "(0 f16, 1 bf16, 2 fp8) or dtype, and sizes."
)
print(
    "Shared memory asked for at the launch is not in it. flash_hopper_kernel is empty but for 90a; there it begins "
    "with 168 registers, of which its copying warps keep 56 and the others have 224."
)
print(subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.strip().split("\n")[-1])
print(f"{'kernel':44} {'arch':>5} {'regs':>5} {'shared':>7} {'stack':>6} {'spilled: stored':>16} {'loaded':>7}")
for arch in ARCHES:
    for source in sorted(glob.glob("kernels/cuda/*.cu")):
        for name, registers, shared, stack, stores, loads in report(source, arch):
            print(f"{name:44} {arch:>5} {registers:>5} {shared:>7} {stack:>6} {stores:>16} {loads:>7}")
