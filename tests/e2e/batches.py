"""/v1/batches from outside: a batch's life as OpenAI's clients see it, what is refused, whose it is, how it ends, and
that a server which is killed at any moment, again and again, leaves the output that it would have left. Uses made-up
weights."""

import json
import os
import random
import signal
import sys
import time

sys.path.insert(0, "tests/rig")
import cases
from file_site import FOLDER, KEYS, Site

N_KILLS = 5 if os.environ.get("MOONSHIFT_SLOW") else 20
ENDED = ("completed", "failed", "expired", "cancelled")
URL = "/v1/completions"


def line(i, **more):
    body = {"model": "m", "prompt": f"line {i}", "max_tokens": 1 + i % 30, "temperature": 0, "ignore_eos": True}
    return {"custom_id": f"id {i}", "method": "POST", "url": URL, "body": body, **more}


def text(lines):
    return "".join(json.dumps(x) + "\n" for x in lines).encode()


def begin(s, data, key="one", **more):
    status, f = s.upload(data, key=key)
    assert status == 200, f
    return make(s, f["id"], key, **more)


def make(s, file, key="one", **more):
    body = {"input_file_id": file, "endpoint": URL, "completion_window": "24h", **more}
    status, b = s.json("POST", "/v1/batches", json.dumps(body), key, **{"Content-Type": "application/json"})
    assert status == 200, b
    return b


def wait(s, b, key="one", until=ENDED):
    end = time.time() + 120
    while b["status"] not in until:
        assert time.time() < end, b
        time.sleep(0.02)
        status, b = s.json("GET", "/v1/batches/" + b["id"], key=key)
        assert status == 200, b
    return b


def lines_of(s, file):
    status, data = s.ask("GET", f"/v1/files/{file}/content")
    assert status == 200, data
    return [json.loads(x) for x in data.splitlines()]


def a_batch_lives_as_clients_expect():
    lines = [line(i) for i in range(30)]
    lines[7]["body"]["max_tokens"] = -1
    with Site("life", *KEYS) as s:
        b = begin(s, text(lines), metadata={"who": "größe"})
        assert b["object"] == "batch" and b["status"] in ("validating", "in_progress"), b
        assert b["metadata"] == {"who": "größe"} and b["endpoint"] == URL and b["errors"] is None, b
        assert b["expires_at"] - b["created_at"] == 86400 and b["output_file_id"] is None, b
        b = wait(s, b)
        assert b["status"] == "completed" and b["completed_at"] >= b["in_progress_at"] >= b["created_at"], b
        assert b["request_counts"] == {"total": 30, "completed": 29, "failed": 1}, b
        out, bad = lines_of(s, b["output_file_id"]), lines_of(s, b["error_file_id"])
        assert [x["custom_id"] for x in out] == [f"id {i}" for i in range(30) if i != 7]
        assert all(
            x["response"]["body"]["usage"]["completion_tokens"] == 1 + i % 30 for x, i in zip(out[8:], range(9, 30))
        )
        assert len(bad) == 1 and bad[0]["custom_id"] == "id 7" and bad[0]["response"]["status_code"] == 400, bad
        metrics = s.ask("GET", "/metrics")[1].decode()
        assert 'moonshift:batches{status="completed"} 1' in metrics, metrics[-2000:]
        assert 'moonshift:batch_lines_total{result="answer"} 29' in metrics
        assert 'moonshift:batch_lines_total{result="error"} 1' in metrics
        names = [f["filename"] for f in s.json("GET", "/v1/files")[1]["data"]]
        assert sorted(names) == sorted(["lines.jsonl", b["id"] + "_output.jsonl", b["id"] + "_error.jsonl"]), names
        more = [begin(s, text([line(0)])) for _ in range(3)]
        more = [wait(s, x) for x in more]
        page = s.json("GET", "/v1/batches?limit=2")[1]
        assert [x["id"] for x in page["data"]] == [more[2]["id"], more[1]["id"]] and page["has_more"], page
        assert page["first_id"] == more[2]["id"] and page["last_id"] == more[1]["id"]
        page = s.json("GET", "/v1/batches?limit=9&after=" + page["last_id"])[1]
        assert [x["id"] for x in page["data"]] == [more[0]["id"], b["id"]] and not page["has_more"], page
        for x in (b["id"], b["id"] + "/cancel"):
            assert s.json("GET" if x == b["id"] else "POST", "/v1/batches/" + x, key="two")[0] == 404
        assert s.json("GET", "/v1/batches", key="two")[1]["data"] == []
        assert s.json("POST", f"/v1/batches/{b['id']}/cancel")[0] == 409
        assert s.end(signal.SIGTERM) == 0
    with Site("life", *KEYS) as s:  # another day
        assert s.json("GET", "/v1/batches/" + b["id"]) == (200, b)
        assert lines_of(s, b["output_file_id"]) == out


def wrong_inputs_fail_and_say_where():
    with Site("wrong") as s:
        for data, code, at in (
            (text([line(0), {"custom_id": "x"}]), None, 2),
            (text([line(0), line(1, url="/v1/chat/completions")]), "invalid_url", 2),
            (text([line(0), line(0)]), "duplicate_custom_id", None),
            (b"\n \n", "empty_file", None),
            (b"no json\n", None, 1),
        ):
            b = wait(s, begin(s, data))
            error = b["errors"]["data"][0]
            assert b["status"] == "failed" and error["line"] == at and error["code"] == (code or error["code"]), b
            assert b["output_file_id"] is None and error["message"], b
        f = s.upload(text([line(0)]))[1]["id"]
        good = {"input_file_id": f, "endpoint": URL, "completion_window": "24h"}
        for change in (
            {"input_file_id": "file-000000000000000000000000"},
            {"input_file_id": None},
            {"endpoint": "/v1/embeddings"},
            {"endpoint": "/v1/rerank"},
            {"completion_window": "1h"},
            {"metadata": {"a": 1}},
            {"metadata": {"a": "x" * 513}},
            {"metadata": {str(i): "" for i in range(17)}},
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
        ):
            status, body = s.json("POST", "/v1/batches", json.dumps({**good, **change}))
            assert status == 400 and body["error"]["param"] == next(iter(change)), (change, body)
        for body in ("", "[]", "{", "x" * 70000):
            assert s.json("POST", "/v1/batches", body)[0] in (400, 413), body[:10]
        assert s.json("GET", "/v1/batches/batch_nothing")[0] == 404
        assert s.json("GET", "/v1/batches?limit=0")[0] == 400 and s.json("GET", "/v1/batches?after=x")[0] == 400
    with Site(None) as s:
        status, body = s.json("GET", "/v1/batches")
        assert status == 501 and "--batch-dir" in body["error"]["message"]


def a_cancelled_batch_keeps_what_was_answered():
    with Site("cancel") as s:
        long = [line(i) for i in range(3000)]
        f = s.upload(text(long))[1]["id"]
        b = make(s, f)
        while s.json("GET", "/v1/batches/" + b["id"])[1]["request_counts"]["completed"] < 5:
            time.sleep(0.01)
        assert s.json("DELETE", "/v1/files/" + f)[0] == 409
        status, c = s.json("POST", f"/v1/batches/{b['id']}/cancel")
        assert status == 200 and c["status"] in ("cancelling", "cancelled"), c
        b = wait(s, b)
        assert b["status"] == "cancelled" and b["cancelled_at"] >= b["cancelling_at"], b
        n = b["request_counts"]["completed"]
        out = lines_of(s, b["output_file_id"])
        assert 5 <= n == len(out) < 3000 and [x["custom_id"] for x in out] == [f"id {i}" for i in range(n)], (
            n,
            len(out),
        )
        assert s.json("DELETE", "/v1/files/" + f)[0] == 200
        state = s.json("GET", "/load")[1]
        end = time.time() + 30
        while state["server_load"] and time.time() < end:  # what was on its way is called off
            state = s.json("GET", "/load")[1]
        assert state["server_load"] == 0


def who_waits_is_answered_beside_a_batch():
    """A batch has half of the places at most: requests of others are taken, and wait for none of its lines."""
    few = ["--max-num-seqs", "4", "--max-num-queued-reqs", "1"]
    with Site("beside", *few) as s:
        b = begin(s, text([line(i) for i in range(3000)]))
        wait(s, b, until=("in_progress",))
        body = json.dumps({"model": "m", "prompt": "now", "max_tokens": 4, "ignore_eos": True})
        for _ in range(20):
            status, answer = s.json("POST", URL, body)
            assert status == 200, answer
        done = s.json("GET", "/v1/batches/" + b["id"])[1]
        assert done["status"] == "in_progress" and done["request_counts"]["completed"] < 3000, done


ENCODER = ["--device", "sim", "--embedding-model", "tests/data/encoder_sim"]
VECTORS = "/v1/embeddings"


def texts(i, n, **more):
    body = {"input": [f"the dog {i} sees river {k}" for k in range(n)], "encoding_format": "base64", **more}
    return {"custom_id": f"id {i}", "method": "POST", "url": VECTORS, "body": body}


def vectors_come_in_batches_too():
    """Each line as if it had been asked for by itself, beside requests of others."""
    lines = [texts(i, 1 + i % 50) for i in range(300)]
    lines[7]["body"]["input"] = []
    lines[8]["body"]["dimensions"] = 3
    with Site("vectors", *ENCODER) as s:
        b = begin(s, text(lines), endpoint=VECTORS)
        beside = s.json("POST", VECTORS, json.dumps(texts(11, 12)["body"]))[1]
        b = wait(s, b)
        assert b["status"] == "completed" and b["endpoint"] == VECTORS, b
        assert b["request_counts"] == {"total": 300, "completed": 298, "failed": 2}, b
        out, bad = lines_of(s, b["output_file_id"]), lines_of(s, b["error_file_id"])
        good = [i for i in range(300) if i not in (7, 8)]
        assert [x["custom_id"] for x in out] == [f"id {i}" for i in good]
        assert [len(x["response"]["body"]["data"]) for x in out] == [1 + i % 50 for i in good]
        assert out[9]["custom_id"] == "id 11" and out[9]["response"]["body"]["data"] == beside["data"]
        assert (
            out[9]["response"]["body"]["id"] == "embd-batch-12"
            and out[9]["response"]["body"]["usage"] == beside["usage"]
        )
        assert [x["response"]["body"]["error"]["param"] for x in bad] == ["input", "dimensions"], bad
        wrong = wait(s, begin(s, text([texts(0, 1), line(1)]), endpoint=VECTORS))
        assert wrong["status"] == "failed" and wrong["errors"]["data"][0]["code"] == "invalid_url", wrong
        words = wait(s, begin(s, text([line(1)])))
        assert words["status"] == "completed", words
    with Site("none") as s:  # no encoder
        f = s.upload(text(lines))[1]["id"]
        good = {"input_file_id": f, "endpoint": VECTORS, "completion_window": "24h"}
        status, body = s.json("POST", "/v1/batches", json.dumps(good))
        assert status == 400 and body["error"]["param"] == "endpoint" and "no model for" in body["error"]["message"]


ALONE = ["--port", "0", "--admin-listen", "off", *ENCODER]


def responses_come_in_batches_too():
    url = "/v1/responses"
    body = {"model": "m", "max_output_tokens": 5, "temperature": 0, "ignore_eos": True}
    lines = [{**line(i), "url": url, "body": {**body, "input": f"line {i}"}} for i in range(20)]
    lines[3]["body"]["previous_response_id"] = "resp_1"
    with Site("responses", "--chat-template", "chatml") as s:
        b = wait(s, begin(s, text(lines), endpoint=url))
        assert b["status"] == "completed" and b["request_counts"] == {"total": 20, "completed": 19, "failed": 1}, b
        out, bad = lines_of(s, b["output_file_id"]), lines_of(s, b["error_file_id"])
        beside = s.json("POST", url, json.dumps(lines[5]["body"]))[1]
        same = out[4]["response"]["body"]
        assert same["id"] == "resp_batch-6" and same["output"][0]["id"] == "msg_batch-6_0", same
        assert same["output"][0]["content"] == beside["output"][0]["content"], same
        assert [x["response"]["body"]["error"]["param"] for x in bad] == ["previous_response_id"], bad


def an_encoder_alone_runs_batches():
    """Killed and begun again it leaves what it would have left; another encoder does not go on with it."""
    data = text([texts(i, 40) for i in range(1500)])

    def site(*more, flags=ALONE):
        return Site("alone", *more, flags=flags)

    s = site()
    f = s.upload(data)[1]["id"]
    status, body = s.json(
        "POST", "/v1/batches", json.dumps({"input_file_id": f, "endpoint": URL, "completion_window": "24h"})
    )
    assert status == 400 and "no model for /v1/completions" in body["error"]["message"], body
    b = make(s, f, endpoint=VECTORS)
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        time.sleep(0.1)
        s.end(how)
        s = site()
    b = wait(s, b)
    assert b["status"] == "completed" and b["request_counts"] == {"total": 1500, "completed": 1500, "failed": 0}, b
    quiet = wait(s, make(s, f, endpoint=VECTORS))
    mine, other = (s.ask("GET", f"/v1/files/{x['output_file_id']}/content")[1] for x in (b, quiet))
    assert mine == other and len(mine.splitlines()) == 1500
    b = make(s, f, endpoint=VECTORS)
    wait(s, b, until=("in_progress",))
    while s.json("GET", "/v1/batches/" + b["id"])[1]["request_counts"]["completed"] < 5:
        time.sleep(0.01)
    c = wait(s, s.json("POST", f"/v1/batches/{b['id']}/cancel")[1])
    n = c["request_counts"]["completed"]
    assert c["status"] == "cancelled" and 5 <= n == len(lines_of(s, c["output_file_id"])) < 1500, c
    end = time.time() + 30
    while s.json("GET", "/load")[1]["server_load"]:
        assert time.time() < end
    b = make(s, f, endpoint=VECTORS)
    while s.json("GET", "/v1/batches/" + b["id"])[1]["request_counts"]["completed"] < 5:
        time.sleep(0.01)
    s.end(signal.SIGKILL)
    with site(flags=[*ALONE[:-1], "tests/data/encoder_pairs"]) as s:
        b = wait(s, s.json("GET", "/v1/batches/" + b["id"])[1])
        assert b["status"] == "failed" and "another input, model" in b["errors"]["data"][0]["message"], b


def another_precision_does_not_go_on():
    """Lines that are left would be answered otherwise than those before: the batch fails, and says why."""
    s = Site("types")
    b = begin(s, text([line(i) for i in range(3000)]))
    while s.json("GET", "/v1/batches/" + b["id"])[1]["request_counts"]["completed"] < 5:
        time.sleep(0.01)
    s.end(signal.SIGKILL)
    with Site("types", "--kv-cache-dtype", "f32") as s:
        b = wait(s, s.json("GET", "/v1/batches/" + b["id"])[1])
        assert b["status"] == "failed" and "another input, model, precision" in b["errors"]["data"][0]["message"], b


def keys_that_go_end_their_batches():
    with Site("gone", *KEYS) as s:
        b = begin(s, text([line(i) for i in range(3000)]), key="two")
        wait(s, b, "two", ("in_progress",))
    with Site("gone", "--api-key", "one") as s:
        assert s.json("GET", "/v1/batches/" + b["id"])[0] == 404
    with Site("gone", *KEYS) as s:
        b = s.json("GET", "/v1/batches/" + b["id"], key="two")[1]
        assert b["status"] == "failed" and b["errors"]["data"][0]["code"] == "key_gone", b


def a_server_killed_at_any_moment_loses_and_repeats_no_line():
    r = random.Random(5)
    s = Site("kills")
    f = s.upload(text([line(i) for i in range(400)]))[1]["id"]
    b = make(s, f)
    for i in range(N_KILLS):
        time.sleep(r.random() * 0.15)
        s.end(signal.SIGKILL if i % 4 else signal.SIGTERM)
        s = Site("kills")
    b = wait(s, b)
    assert b["status"] == "completed" and b["request_counts"] == {"total": 400, "completed": 400, "failed": 0}, b
    quiet = wait(s, make(s, f))
    assert quiet["status"] == "completed"
    mine, other = (s.ask("GET", f"/v1/files/{x['output_file_id']}/content")[1] for x in (b, quiet))
    assert mine == other and len(mine.splitlines()) == 400
    names = sorted(x["filename"] for x in s.json("GET", "/v1/files")[1]["data"])
    assert len(names) == 3, names
    s.end(signal.SIGTERM)
    left = [n for n in os.listdir(os.path.join(FOLDER.name, "kills")) if n.endswith((".out", ".err", ".job"))]
    assert left == []


def a_server_killed_as_a_batch_ends_ends_it_again():
    r = random.Random(6)
    s = Site("ends")
    f = s.upload(text([line(i) for i in range(3)]))[1]["id"]
    for _ in range(N_KILLS):
        b = make(s, f)
        job = os.path.join(FOLDER.name, "ends", b["id"] + ".out.job")
        end = time.monotonic() + 60
        while not os.path.exists(job) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(r.random() * 0.03)
        s.end(signal.SIGKILL)
        s = Site("ends")
        b = wait(s, b)
        assert b["status"] == "completed" and b["request_counts"] == {"total": 3, "completed": 3, "failed": 0}, b
    s.end(signal.SIGTERM)


cases.run(
    [
        a_batch_lives_as_clients_expect,
        wrong_inputs_fail_and_say_where,
        a_cancelled_batch_keeps_what_was_answered,
        who_waits_is_answered_beside_a_batch,
        vectors_come_in_batches_too,
        responses_come_in_batches_too,
        an_encoder_alone_runs_batches,
        another_precision_does_not_go_on,
        keys_that_go_end_their_batches,
        a_server_killed_at_any_moment_loses_and_repeats_no_line,
        a_server_killed_as_a_batch_ends_ends_it_again,
    ]
)
