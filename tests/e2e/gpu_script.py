#!/usr/bin/env python3
"""tests/gpu.sh with programs that only pretend: what it does when one fails, hangs, takes the GPU with it, when
cuBLASLt is hidden or nowhere, when tools do not work, and when it is cut off. And what its scripts make of the output
of others. The real programs run through it in tests/e2e/gpu_archive.sh."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/rig")
sys.path.insert(0, "tests/gpu")
sys.path.insert(0, "tests/bench/gpu")
import cases
import cut
import gaps
import peer

PROGRAMS = "gpu_facts nll_layouts gpu_bench models_bench test_gpu_cuda_hopper test_gpu_cuda_flash"
PROGRAMS += " test_gpu_cuda_products test_gpu_cuda_graphs test_gpu_cuda_ops test_gpu_cuda_f8 test_gpu_cuda_modes"
PROGRAMS += " test_gpu_cuda_halves"
PROGRAMS += " test_gpu_cuda_forward test_gpu_layout_switch test_gpu_layout_drafts test_gpu_layout_pool_switch"
FINE = "echo fine"
BENCH = 'echo "decode  Llama-3.1-8B batch  1 context 1024  4.000 ms (device"; echo "G1 0.75 (goal 0.80) decode"'


def script(path, body):
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/bash\n{body}\n")
    os.chmod(path, 0o755)


def unpacked(folder, **bodies):
    """The archive, unpacked in `folder`, with programs that pretend."""
    root = os.path.join(folder, "moonshift-gpu")
    for f in ("tests/gpu", "built/tests", "tools"):
        os.makedirs(os.path.join(root, f))
    shutil.copy("tests/gpu.sh", os.path.join(root, "tests"))
    for f in ("check.sh", "find.sh", "answer.sh"):
        shutil.copy(os.path.join("tests/gpu", f), os.path.join(root, "tests/gpu"))
    script(os.path.join(root, "built/moonshift"), bodies.get("moonshift", FINE))
    for name in PROGRAMS.split():
        body = bodies.get(name, BENCH if name == "models_bench" else FINE)
        script(os.path.join(root, "built/tests", name), body)
    with open(os.path.join(root, "built/glibc"), "w", encoding="utf-8") as f:
        f.write(bodies.get("glibc", "2.17") + "\n")
    for tool in ("ncu", "compute-sanitizer", "nvidia-smi"):
        if tool in bodies:
            script(os.path.join(root, "tools", tool), bodies[tool])
    return root


def start(root, which="first", **env):
    out = os.path.join(os.path.dirname(root), "out")
    env = {"PATH": f"{root}/tools:/usr/bin:/bin", "OUT": out, "GPU_LIMIT": "3", "GPU_PYTHON": "no-python", **env}
    command = [os.path.join(root, "tests/gpu.sh"), which]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def results(root, which="first"):
    with open(os.path.join(os.path.dirname(root), "out", f"gpu-{which}.txt"), encoding="utf-8") as f:
        return f.read()


def so_far(root):
    """Its folder is there before the file is."""
    try:
        return results(root)
    except FileNotFoundError:
        return ""


def run(root, which="first", **env):
    p = start(root, which, **env)
    said, _ = p.communicate(timeout=120)
    return p.returncode, said


def last(text):
    return text.strip().splitlines()[-1]


def all_that_works_passes_in_order(folder):
    root = unpacked(folder)
    status, said = run(root)
    assert status == 0 and re.fullmatch(r"\d+ passed, 0 failed, \d+ left", last(said)), said
    order = [
        "a GPU runs a kernel",
        "cuBLASLt loads",
        "attention beside",
        "graphs beside",
        "whole models",
        "ranks on one",
    ]
    at = [said.index(name) for name in order]
    assert at == sorted(at), said
    assert "left    compute-sanitizer: not here" in said and "left    starting: no Python here" in said, said
    whole = results(root)
    assert "G1 0.75" in whole.split("goals of this run:")[1] and last(whole) == last(said)
    assert whole.count("\nfine\n") >= 8, "what programs print is in the results"


def the_second_call_has_its_own_file(folder):
    root = unpacked(folder)
    status, said = run(root, "second")
    assert status == 0 and last(results(root, "second")) == last(said), said
    assert "switching never shows" in said and "left    torch" in said, said


def one_failure_is_named_and_the_rest_runs(folder):
    root = unpacked(folder, test_gpu_cuda_products="echo 'case 7: 0.3 > 0.1'; exit 1")
    status, said = run(root)
    assert status == 1 and ", 1 failed," in last(said), said
    assert "FAILED  few-row products, tiles, inputs beside float64 (status 1" in said, said
    assert "ok      graphs" in said and "case 7" in results(root)


def what_skips_has_not_passed(folder):
    status, said = run(unpacked(folder, test_gpu_cuda_graphs="echo '[  SKIPPED ] graphs'"))
    assert status == 1 and "FAILED  graphs" in said, said


def what_hangs_is_stopped(folder):
    root = unpacked(folder, test_gpu_cuda_flash="trap '' TERM; echo began; while :; do sleep 1; done")
    began = time.time()
    status, said = run(root)
    assert status == 1 and "FAILED  attention beside float64 (stopped after its limit" in said, said
    assert "ok      graphs" in said and "began" in results(root) and time.time() - began < 60


def a_lost_gpu_leaves_the_rest(folder):
    mark = os.path.join(folder, "lost")
    facts = f'[ ! -e {mark} ] || [ -n "$1" ] || exit 1; echo fine'
    root = unpacked(folder, gpu_facts=facts, test_gpu_cuda_products=f"touch {mark}; exit 139")
    status, said = run(root)
    assert status == 1 and "(segmentation fault" in said and ", 1 failed," in last(said), said
    assert "left    graphs beside single launches: the GPU does not answer any more" in said, said


def no_gpu_ends_it(folder):
    status, said = run(unpacked(folder, gpu_facts="echo no CUDA-capable device is detected; exit 1"))
    assert status == 1 and "FAILED  a GPU runs a kernel" in said, said
    assert "left    attention beside float64: not without: a GPU runs a kernel" in said, said


def an_old_c_library_is_named(folder):
    root = unpacked(folder, glibc="9.99")
    status, said = run(root)
    assert status == 1 and "FAILED  this machine's C library" in said and "9.99 needed" in results(root), said


# As the loader: from LD_LIBRARY_PATH.
LOADER = """[ "$1" = --libraries ] || { echo fine; exit; }
IFS=: read -ra folders <<<"$LD_LIBRARY_PATH"
for f in "${folders[@]}"; do [ ! -f "$f/libcublasLt.so%s" ] || { echo "from $f"; exit 0; }; done
exit 1"""


def a_hidden_library_is_found(folder):
    root, kit = unpacked(folder, gpu_facts=LOADER % ".13"), os.path.join(folder, "kit")
    os.makedirs(os.path.join(kit, "lib64"))
    open(os.path.join(kit, "lib64/libcublasLt.so.13"), "w").close()
    status, said = run(root, CUDA_HOME=kit)
    assert status == 0 and f"cuBLASLt is in {kit}/lib64" in said and "ok      cuBLASLt loads" in said, said


def a_library_of_another_version_is_taken_by_its_bare_name(folder):
    root, kit = unpacked(folder, gpu_facts=LOADER % ""), os.path.join(folder, "kit")
    os.makedirs(os.path.join(kit, "lib64"))
    open(os.path.join(kit, "lib64/libcublasLt.so.12"), "w").close()
    status, said = run(root, CUDA_HOME=kit, PATH=only_coreutils(folder, "bash"))
    assert status == 0 and "ok      cuBLASLt loads" in said, said


def no_library_is_a_failure(folder):
    root = unpacked(folder, gpu_facts=LOADER % ".none")
    status, said = run(root, PATH=only_coreutils(folder, "bash"))
    assert status == 1 and "no cuBLASLt was found" in said and "FAILED  cuBLASLt loads" in said, said
    assert "ok      attention" in said, said


def only_coreutils(folder, *more):
    """A folder with bash and coreutils alone: no grep, awk, sed, find or python."""
    place = os.path.join(folder, "bin")
    os.makedirs(place)
    names = (
        "basename cat chmod cp date dirname env head kill ln ls mkdir mktemp mv nproc printf rm sleep sort stat tail"
    )
    names += " tee test timeout touch tr true uname uniq wc"
    for name in [*names.split(), *more]:
        if path := shutil.which(name, path="/usr/bin:/bin"):
            os.symlink(path, os.path.join(place, name))
    return place


def bash_and_coreutils_are_enough(folder):
    status, said = run(unpacked(folder), PATH=only_coreutils(folder, "bash"))
    assert status == 0 and "not found" not in said, said


def tools_that_do_not_work_are_left(folder):
    root = unpacked(folder, **{"compute-sanitizer": "echo Device not supported; exit 1", "ncu": "exit 9"})
    status, said = run(root)
    assert status == 0 and "left    compute-sanitizer: it does not work on this machine" in said, said
    assert "left    ncu: it does not work" in said, said


def what_a_tool_finds_is_a_failure(folder):
    body = 'case "$*" in *gpu_facts*) exit 0 ;; *flash*) echo Invalid read; exit 9 ;; *) sleep 30 ;; esac'
    root = unpacked(folder, **{"compute-sanitizer": body})
    status, said = run(root, GPU_SECONDS="60")
    assert status == 1 and "FAILED  compute-sanitizer memcheck, attention (status 9" in said, said
    assert "left    compute-sanitizer memcheck, every op: it did not end in time" in said, said


def what_is_killed_has_said_what_it_saw(folder):
    root = unpacked(folder, test_gpu_cuda_products="echo half of it; sleep 20")
    p = start(root, GPU_LIMIT="60")
    deadline = time.time() + 60
    while "half of it" not in so_far(root):
        assert time.time() < deadline
        time.sleep(0.1)
    os.killpg(p.pid, signal.SIGKILL)
    p.wait(30)
    assert "ok      attention beside float64" in results(root) and "half of it" in results(root)


def an_interrupted_run_ends_with_its_sums(folder):
    root = unpacked(folder, test_gpu_cuda_products="echo half of it; sleep 20")
    p = start(root, GPU_LIMIT="60")
    while "half of it" not in so_far(root):
        time.sleep(0.1)
    p.terminate()
    said, _ = p.communicate(timeout=60)
    assert "interrupted" in said and ", 1 failed," in last(said) and last(results(root)) == last(said), said


def the_time_is_kept(folder):
    root = unpacked(folder, test_gpu_cuda_flash="sleep 20")
    status, said = run(root, GPU_SECONDS="9", GPU_LIMIT="60")
    assert "left    attention beside float64: cut, the time is over" in said, said
    assert "left    graphs beside single launches: the time is over" in said, said
    assert status == 0, said


def the_limits_fit(folder):
    root = unpacked(folder)
    status, said = run(root, GPU_LIST="1", GPU_LIMIT="")
    planned, of = map(int, re.search(r"(\d+) s in all before tools, of (\d+)", said).groups())
    assert status == 0 and planned <= of <= 540, said


def gaps_are_what_no_kernel_took(folder):
    text = '==PROF== x\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    text += (
        '"0","a(int)","gpu__time_duration.sum","us","1,500.0"\n"1","b(int)","gpu__time_duration.sum","ns","500000"\n'
    )
    assert [(n, round(ms, 6)) for n, ms in gaps.kernels(text)] == [("a(int)", 1.5), ("b(int)", 0.5)]
    ncu, ours = os.path.join(folder, "ncu"), os.path.join(folder, "ours")
    script(ncu, f"cat <<'TEXT'\n{text}TEXT")
    script(ours, "decode  Llama-3.1-8B     batch  1 context 1024     2.500 ms (device    2.4)")
    r = subprocess.run([sys.executable, "tests/gpu/gaps.py", ncu, "bench", ours], capture_output=True, text=True)
    assert r.returncode == 0 and "G10 0.20 (goal at most 0.05) gaps: a step of 2.500 ms, 2 kernels" in r.stdout, r


def the_peer_is_set_beside_the_same_cases(folder):
    ours = os.path.join(folder, "ours")
    script(
        ours,
        "decode  Qwen3-8B         batch  1 context 1024     2.000 ms (device\n"
        "prefill Qwen3-8B         tokens  2048              9.000 ms (device",
    )
    peer.said[:] = [
        "torch decode  Qwen3-8B      batch  1 context 1024     3.000 ms       333 tok/s",
        "torch prefill Qwen3-8B      tokens  2048     4.500 ms    100 tok/s",
        "torch decode  Other         batch  1 context 1024     1.000 ms       333 tok/s",
    ]
    peer.beside(ours, False)
    assert peer.said[-1].startswith("G12 0.50 (goal 0.95)"), peer.said
    assert sum("times as fast" in line for line in peer.said) == 2, peer.said


def a_cut_model_keeps_its_weights(folder):
    """Two layers of three and two tokens of three: names, sizes and bytes of what stays."""
    table, layers = bytes(range(24)), [bytes([10 * i + k for k in range(8)]) for i in (1, 2, 3)]
    tensors = [(b"token_embd.weight", [2, 3], table)]
    tensors += [(b"blk.%d.attn_norm.weight" % i, [2], b) for i, b in enumerate(layers)]
    words = (cut.STRING, [b"a", b"b", b"ab"])
    values = [(b"general.architecture", cut.STRING, b"llama"), (b"llama.block_count", cut.UINT32, 3)]
    values += [(b"tokenizer.ggml.tokens", cut.ARRAY, words), (b"tokenizer.ggml.merges", cut.ARRAY, (8, [b"a b"]))]
    data = bytearray(cut.struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(values)))
    for key, kind, v in values:
        data += cut.text_bytes(key) + cut.struct.pack("<I", kind) + cut.value_bytes(kind, v)
    for i, (name, sizes, _) in enumerate(tensors):
        data += cut.text_bytes(name) + cut.struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, 32 * i)
    data += bytes(-len(data) % 32)
    for _, _, b in tensors:
        data += b + bytes(-len(b) % 32)
    out = bytes(cut.cut(bytes(data), [0, 2], 2))
    r = cut.Reader(out)
    _, _, n, n_values = r.take("I"), r.take("I"), r.take("Q"), r.take("Q")
    got = {}
    for _ in range(n_values):
        key, kind = r.text(), r.take("I")
        got[key] = r.value(kind)
    assert got[b"llama.block_count"] == 2 and got[b"tokenizer.ggml.tokens"][1] == [b"a", b"b"]
    assert got[b"tokenizer.ggml.merges"][1] == [], "a merge without its word goes"
    head = [(r.text(), [r.take("Q") for _ in range(r.take("I"))], r.take("I"), r.take("Q")) for _ in range(n)]
    base = (r.at + 31) // 32 * 32
    assert [h[0] for h in head] == [b"token_embd.weight", b"blk.0.attn_norm.weight", b"blk.1.attn_norm.weight"]
    kept = [bytes(out[base + h[3] : base + h[3] + len(b)]) for h, b in zip(head, (table[:16], layers[0], layers[2]))]
    assert head[0][1] == [2, 2] and kept == [table[:16], layers[0], layers[2]], kept


cases.run(
    [
        all_that_works_passes_in_order,
        the_second_call_has_its_own_file,
        one_failure_is_named_and_the_rest_runs,
        what_skips_has_not_passed,
        what_hangs_is_stopped,
        a_lost_gpu_leaves_the_rest,
        no_gpu_ends_it,
        an_old_c_library_is_named,
        a_hidden_library_is_found,
        a_library_of_another_version_is_taken_by_its_bare_name,
        no_library_is_a_failure,
        bash_and_coreutils_are_enough,
        tools_that_do_not_work_are_left,
        what_a_tool_finds_is_a_failure,
        what_is_killed_has_said_what_it_saw,
        an_interrupted_run_ends_with_its_sums,
        the_time_is_kept,
        the_limits_fit,
        gaps_are_what_no_kernel_took,
        the_peer_is_set_beside_the_same_cases,
        a_cut_model_keeps_its_weights,
    ],
    in_folder=True,
)
