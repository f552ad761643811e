"""Every metric moves: a server on the simulated device is led through a scenario, and each series that it can print is
seen to move in the step that MOVES names. A metric without an entry fails, whether it is served or only written
somewhere in the sources: add it to MOVES with the step that moves it, or with why it cannot move here."""

import atexit
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

BINARY = os.path.join(os.environ.get("MOONSHIFT_BUILD", "build"), "moonshift")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOONSHIFT_")}
WAIT_S = 60
KEYS = {"blue": "sk-blue", "": "sk-plain"}
MARK = 770077  # the priority of a request that makes a bad policy bad


class Fixed(str):
    """It stands for a setting: why it does not move."""


class Elsewhere(tuple):
    """(file, word): what it takes cannot be had from a server on the simulated device; that test asserts it by this
    word."""


MOVES = {  # a series (all its labels, or some: the entry with the most wins) and the step that moves it
    "vllm:num_requests_running": "crowd",
    "vllm:num_requests_waiting": "crowd",
    'vllm:num_requests_waiting_by_reason{reason="capacity"}': "crowd",
    'vllm:num_requests_waiting_by_reason{reason="deferred"}': "siblings",
    'vllm:num_requests_waiting_by_reason{reason="held"}': "hold",
    "vllm:kv_cache_usage_perc": "crowd",
    "moonshift:device_parts_off": Fixed("the CPU has no parts that are tried; tests/emulated/check.c"),
    "vllm:engine_sleep_state": Fixed("the engine never sleeps"),
    "vllm:cache_config_info": Fixed("labels of a running server"),
    "vllm:prompt_tokens_total": "answer",
    "vllm:prompt_tokens_cached_total": "again",
    "vllm:generation_tokens_total": "answer",
    "vllm:prefix_cache_queries_total": "answer",
    "vllm:prefix_cache_hits_total": "again",
    "vllm:num_preemptions_total": "crowd",
    'vllm:request_success_total{finished_reason="stop"}': "stop",
    'vllm:request_success_total{finished_reason="length"}': "answer",
    'vllm:request_success_total{finished_reason="abort"}': "leave",
    'vllm:request_success_total{finished_reason="error"}': Elsewhere(("tests/sim/switch.c", "END_ERROR")),
    "vllm:time_to_first_token_seconds": "answer",
    "vllm:inter_token_latency_seconds": "answer",
    "vllm:request_time_per_output_token_seconds": "answer",
    "vllm:e2e_request_latency_seconds": "answer",
    "vllm:request_queue_time_seconds": "crowd",
    "vllm:request_prefill_time_seconds": "answer",
    "vllm:request_decode_time_seconds": "answer",
    "vllm:request_inference_time_seconds": "answer",
    "vllm:request_prompt_tokens": "answer",
    "vllm:request_generation_tokens": "answer",
    "vllm:request_params_max_tokens": "answer",
    "vllm:request_params_n": "siblings",
    "vllm:iteration_tokens_total": "answer",
    "vllm:request_num_preemptions": "crowd",
    "moonshift:kv_blocks": Fixed("the size of the cache"),
    "moonshift:kv_blocks_free": "answer",
    "moonshift:kv_blocks_cached": "answer",
    "moonshift:groups": "partition",
    "moonshift:ranks_alive": Elsewhere(("tests/sim/replay.c", "C_RANK_FAILURES")),
    "moonshift:switches_pending": "partition",
    "moonshift:step_estimate_error": "answer",
    "moonshift:requests_live": "crowd",
    "moonshift:requests_untold": Elsewhere(("tests/sim/outbox.c", "moonshift:requests_untold")),
    "moonshift:recomputed_tokens_total": "crowd",
    'moonshift:admission_rejected_total{reason="full"}': "full",
    'moonshift:admission_rejected_total{reason="policy"}': "refuse",
    'moonshift:admission_rejected_total{reason="input"}': Elsewhere(("tests/sim/engine.c", "C_REFUSED_INPUT")),
    "moonshift:requests_submitted_total": "answer",
    "moonshift:steps_total": "answer",
    "moonshift:kv_blocks_evicted_total": "crowd",
    "moonshift:switches_total": "partition",
    "moonshift:kv_moves_total": "partition",
    "moonshift:kv_moved_bytes_total": "partition",
    "moonshift:kv_swapped_out_bytes_total": Elsewhere(("tests/layout/host_kv.c", "C_SWAPPED_OUT_BYTES")),
    "moonshift:kv_saved_tokens_total": Elsewhere(("tests/layout/host_kv.c", "C_SAVED_TOKENS")),
    "moonshift:prefix_cache_host_hits_total": Elsewhere(("tests/layout/host_kv.c", "C_HOST_HITS")),
    "moonshift:kv_swapped_in_bytes_total": Elsewhere(("tests/layout/host_kv.c", "C_SWAPPED_IN_BYTES")),
    "moonshift:kv_disk_read_tokens_total": Elsewhere(("tests/e2e/disk_kv.py", "kv_disk_read_tokens_total")),
    "moonshift:kv_disk_written_tokens_total": Elsewhere(("tests/e2e/disk_kv.py", "kv_disk_written_tokens_total")),
    "moonshift:kv_disk_failures_total": Elsewhere(("tests/layout/disk_kv.c", "C_DISK_FAILURES")),
    "moonshift:disk_kv_blocks": Elsewhere(("tests/e2e/disk_kv.py", '"disk_kv_blocks"')),
    "moonshift:disk_kv_blocks_cached": Elsewhere(("tests/e2e/disk_kv.py", "disk_kv_blocks_cached")),
    "moonshift:weights_resharded_bytes_total": Elsewhere(("tests/layout/reshard.c", "C_RESHARDED_BYTES")),
    "moonshift:batches": Elsewhere(("tests/e2e/batches.py", "moonshift:batches")),
    "moonshift:batch_lines_total": Elsewhere(("tests/e2e/batches.py", "moonshift:batch_lines_total")),
    "moonshift:embedding_requests_total": Fixed("every ending is seen of one route"),
    'moonshift:embedding_requests_total{route="embeddings",result="answer"}': "vectors",
    'moonshift:embedding_requests_total{route="embeddings",result="error"}': "vectors",
    'moonshift:embedding_requests_total{route="embeddings",result="gone"}': "vectors_leave",
    'moonshift:embedding_requests_total{route="rerank",result="answer"}': "vectors",
    'moonshift:embedding_requests_total{route="score",result="answer"}': "vectors",
    "moonshift:embedding_request_seconds": "vectors",
    "moonshift:embedding_inputs_total": "vectors",
    "moonshift:embedding_tokens_total": "vectors",
    "moonshift:embedding_batches_total": "vectors",
    "moonshift:embedding_batch_tokens_total": "vectors",
    "moonshift:embedding_failed_batches_total": Elsewhere(("tests/unit/embedder.c", "failed_batches")),
    "moonshift:embedding_inputs_waiting": "vectors_leave",
    "moonshift:embedding_inputs_running": "vectors_leave",
    "moonshift:embedding_tokens_waiting": "vectors_leave",
    "moonshift:embedding_replicas_allowed": Elsewhere(
        ("tests/e2e/embeddings.py", "moonshift:embedding_replicas_allowed")
    ),
    "moonshift:embedding_replicas_alive": Elsewhere(("tests/unit/embedder.c", "replicas_alive")),
    "moonshift:host_kv_blocks": Elsewhere(("tests/spec/host_kv_spec.lua", "moonshift:host_kv_blocks")),
    "moonshift:host_kv_blocks_free": Elsewhere(("tests/spec/host_kv_spec.lua", "moonshift:host_kv_blocks_free")),
    "moonshift:host_kv_blocks_cached": Elsewhere(("tests/spec/host_kv_spec.lua", "moonshift:host_kv_blocks_cached")),
    "moonshift:kv_park_expired_total": Elsewhere(("tests/sim/switch.c", "C_UNPARKED")),
    "moonshift:rank_failures_total": Elsewhere(("tests/sim/replay.c", "C_RANK_FAILURES")),
    "vllm:spec_decode_num_drafts_total": Elsewhere(("tests/layout/drafts.c", "C_DRAFTS")),
    "vllm:spec_decode_num_draft_tokens_total": Elsewhere(("tests/layout/drafts.c", "C_DRAFT_TOKENS")),
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': Elsewhere(
        ("tests/layout/drafts.c", "draft_accepted_at")
    ),
    "vllm:spec_decode_num_accepted_tokens_total": Elsewhere(("tests/layout/drafts.c", "C_DRAFT_ACCEPTED")),
    "moonshift:draft_model_seconds_total": Elsewhere(("tests/layout/draft_model.c", "C_DRAFT_MODEL_NS")),
    "moonshift:probes_total": Elsewhere(("tests/e2e/earlystop.py", "moonshift:probes_total")),
    "moonshift:probe_tokens_total": Elsewhere(("tests/e2e/earlystop.py", "moonshift:probe_tokens_total")),
    "moonshift:early_stops_total": Elsewhere(("tests/e2e/earlystop.py", "moonshift:early_stops_total")),
    "moonshift:steps_ahead_total": Elsewhere(("tests/layout/switch.c", "C_STEPS_AHEAD")),
    "moonshift:was_bytes_total": Elsewhere(("tests/policy/ffn.c", "C_WAS_BYTES")),
    "moonshift:was_wait_seconds_total": Elsewhere(("tests/policy/ffn.c", "moonshift:was_wait_seconds_total")),
    "moonshift:cas_bytes_total": Elsewhere(("tests/policy/ffn.c", "C_CAS_BYTES")),
    "moonshift:cas_rows_total": Elsewhere(("tests/policy/ffn.c", "C_CAS_ROWS")),
    "moonshift:layer_copies_total": Elsewhere(("tests/layout/pool_switch.c", "C_LAYER_COPIES")),
    "moonshift:step_seconds": "answer",
    'moonshift:tenant_requests_total{tenant="blue"}': "answer",
    'moonshift:tenant_requests_total{tenant="default"}': "keyless",
    "moonshift:tenant_requests_total": Fixed("of more than 32 tenants: their names are bounded"),
    'moonshift:tenant_prompt_tokens_total{tenant="blue"}': "answer",
    'moonshift:tenant_prompt_tokens_total{tenant="default"}': "keyless",
    "moonshift:tenant_prompt_tokens_total": Fixed("of more than 32 tenants"),
    'moonshift:tenant_generation_tokens_total{tenant="blue"}': "answer",
    'moonshift:tenant_generation_tokens_total{tenant="default"}': "keyless",
    "moonshift:tenant_generation_tokens_total": Fixed("of more than 32 tenants"),
    'moonshift:tenant_time_to_first_token_seconds{tenant="blue"}': "answer",
    'moonshift:tenant_time_to_first_token_seconds{tenant="default"}': "keyless",
    "moonshift:tenant_time_to_first_token_seconds": Fixed("of more than 32 tenants"),
    'moonshift:tenant_queue_time_seconds{tenant="blue"}': "answer",
    'moonshift:tenant_queue_time_seconds{tenant="default"}': "keyless",
    "moonshift:tenant_queue_time_seconds": Fixed("of more than 32 tenants"),
    'policy_info{state="active"}': "refuse",
    "policy_info": Fixed("labels of the policy before"),
    "policy_generation": "refuse",
    'policy_swaps_total{kind="swap"}': "refuse",
    'policy_swaps_total{kind="refused"}': "wrong",
    'policy_swaps_total{kind="rollback"}': "rollback",
    'policy_swaps_total{kind="withdrawn"}': "bad_error",
    'policy_swaps_total{kind="retried"}': Elsewhere(("tests/policy/cost.c", 'kind=\\"retried')),
    'policy_probations_total{result="recalled"}': "rollback",
    'policy_probations_total{result="replaced"}': "rollback",
    'policy_probations_total{result="withdrawn"}': "bad_error",
    'policy_probations_total{result="rolled_back"}': Elsewhere(("tests/e2e/probation.py", 'result="rolled_back"')),
    'policy_probations_total{result="committed"}': Elsewhere(("tests/policy/probation.c", "counts_of")),
    **{
        f'policy_predictions_total{{result="{how}"}}': Elsewhere(("tests/policy/probation.c", f'"{how}"'))
        for how in ("as_predicted", "better", "worse", "undecided", "unknown")
    },
    "policy_probation": "refuse",
    "policy_swap_seconds": "refuse",
    "policy_shadow": "shadow",
    'policy_shadow_decisions{outcome="equal"}': "shadow",
    'policy_shadow_decisions{outcome="different"}': "shadow",
    'policy_shadow_decisions{outcome="passed_over"}': Elsewhere(("tests/policy/shadow.c", "decisions.passed_over")),
    "policy_shadow_seconds": "shadow",
    "policy_canary": Elsewhere(("tests/e2e/canary.py", "policy_canary 1")),
    "policy_canary_requests": Elsewhere(("tests/e2e/canary.py", "policy_canary_requests")),
    "policy_canary_tokens": Elsewhere(("tests/e2e/canary.py", "policy_canary_tokens")),
    "policy_canary_ttft_seconds": Elsewhere(("tests/e2e/canary.py", "policy_canary_ttft_seconds")),
    "policy_canary_tpot_seconds": Elsewhere(("tests/e2e/canary.py", "policy_canary_tpot_seconds")),
    "policy_canary_queue_seconds": Elsewhere(("tests/e2e/canary.py", "policy_canary_queue_seconds")),
    "policy_hook_calls_total": Fixed("of hooks that no policy here has"),
    'policy_hook_calls_total{hook="start"}': "refuse",
    'policy_hook_calls_total{hook="admit"}': "refuse",
    'policy_hook_calls_total{hook="step"}': "answer",
    'policy_hook_calls_total{hook="finish"}': "refuse",
    'policy_hook_calls_total{hook="export"}': "hand_on",
    'policy_hook_calls_total{hook="import"}': "hand_on",
    "policy_hook_errors_total": Fixed("every kind is seen in one hook"),
    'policy_hook_errors_total{hook="step",kind="heavy"}': "bad_heavy",
    'policy_hook_errors_total{hook="step",kind="slow"}': "bad_slow",
    'policy_hook_errors_total{hook="step",kind="error"}': "bad_error",
    'policy_hook_errors_total{hook="step",kind="timeout"}': "bad_timeout",
    'policy_hook_errors_total{hook="step",kind="oom"}': "bad_oom",
    'policy_hook_errors_total{hook="admit",kind="malformed"}': "bad_malformed",
    'policy_hook_errors_total{hook="step",kind="stalled"}': "bad_stalled",
    'policy_hook_errors_total{hook="step",kind="starved"}': "bad_starved",
    'policy_fallback_total{reason="error"}': "bad_error",
    'policy_fallback_total{reason="timeout"}': "bad_timeout",
    'policy_fallback_total{reason="oom"}': "bad_oom",
    'policy_fallback_total{reason="malformed"}': Fixed("a plan that breaks the contract is refused verb by verb"),
    'policy_fallback_total{reason="stalled"}': "bad_stalled",
    'policy_fallback_total{reason="starved"}': Fixed("the starving request is put first instead"),
    'policy_decisions_total{action="admit"}': "answer",
    'policy_decisions_total{action="preempt"}': "preempt",
    'policy_decisions_total{action="reject"}': "refuse_late",
    'policy_decisions_total{action="forward"}': "answer",
    'policy_decisions_total{action="hold"}': "hold",
    'policy_hook_errors_total{hook="step",kind="crashed"}': Elsewhere(
        ("tests/e2e/isolation.py", "policy_fallback_total")
    ),
    'policy_fallback_total{reason="crashed"}': Elsewhere(("tests/e2e/isolation.py", "policy_fallback_total")),
    "policy_hook_duration_seconds": "answer",
    "policy_gc_pause_seconds": "answer",
    "policy_lua_heap_bytes": "refuse",
    "policy_lua_heap_limit_bytes": Fixed("a limit"),
    'policy_reload_total{result="ok"}': "refuse",
    'policy_reload_total{result="validate"}': "wrong",
    'policy_reload_total{result="init_error"}': "wrong_start",
    'policy_reload_total{result="unreadable"}': "unreadable",
    "policy_last_reload_timestamp": "refuse",
    "policy_record_failures_total": Elsewhere(("tests/e2e/versions_kept.py", "policy_record_failures_total")),
    "http_requests_total": "answer",
    "http_request_duration_seconds": "answer",
    "http_connections": "crowd",
    "http_requests_in_progress": "crowd",
    "http_unsent_bytes": "slow_reader",
    "http_clients_gone_total": "leave",
    "front_text_jobs": "long_text",
    "front_requests_submitted_total": "answer",
    "front_requests_ended_total": "answer",
    "process_resident_memory_bytes": "long_text",
    "process_cpu_seconds_total": "crowd",
    "process_open_fds": "crowd",
    "process_max_fds": Fixed("a limit"),
    "process_start_time_seconds": Fixed("the start"),
}

# ---- what there is


def written():
    """Names of metrics in the sources: after # TYPE, in the tables, and as first words of the functions that print
    one."""
    names, files = set(), []
    for top in ("engine", "lua"):
        for where, _, found in os.walk(top):
            files += [os.path.join(where, f) for f in found if f.endswith(".c")]
    for path in files:
        text = open(path, encoding="utf-8").read()
        names |= set(re.findall(r"# TYPE ([a-z][\w:]*) ", text))
        names |= set(re.findall(r'"((?:vllm|moonshift):\w+)"', text))
        names |= set(re.findall(r'put_(?:one|gauge|counter|head)\(\w+,\s*"([\w:]+)"', text))
    return names


LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")


def parse(text):
    """{(family, labels): value}, and the families with their types. A histogram is its count."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    series = {}
    for line in text.splitlines():
        m = LINE.match(line)
        if not m:
            continue
        name, labels = m.group(1), dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m.group(2) or ""))
        if name not in types:
            name, _, part = name.rpartition("_")
            if part != "count":
                continue
        series[name, tuple(sorted((k, v) for k, v in labels.items() if k not in ("engine", "model_name")))] = float(
            m.group(3)
        )
    return series, types


def entry(name, labels):
    """The entry of MOVES with the most labels that fit; its key."""
    best = None
    for key in MOVES:
        m = re.match(r"([^{]+)(?:\{(.*)\})?$", key)
        wants = set(re.findall(r'(\w+)="([^"]*)"', m.group(2) or ""))
        if m.group(1) == name and wants <= set(labels) and (best is None or len(wants) > best[0]):
            best = len(wants), key
    return best and best[1]


# ---- the server and its clients


class Server:
    def __init__(self, folder):
        self.p = subprocess.Popen(
            [
                BINARY,
                "serve",
                "--load-format",
                "dummy",
                "--hf-config",
                "tests/data/sim_model.json",
                "--device",
                "sim",
                "--chat-template",
                "chatml",
                "--port",
                "0",
                "--ranks",
                "2",
                "--policy-dir",
                folder,
                "--policy",
                folder + "/base.lua",
                "--sim-step-us",
                "10000",
                "--max-num-seqs",
                "8",
                "--max-num-queued-reqs",
                "40",
                "--max-num-batched-tokens",
                "512",
                "--max-num-queued-tokens",
                "6000",
                "--max-model-len",
                "1024",
                "--kv-cache-memory-bytes",
                "192KiB",
                "--embedding-model",
                "tests/data/encoder_sim",
                "--starvation-seconds",
                "0.5",
                "--api-key",
                KEYS["blue"] + "=blue",
                "--api-key",
                KEYS[""],
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=ENV,
        )
        self.port = self.admin = None
        self.log = []
        while not self.admin:
            line = self.p.stderr.readline()
            self.log.append(line)
            if not line:
                sys.exit("".join(self.log))
            m = re.search(r"on http://127\.0\.0\.1:(\d+)", line)
            self.port = int(m.group(1)) if m else self.port
            m = re.search(r"Admin routes on .*?(\d+)\s*$", line)
            self.admin = int(m.group(1)) if m else self.admin
        threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True).start()

    def ask(self, method, path, body=None, tenant="blue", admin=False):
        c = http.client.HTTPConnection("127.0.0.1", self.admin if admin else self.port, timeout=WAIT_S)
        body = json.dumps(body) if isinstance(body, (dict, list)) else body
        c.request(method, path, body, {"Authorization": "Bearer " + KEYS[tenant], "Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def complete(self, prompt="Hello", tenant="blue", **fields):
        return self.ask(
            "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, **fields}, tenant
        )

    def put(self, name, source):
        return self.ask("PUT", "/admin/policies/" + name, source, admin=True)

    def metrics(self):
        return parse(self.ask("GET", "/metrics")[1])


def together(*calls):
    threads = [threading.Thread(target=c, daemon=True) for c in calls]
    for t in threads:
        t.start()
    for t in threads:
        t.join(WAIT_S)


def wait(ready, seconds=20):
    until = time.monotonic() + seconds
    while not ready() and time.monotonic() < until:
        time.sleep(0.02)


# ---- the steps

STEP = (
    "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting, 512) "
    "if b.tokens > 0 then act.forward(g, b) end end"
)
BASE = "return { api = 1, doc = 'Serves.', step = function(view, act, p) " + STEP + " end }"


def bad(what, admit="return request.arrival"):
    """Good until a request of priority MARK comes."""
    return (
        "local armed = false\nlocal heap = {}\nreturn { api = 1, doc = 'Bad in time.', admit = function(request, view, "
        "act, p) if request.priority == "
        + str(MARK)
        + " then armed = true end "
        + admit
        + " end, step = function(view, act, p) if armed then "
        + what
        + " end "
        + STEP
        + " end }"
    )


TRIES = iter(range(1000))


def provoke(s, source, n=6):
    source += f" -- {next(TRIES)}"  # what was withdrawn before is in quarantine by its hash
    status, text = s.put("bad", source)
    assert status == 200, text
    for _ in range(n):
        s.complete(priority=MARK, max_tokens=3)
    s.put("base", BASE)


def answer(s):
    assert s.complete("A prompt of some length, for the cache to keep. " * 3, max_tokens=20)[0] == 200


def again(s):
    answer(s)


def keyless(s):
    """Who has no tenant is called default, here and in the state."""
    t = threading.Thread(target=lambda: s.complete(tenant="", max_tokens=100), daemon=True)
    t.start()
    tenants = set()
    while t.is_alive():
        tenants |= set(re.findall(r'"tenant":"(\w*)"', s.ask("GET", "/admin/state", admin=True)[1]))
    assert tenants == {"default"}, tenants


def stop(s):
    text = json.loads(s.complete("Stop me", max_tokens=30, seed=1)[1])["choices"][0]["text"]
    for at in range(len(text)):  # the first that stands in the text as it is
        if text[at].isascii():
            s.complete("Stop me", max_tokens=30, seed=1, stop=text[at : at + 1])
            return


def leave(s):
    for _ in range(3):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S)
        c.request(
            "POST",
            "/v1/completions",
            json.dumps({"prompt": "bye", "max_tokens": 500, "stream": True, "ignore_eos": True}),
            {"Authorization": "Bearer " + KEYS["blue"]},
        )
        c.getresponse().read(10)
        c.close()
    time.sleep(0.3)


def crowd(s):
    together(*[lambda i=i: s.complete(f"{i} " * 60, max_tokens=150, seed=i) for i in range(20)])


def siblings(s):
    for i in range(8):
        s.complete(f"{i} one for all " * 20, n=4, max_tokens=2)


def full(s):
    together(*[lambda i=i: s.complete(f"{i} " * 240, max_tokens=60) for i in range(30)])


def refuse(s):
    status, text = s.put(
        "no",
        "return { api = 1, doc = 'Refuses.', admit = function(request, view, act, p) if request.priority == "
        + str(MARK)
        + " then return act.refuse(request, 429, 1) end return request.arrival end, finish = function() end, step = "
        "function(view, act, p) " + STEP + " end }",
    )
    assert status == 200, text
    s.complete(priority=MARK)
    s.complete()
    s.put("base", BASE)


def refuse_late(s):
    source = bad("for i = 1, view.waiting.n do act.refuse(view.waiting.id[i], 429, 1) end").replace(
        "api = 1,", "api = 1, needs = { 'waiting.id' },"
    )
    provoke(s, source, 2)


def preempt(s):
    source = bad("armed = false for i = 1, view.running.n do act.preempt(view.running.id[i], 'recompute') end").replace(
        "api = 1,", "api = 1, needs = { 'running.id' },"
    )
    status, text = s.put("bad", source)
    assert status == 200, text
    together(
        lambda: s.complete(max_tokens=60),
        lambda: s.complete(max_tokens=60),
        lambda: (time.sleep(0.2), s.complete(priority=MARK)),
    )
    s.put("base", BASE)


def hold(s):
    status, text = s.put(
        "holds",
        "return { api = 1, doc = 'Holds.', admit = function(request, view, act) act.hold(request, 'for a while', "
        "view.now + 0.5) end, "
        "step = function(view, act, p) " + STEP + " end }",
    )
    assert status == 200, text
    s.complete()
    s.put("base", BASE)


def shadow(s):
    """One that would run nothing: the rest is as the live policy."""
    source = bad("do return end")
    assert s.ask("POST", "/admin/policies/other/shadow?seconds=60", source, admin=True)[0] == 200
    s.complete(max_tokens=5)
    s.complete(priority=MARK, max_tokens=5)
    s.ask("DELETE", "/admin/shadow", admin=True)


def hand_on(s):
    for name in ("one", "two"):
        status, text = s.put(
            name,
            "return { api = 1, doc = 'Hands on.', export = function() return { 1 } end, import = function(state) end, "
            "step = function(view, act, p) " + STEP + " end }",
        )
        assert status == 200, text
    s.put("base", BASE)


def partition(s):
    source = (
        "local n = 0\nreturn { api = 1, doc = 'Moves.', step = function(view, act, p) n = n + 1 "
        "if n % 60 == 20 then act.bind({ 0 }, { kv = 'migrate' }) act.bind({ 1 }, { kv = 'migrate' }) "
        "elseif n % 60 == 40 then act.bind({ 0, 1 }, { when = 'soft', kv = 'migrate', max_wait_ms = 150 }) end "
        + STEP
        + " end }"
    )
    status, text = s.put("moves", source)
    assert status == 200, text
    together(*[lambda i=i: s.complete(f"{i} moves", max_tokens=120) for i in range(6)])
    s.put("base", BASE)


def rollback(s):
    s.put("one", BASE.replace("Serves.", "Serves, too."))
    status, text = s.ask("POST", "/admin/policy/rollback", admin=True)
    assert status == 200, text


def wrong(s):
    status, text = s.put("wrong", "return { api = 1, doc = 'x', step = 5 }")
    assert status == 400, text
    state = json.loads(s.ask("GET", "/admin/policy", admin=True)[1])
    assert state["refused"] > 0 and "wrong" in state["last_error"], state
    status, text = s.ask("PATCH", "/admin/policy/params", {"no-such": 1}, admin=True)
    assert status == 400, text
    time.sleep(0.3)
    log = "".join(s.log)
    assert 'policy params refused: {"no-such": 1}' in log and "policy params: {" not in log, log[-2000:]


def wrong_start(s):
    """A start that fails only on this node, under its load: while requests run."""
    source = (
        "return { api = 1, doc = 'Starts badly.', start = function(node, act, p) if #node.ranks == 2 and "
        "node.max_num_seqs == 8 then error('not here') end end, step = function(view, act, p) " + STEP + " end }"
    )
    s.put("starts", source)


def unreadable(s):
    path = os.path.join(FOLDER, "base.lua")
    s.ask("PUT", "/admin/policies/base", BASE, admin=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("--" + "x" * (300 << 10))
    time.sleep(3)
    with open(path, "w", encoding="utf-8") as f:
        f.write(BASE)
    time.sleep(2)


def slow_reader(s):
    """Its socket holds little, so the answer waits in the server; long enough for whoever looks at the metrics."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S)
    c.connect()
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.request(
        "POST",
        "/tokenize",
        json.dumps({"prompt": "a " * 300000, "return_token_strs": True}),
        {"Authorization": "Bearer " + KEYS["blue"]},
    )
    wait(lambda: s.metrics()[0]["http_unsent_bytes", ()] > 0)
    time.sleep(0.5)
    c.close()


def long_text(s):
    together(*[lambda: s.ask("POST", "/tokenize", {"prompt": "ab " * 4000000}) for _ in range(3)])


def vectors(s):
    assert s.ask("POST", "/v1/embeddings", {"input": ["red river", "dog"]})[0] == 200
    assert s.ask("POST", "/v1/rerank", {"query": "dog", "documents": ["a", "b"]})[0] == 200
    assert s.ask("POST", "/v1/score", {"text_1": "dog", "text_2": "cat"})[0] == 200
    assert s.ask("POST", "/v1/embeddings", {"input": []})[0] == 400


def vectors_leave(s):
    """Large requests that end before their answers, and some that do not."""
    body = json.dumps({"input": ["the dog sees the river " * 60] * 2048, "encoding_format": "base64"})

    def leave_in(seconds):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S)
        c.request("POST", "/v1/embeddings", body, {"Authorization": "Bearer " + KEYS["blue"]})
        time.sleep(seconds)
        c.close()

    together(*[lambda i=i: leave_in(0.02 * i) for i in range(8)], lambda: s.ask("POST", "/v1/embeddings", body))


def bad_error(s):
    provoke(s, bad("error('on purpose')"))


def bad_heavy(s):
    """One call in about 32 is counted, at the latest the 63rd, unless one was late before."""
    provoke(s, bad("local x = 0 for i = 1, 30000 do x = x + i % 7 end"), 25)


def bad_slow(s):
    """Few bytecodes, and yet long: what takes the time is in C."""
    provoke(
        s,
        bad(
            "if #heap < 4000 then for i = #heap + 1, #heap + 1000 do heap[i] = i end end "
            "for n = 1, 4 do for k in sorted_pairs(heap) do break end end"
        ),
        20,
    )


def bad_timeout(s):
    provoke(s, bad("while true do end"))


def bad_oom(s):
    provoke(s, bad("local x = 'long' for i = 1, 30 do x = x .. x end"))


def bad_malformed(s):
    provoke(s, bad("", "if armed then return 0 / 0 end return request.arrival"))


def bad_stalled(s):
    provoke(s, bad("return"), 2)


def bad_starved(s):
    source = (
        "local armed = false\nreturn { api = 1, doc = 'Starves.', admit = function(request) if request.priority == "
        + str(MARK)
        + " then armed = true end return request.arrival end, "
        "step = function(view, act, p) for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() if not "
        "armed or view.n_running == 0 then b:prefill(view.waiting, 512) end "
        "if b.tokens > 0 then act.forward(g, b) end end end }"
    )
    status, text = s.put("starves", source)
    assert status == 200, text
    together(lambda: s.complete(max_tokens=200), lambda: (time.sleep(0.3), s.complete(priority=MARK)))
    s.put("base", BASE)


SCENARIO = [
    answer,
    again,
    keyless,
    stop,
    leave,
    crowd,
    siblings,
    full,
    refuse,
    refuse_late,
    preempt,
    hold,
    shadow,
    hand_on,
    partition,
    rollback,
    wrong,
    wrong_start,
    unreadable,
    slow_reader,
    long_text,
    vectors,
    vectors_leave,
    bad_error,
    bad_heavy,
    bad_slow,
    bad_timeout,
    bad_oom,
    bad_malformed,
    bad_stalled,
    bad_starved,
]

# ---- watching


def run_step(server, step):
    """All that was seen of every series before, during and after a step."""
    seen, ended = {}, threading.Event()

    def note(series):
        for k, v in series.items():
            seen.setdefault(k, []).append(v)

    def watch():
        while not ended.is_set():
            note(server.metrics()[0])
            time.sleep(0.01)

    note(server.metrics()[0])
    t = threading.Thread(target=watch, daemon=True)
    t.start()
    step(server)
    ended.set()
    t.join(WAIT_S)
    note(server.metrics()[0])
    return seen


def check_names(types):
    for name in sorted(written() | set(types)):
        if not any(re.match(re.escape(name) + r"(\{|$)", k) for k in MOVES):
            yield f"{name}: not in MOVES; say which step moves it"
        if name not in types:
            yield f"{name}: stands in the sources and is never served"
    for name, kind in types.items():
        if (kind == "counter") != name.endswith("_total") and not (
            kind == "histogram" and name == "vllm:iteration_tokens_total"
        ):
            yield f"{name} is a {kind}: counters end with _total, others do not"
    for key, how in MOVES.items():
        name = key.split("{")[0]
        if name not in types:
            yield f"{key}: in MOVES, and nobody serves it"
        if isinstance(how, Elsewhere) and how[1] not in open(how[0], encoding="utf-8").read():
            yield f"{key}: {how[0]} does not have {how[1]} any more"
        if isinstance(how, str) and not isinstance(how, Fixed) and how not in [s.__name__ for s in SCENARIO]:
            yield f"{key}: there is no step {how}"


def moved(step, before, series):
    """The entries that this step moved: a series that comes has moved, one that was there has more than one value."""
    found = set()
    for (name, labels), values in series.items():
        key = entry(name, labels)
        if key and MOVES[key] == step and (len(set(values)) > 1 or ((name, labels) not in before and values[-1] > 0)):
            found.add(key)
    return found


def walk(server, steps):
    """What did not move in its step, though the step was tried thrice: on a busy machine a moment may pass unseen."""
    before = set(server.metrics()[0])
    for step in steps:
        left = {k for k, how in MOVES.items() if how == step.__name__ and not isinstance(how, Fixed)}
        for _ in range(3):
            series = run_step(server, step)
            left -= moved(step.__name__, before, series)
            before |= set(series)
            if not left:
                break
        for key in sorted(left):
            yield f"{key}: did not move in the step {step.__name__}"


FOLDER = tempfile.mkdtemp(prefix="moonshift-metrics-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def main():
    with open(os.path.join(FOLDER, "base.lua"), "w", encoding="utf-8") as f:
        f.write(BASE)
    server = Server(FOLDER)
    wrongs = []
    try:
        wrongs += walk(server, [step for step in SCENARIO if len(sys.argv) == 1 or step.__name__ in sys.argv])
        final, types = server.metrics()
        wrongs += check_names(types)
        wrongs += [f"{name}{dict(labels)}: not in MOVES" for name, labels in sorted(final) if not entry(name, labels)]
    finally:
        server.p.terminate()
        try:
            server.p.wait(20)
        except subprocess.TimeoutExpired:
            server.p.kill()
    for w in wrongs:
        print(w)
    if wrongs and os.environ.get("SHOW_LOG"):
        print("".join(server.log[-200:]))
    print(f"{len(MOVES) - len(wrongs)} passed, {len(wrongs)} failed")
    return bool(wrongs)


if __name__ == "__main__":
    sys.exit(main())
