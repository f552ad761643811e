"""The stream of events on the admin listener, and the doors of the control room's page."""

import http.client
import json
import re
import socket
import sys
import threading
import time

sys.path.insert(0, "tests/rig")
import cases
from serving import Server

KEY = ["--admin-key", "sesame"]
WATCHERS = 16


class Watcher:
    def __init__(self, server):
        self.c = http.client.HTTPConnection("127.0.0.1", server.admin, timeout=60)
        self.c.request("GET", "/admin/events", headers={"Authorization": "Bearer sesame"})
        self.r = self.c.getresponse()

    def events(self):
        event = None
        for line in self.r:
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                yield event, json.loads(line[6:])

    def close(self):
        self.c.close()


def steps_tokens_and_switches_are_all_told():
    with Server(*KEY, policy="static:dp=2") as s:
        w = Watcher(s)
        assert w.r.status == 200 and w.r.getheader("Content-Type") == "text/event-stream"
        said = w.events()
        event, data = next(said)
        assert event == "pulse", event
        first = data["it"]
        assert [x["reason"] for x in first["switches"]][-1] == "start", first["switches"]
        s.complete(50)
        rows = tokens = 0
        while tokens < 50:
            event, data = next(said)
            it = data["it"]
            assert event == "pulse" and data["missed"] == 0 and it["steps_missed"] == 0
            assert not [x for x in it["switches"] if x["serial"] <= first["newest_switch"]]
            rows += sum(x["rows"] for x in it["steps"])
            tokens = it["totals"]["generation_tokens"]
        # every row that was computed: three of the prompt, and each token but the last one is computed on
        assert rows == 3 + 49 and it["totals"]["prompt_tokens"] == 3, (rows, it["totals"])
        assert it["ttft"]["count"] == 1 and sum(it["ttft"]["n"]) == 1 and sum(it["itl"]["n"]) == 49
        assert {tuple(g["ranks"]) for g in it["groups"]} == {(0,), (1,)}
        r, text = s.ask("PUT", "/admin/policies/t", open("policies/fcfs.lua").read())
        assert r.status == 200, text
        told = []
        while it["policy"]["active"]["name"] != "t" or not [x for x in told if x["event"] == "activate"]:
            event, data = next(said)
            it = data["it"] if event == "pulse" else it
            told += [data["it"]] if event == "policy" else []
        told = {x["event"]: x for x in told}
        assert told["load"]["policy"] == "t" and told["load"]["actor"] == "key" and told["load"]["result"] == "ok", told
        assert told["activate"]["to"] == told["load"]["to"] == it["policy"]["active"]["sha256"], told
        w.close()


def waits(server):
    """Does an order for the partition wait?"""
    return json.loads(server.ask("GET", "/admin/state")[1])["engine"]["pending"]


def a_switch_that_waited_while_pulses_passed_is_told_when_it_is_done():
    with Server(*KEY, policy="static:dp=2") as s:
        w = Watcher(s)
        said = w.events()
        next(said)
        runs = threading.Thread(target=s.complete, args=(1500,))
        runs.start()
        while not next(said)[1]["it"]["running"]:
            pass
        how = '{ when = "drain", max_wait_ms = 60000, reason = "late" }'
        start = f"start = function(facts, act) act.bind({{ 0, 1 }}, {how}) end,"
        text = open("policies/fcfs.lua").read().replace("\n  step =", f"\n  {start}\n\n  step =")
        r, text = s.ask("PUT", "/admin/policies/t", text)
        assert r.status == 200, text
        pulses = (x["it"] for event, x in said if event == "pulse")
        assert waits(s)
        waited, told = 0, []
        while waits(s):
            told += [x["reason"] for x in next(pulses)["switches"]]
            waited += not told
        runs.join()
        assert waited > 1, "it was to wait for a request"
        told += [x["reason"] for _ in range(4) for x in next(pulses)["switches"]]
        assert told == ["late"], told
        w.close()


def a_watcher_that_does_not_read_is_passed_by_and_delays_nobody():
    with Server(*KEY, policy="static:dp=2") as s:
        slow = socket.create_connection(("127.0.0.1", s.admin))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /admin/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\n\r\n")
        quick = Watcher(s)
        said = quick.events()
        for _ in range(8):
            s.complete()
            assert next(said)[1]["missed"] == 0
        assert json.loads(s.ask("GET", "/admin/state")[1])["front"]["unsent_bytes"] < 1 << 20
        slow.close()
        quick.close()


def only_so_many_watch_and_the_place_of_one_who_left_is_free():
    with Server(*KEY, policy="static:dp=2") as s:
        all_of_them = [Watcher(s) for _ in range(WATCHERS)]
        assert all(w.r.status == 200 for w in all_of_them)
        assert Watcher(s).r.status == 503
        all_of_them[3].close()
        end = time.monotonic() + 60
        while (w := Watcher(s)).r.status != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        for one in [*all_of_them, w]:
            one.close()


def the_streams_end_with_a_drain_and_keep_no_server_alive():
    with Server(*KEY, policy="static:dp=2") as s:
        w = Watcher(s)
        said = w.events()
        assert next(said)[0] == "pulse"
        assert s.ask("POST", "/admin/drain")[0].status == 200
        assert [event for event, _ in said][-1] == "bye"
        assert s.p.wait(60) == 0


def the_page_is_open_and_what_it_asks_needs_the_key():
    with Server(*KEY, policy="static:dp=2") as s:
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
            assert s.ask("HEAD", path, key=None)[0].status == 200
            r, text = s.ask("GET", path, key=None)
            assert r.status == 200 and r.getheader("Content-Type").startswith(kind), (path, r.status)
            policy = r.getheader("Content-Security-Policy")
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            # nothing from elsewhere, and nothing inline, which the browser would refuse
            where = set(re.findall(rb"\bhttps?://[^\s\"')]+", text)) - {b"http://www.w3.org/2000/svg"}
            assert not where, where
            if path == "/":
                assert not re.search(rb"<script(?![^>]*\bsrc=)|\son[a-z]+=|\sstyle=|<style", text)
        assert s.ask("HEAD", "/admin/events")[0].status == 200 and s.ask("POST", "/")[0].status == 404
        for path in ("/admin/events", "/admin/state", "/admin/policy"):
            assert s.ask("GET", path, key=None)[0].status == 401
            assert s.ask("GET", path, key="wrong")[0].status == 401
        assert s.ask("GET", "/page.js", key=None, port=s.port)[0].status in (401, 404), "not on the public port"


def a_page_of_another_site_is_refused_and_the_own_one_is_not():
    with Server(*KEY, policy="static:dp=2") as s:
        own = f"http://127.0.0.1:{s.admin}"
        params = "/admin/policy/params"
        for headers, status in (
            ({"Origin": own, "Sec-Fetch-Site": "same-origin"}, 400),  # let in; static has no such param
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": f"http://127.0.0.1:{s.port}"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),
            ({"Origin": own + ".evil.example"}, 403),
            ({"Origin": f"http://evil.example:{s.admin}", "Host": f"evil.example:{s.admin}"}, 403),
        ):
            r, text = s.ask("PATCH", params, '{"no_such": 1}', **headers)
            assert r.status == status, (headers, r.status, text)


cases.run(
    [
        steps_tokens_and_switches_are_all_told,
        a_switch_that_waited_while_pulses_passed_is_told_when_it_is_done,
        a_watcher_that_does_not_read_is_passed_by_and_delays_nobody,
        only_so_many_watch_and_the_place_of_one_who_left_is_free,
        the_streams_end_with_a_drain_and_keep_no_server_alive,
        the_page_is_open_and_what_it_asks_needs_the_key,
        a_page_of_another_site_is_refused_and_the_own_one_is_not,
    ]
)
