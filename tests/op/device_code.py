"""What nvcc makes of the kernels in which a slip costs much and shows nowhere else without a GPU: warp groups' products
stay side by side, nothing spills, a CTA has enough registers, waits are bounded, and sampling adds 32 bits at a time in
shared memory. Without nvcc there is nothing to look at."""

import os
import re
import shutil
import sys

sys.path.insert(0, "tests/bench/gpu")
from resources import compile_file, report

REGISTERS = 65536
HOPPER, SAMPLE = "kernels/cuda/flash_hopper.cu", "kernels/cuda/sample.cu"
faults = []


def check(holds, what):
    if not holds:
        faults.append(what)


def entries(ptx):
    """The text of each kernel."""
    return re.split(r"\.entry ", ptx)[1:]


def main():
    nvcc = shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    if not nvcc or not shutil.which("c++filt"):
        print("no nvcc here: nothing was checked")
        return
    for path in (HOPPER, SAMPLE):
        kernels, remarks = report(nvcc, path, "90a")
        check(not remarks, f"{path}: ptxas remarks: {'; '.join(remarks)}")
        check(kernels, f"{path}: no kernels")
        ptx = compile_file(nvcc, path, "90a", "-ptx", "-o", "-").stdout
        threads = [int(m) for m in re.findall(r"\.maxntid (\d+)", ptx)]
        check(len(threads) == len(kernels), f"{path}: a kernel does not say how many threads it has")
        for name, registers, _, stack, stores, loads in kernels:
            check({stack, stores, loads} == {"0"}, f"{name}: {stack} bytes of stack, {stores} and {loads} spilled")
            check(
                int(registers) * max(threads, default=1024) <= REGISTERS,
                f"{name}: {registers} registers for {max(threads, default=1024)}",
            )
        wide = re.findall(r"(?:atom|red)\S*\.shared\S*\.[ub]64", ptx)
        check(not wide, f"{path}: {len(wide)} atomic operations of 64 bits in shared memory")
        for kernel in entries(ptx) if path == HOPPER else ():
            # a wait is three such instructions: the first, and the loop with its first turn apart
            waits, traps = len(re.findall(r"mbarrier\.try_wait", kernel)), len(re.findall(r"\btrap;", kernel))
            check("wgmma.mma_async" in kernel, "a kernel of warp groups has no products of theirs")
            check(waits > 0 and 3 * traps >= waits, f"{waits} waits for a barrier, {traps} that give up")
    if faults:
        sys.exit("\n".join(faults))
    print("as it should be")


main()
