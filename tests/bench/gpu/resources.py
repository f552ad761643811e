"""What ptxas says of every kernel: registers, shared memory, stack, spills; one line a kernel and architecture, and
below them what it warns of or remarks, such as products of warp groups that it had to put one after the other. Needs
nvcc and c++filt, no GPU. python3 tests/bench/gpu/resources.py [NVCC] > tests/bench/results/gpu-resources.txt"""

import glob
import re
import subprocess
import sys

ARCHES = ("80", "90a")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True)


def compile_file(nvcc, path, arch, *options):
    return run(nvcc, "-std=c++17", "-O3", "--fmad=false", "-I.", f"-arch=sm_{arch}", *options, path)


def remarks_in(text):
    """Lines with a number of their own (C7510: wgmma serialised), and warnings."""
    return [line.strip() for line in text.split("\n") if re.search(r"\(C\d+\)|[Ww]arning", line)]


def report(nvcc, path, arch):
    """Of each kernel its name, registers, shared memory, stack, spills stored and loaded; and the remarks."""
    text = compile_file(nvcc, path, arch, "-Xptxas", "-v", "-c", "-o", "/dev/null").stderr
    name = stack = None
    kernels = []
    for line in text.split("\n"):
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name = run("c++filt", m.group(1)).stdout.strip()
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack = m.groups()
        elif name and (m := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            name = re.sub(r"^void |\([a-z_]+\)(?=\d)|\([^()]*\)$", "", name)
            kernels.append((name, m.group(1), shared.group(1) if shared else "0", *stack))
            name = None
    return kernels, remarks_in(text)


def main():
    nvcc = sys.argv[1] if len(sys.argv) > 1 else "nvcc"
    print(
        "Numbers in a kernel's name are its family (kernels/cuda/weight.h), half_type (0 f16, 1 bf16), what a cache "
        "holds (0 f16, 1 bf16, 2 fp8) or dtype, and sizes."
    )
    print(
        "Shared memory asked for at the launch is not in it. flash_hopper_kernel is empty but for 90a; there it begins "
        "with 168 registers, of which its copying warps keep 56 and the others have 224."
    )
    print(run(nvcc, "--version").stdout.strip().split("\n")[-1])
    print(f"{'kernel':44} {'arch':>5} {'regs':>5} {'shared':>7} {'stack':>6} {'spilled: stored':>16} {'loaded':>7}")
    remarks = []
    for arch in ARCHES:
        for source in sorted(glob.glob("kernels/cuda/*.cu")):
            kernels, remarked = report(nvcc, source, arch)
            remarks += [f"{source} for {arch}: {line}" for line in remarked]
            for name, registers, shared, stack, stores, loads in kernels:
                print(f"{name:44} {arch:>5} {registers:>5} {shared:>7} {stack:>6} {stores:>16} {loads:>7}")
    print("\n".join(remarks) if remarks else "ptxas remarks nothing.")


if __name__ == "__main__":
    main()
