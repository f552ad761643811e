"""The control room in a real browser (Chromium, headless): $python tests/oracle/room.py --binary BINARY [--keep FOLDER]
What an operator does on the page, against a server of the simulated device under load. --keep leaves screenshots of
both themes there. Chromium and its driver come from the distribution's packages."""

import argparse
import http.client
import json
import os
import re
import shutil
import sys
import threading
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

sys.path.insert(0, "tests/rig")
os.environ.setdefault("MOONSHIFT_BUILD", "build")
WAIT_S = 60


def browser():
    o = webdriver.ChromeOptions()
    o.binary_location = shutil.which("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1900",
    ):
        o.add_argument(flag)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=o, service=Service(shutil.which("chromedriver")))


class Page:
    def __init__(self, driver, server):
        self.d, self.s = driver, server

    def __getitem__(self, name):
        return self.d.find_element(By.ID, name)

    def until(self, what, true):
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                if true():
                    return
            except Exception:  # the page is drawn anew four times a second
                pass
            time.sleep(0.1)
        raise AssertionError(f"{what}: never; the page says {self['said'].text!r}, {self['log'].text!r}")

    def write(self, text):
        self.d.execute_script(
            "const s = document.getElementById('source'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))",
            text,
        )

    def set_param(self, name, value):
        """In one go: the form is made anew whenever params change."""
        self.d.execute_script(
            f"const b = document.querySelector('#params input[name={name}]:not([type=range])');"
            "b.value = arguments[0]; b.dispatchEvent(new Event('change'))",
            value,
        )

    def rows(self, name):
        """In one go: they are made anew four times a second."""
        return self.d.execute_script(
            "return [...document.getElementById(arguments[0]).rows].map(r => [...r.cells].map(c => c.textContent))",
            name,
        )

    def press(self, *keys):
        ActionChains(self.d).send_keys(*keys).perform()


def load(server, stop):
    def client(i):
        while not stop.is_set():
            c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            body = {"model": "m", "prompt": [3 + i] * 60, "max_tokens": 30, "ignore_eos": True, "priority": i % 2}
            try:
                c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                c.getresponse().read()
            except OSError:
                time.sleep(0.1)
            c.close()

    threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(12)]
    for t in threads:
        t.start()
    return threads


def the_key_is_asked_for_once(p):
    p.d.get(f"http://127.0.0.1:{p.s.admin}/")
    p.until("the dialog", lambda: p["ask"].get_attribute("open") is not None)
    p["key"].send_keys("wrong", Keys.ENTER)
    p.until("a second try", lambda: "not the key" in p["ask-wrong"].text)
    p["key"].send_keys("sesame", Keys.ENTER)
    p.until("events", lambda: p["link"].text == "live")
    p.d.refresh()
    p.until("events after a reload", lambda: p["link"].text == "live")
    assert "sesame" not in p.d.current_url


def numbers_come(p):
    p.until("a time to first token", lambda: p["ttft50"].text.endswith("s") and p["itl99"].text.endswith("s"))
    p.until("tokens", lambda: p["out"].text.endswith("/s") and float(p["out"].text.split()[0].split("/")[0]) > 0)
    p.until("a curve", lambda: p.d.find_elements(By.CSS_SELECTOR, "#c-tok path[d^=M]"))
    p.until("KV of both ranks", lambda: len(p.d.find_elements(By.CLASS_NAME, "kvrow")) == 2)


def a_switch_is_seen_with_its_reason(p):
    had = len(p["switches"].find_elements(By.TAG_NAME, "tr"))
    p["name"].clear()
    p["name"].send_keys("shift")
    p.write(open("policies/shift.lua").read())
    p.until("a check that passes", p["live"].is_enabled)
    p["live"].click()
    p.until("the other policy", lambda: p["p-name"].text == "shift")
    p.until("a switch", lambda: len(p["switches"].find_elements(By.TAG_NAME, "tr")) > had)
    p.until("its mark", lambda: p.d.find_elements(By.CSS_SELECTOR, "#lanes line.mark title"))
    p.until("layouts in colour", lambda: p.d.find_elements(By.CSS_SELECTOR, "#lanes rect.l0"))

    def told():  # without the stall, which grows as tokens come
        return [row[1:4] + row[5:] for row in p.rows("switches")]

    what = told()
    p.d.refresh()
    p.until("the same on a page that comes later", lambda: told()[-len(what) :] == what)


def an_error_is_refused_at_its_line(p):
    p["name"].clear()
    p["name"].send_keys("mine")
    good = open("policies/fcfs.lua").read()
    lines = good.split("\n")
    lines.insert(4, "local x = os.time()")
    p.write("\n".join(lines))
    p.until("a refusal", lambda: "mine.lua:5:" in p["said"].text and "os" in p["said"].text)
    assert not p["live"].is_enabled()
    assert p["lines"].find_element(By.TAG_NAME, "b").text.strip() == "5"
    p["said"].find_element(By.TAG_NAME, "button").click()
    at = p.d.execute_script(
        "const s = document.getElementById('source'); return s.value.slice(s.selectionStart, s.selectionEnd)"
    )
    assert at == "local x = os.time()", at
    p.write(good)
    p.until("it passes", p["live"].is_enabled)
    assert "ok" in p["report"].text or "passed" in p["report"].text, p["report"].text[:300]


def what_if_shows_both(p):
    p["whatif"].click()
    p.until("both were simulated", lambda: "without an error" in p["said"].text and p["trial"].is_displayed())
    assert "mine" in p["trial-title"].text and "instead of shift" in p["trial-title"].text, p["trial-title"].text
    assert "requests" in p["trial-window"].text, p["trial-window"].text
    for name in ("t-ttft", "t-tpot", "t-tok"):
        curves = [c.get_attribute("d") for c in p[name].find_elements(By.TAG_NAME, "path")]
        assert len(curves) == 2 and all(c.startswith("M") for c in curves), (name, curves)
    assert len(p["trial-rows"].find_elements(By.TAG_NAME, "tr")) > 10
    first = p["trial-rows"].find_elements(By.CSS_SELECTOR, "tr:first-child td")
    assert first[0].text == "Finished" and all(c.text[0] in "123456789" for c in first[1:3]), [c.text for c in first]
    assert p["p-name"].text == "shift" and p["whatif"].is_enabled()
    good = p["source"].get_attribute("value")
    p.write(good.replace("return {", "return {,", 1))
    p["whatif"].click()
    p.until("a refusal with its line", lambda: "mine.lua:" in p["said"].text and p["whatif"].is_enabled())
    p.write(good)
    p.until("it passes again", p["live"].is_enabled)


LAZY = """return { api = 1, doc = "starts nobody while two wait", step = function(view, act)
  for _, g in ipairs(view.idle) do
    local b = act.batch(g)
    b:decodes()
    if view.waiting.n < 2 then b:prefill(view.waiting, 8) end
    if b.tokens > 0 then act.forward(g, b) end
  end
  act.wake(20)
end }
"""


def one_is_asked_beside_the_live_one(p):
    assert not p["beside"].is_displayed()
    good = p["source"].get_attribute("value")
    p.write(LAZY)
    p.until("it may be asked", p["shadow"].is_enabled)
    p["shadow"].click()
    p.until("it is asked", lambda: p["beside"].is_displayed() and p["b-name"].text == "mine")
    p.until("decisions", lambda: p["b-compared"].text not in ("–", "0") and p["b-equal"].text.endswith("%"))
    p.until("differences", lambda: "group" in p["b-live"].text + p["b-would"].text)
    p.until("verbs", lambda: "start" in p["b-verbs"].text)
    p.until("a curve", lambda: p.d.find_elements(By.CSS_SELECTOR, "#c-same path[d*=L]"))
    first = p["b-sha"].text
    p.write(good)
    p.until("the other one may", p["shadow"].is_enabled)
    p["shadow"].click()
    p.until("it has taken its place", lambda: p["b-sha"].text != first and "is asked for" in p["b-said"].text)
    assert p["p-name"].text == "shift"


def some_groups_are_a_canarys(p):
    """Under a policy that keeps two groups, as the partition stays as long as a canary runs."""
    assert not p["canary"].is_displayed()
    assert p.s.ask("PUT", "/admin/policies/static", open("policies/static.lua").read())[0].status == 200
    assert p.s.ask("PATCH", "/admin/policy/params", json.dumps({"dp": 2}))[0].status == 200
    p.until("two groups", lambda: len(p["y-groups"].find_elements(By.TAG_NAME, "option")) == 2)
    p.until("its probation is over", lambda: "static" in p["pr-said"].text and "The last one" in p["pr-said"].text)
    p.until("it may begin", p["y-begin"].is_enabled)
    p["y-begin"].click()
    p.until("it asks which", lambda: "Which groups?" in p["said"].text)
    for one in p["y-groups"].find_elements(By.TAG_NAME, "option"):
        ActionChains(p.d).key_down(Keys.CONTROL).click(one).key_up(Keys.CONTROL).perform()
    p["y-begin"].click()
    p.until("not all of them", lambda: "keeps a group" in p["said"].text and "bad" in p["said"].get_attribute("class"))
    Select(p["y-groups"]).deselect_by_index(0)
    chosen = Select(p["y-groups"]).first_selected_option.get_attribute("value")
    p["y-begin"].click()
    p.until("it decides", lambda: p["canary"].is_displayed() and f"decides for group {chosen}, 50%" in p["y-said"].text)
    assert p["y-name"].text == "mine" and p["y-beside"].text == "Live: static"
    p.until("both serve", lambda: all(n not in ("", "0") for n in p.rows("y-rows")[1][1:3]))
    p.until("times of both", lambda: all(re.search(r"\d m?s$", t) for t in p.rows("y-rows")[5][1:3]))
    p.until("its calls", lambda: re.match(r"Its calls: .* ok; decided in its stead: 0$", p["y-calls"].text))
    p["y-end"].click()
    p.until("it has ended", lambda: "it has ended: an operator has ended it" in p["y-said"].text)
    assert not p["y-end"].is_displayed()
    p["back"].click()
    p.until("the one before", lambda: p["p-name"].text == "shift")


def it_goes_live_and_back(p):
    p["live"].click()
    p.until("mine is live", lambda: p["p-name"].text == "mine")
    p.until("it is asked no more", lambda: "it is the live policy now" in p["b-said"].text)
    assert not p["b-end"].is_displayed()
    p.until("it is in the log", lambda: "activate mine" in p["log"].text)
    Select(p["files"]).select_by_value("mine")
    p.write("")
    p["open"].click()
    p.until("its source", lambda: p["source"].get_attribute("value") == open("policies/fcfs.lua").read())
    p.until("it passes", p["live"].is_enabled)
    Select(p["files"]).select_by_value("flying?from=folder")
    p["open"].click()
    p.until("a file's text", lambda: p["source"].get_attribute("value") == open("policies/flying.lua").read())
    p["back"].click()
    p.until("the one before", lambda: p["p-name"].text == "shift")


def a_parameter_is_set(p):
    p.until("its params", lambda: p.d.find_elements(By.CSS_SELECTOR, "#params input[name=threshold]"))
    p.set_param("threshold", "77")
    p.until("it is said", lambda: p["params-said"].text == "threshold is 77")
    it = json.loads(p.s.ask("GET", "/admin/policy")[1])
    assert it["active"]["params"]["threshold"]["value"] == 77, it["active"]["params"]
    p.set_param("threshold", "-5")
    p.until(
        "it is refused",
        lambda: "threshold" in p["params-said"].text and "bad" in p["params-said"].get_attribute("class"),
    )


def limits_are_shown_and_set(p):
    def limits():
        return json.loads(p.s.ask("GET", "/admin/limits")[1])["limits"]

    p.until("the limits", lambda: p["limit-max_num_seqs"].get_attribute("value") == str(limits()["max_num_seqs"]))
    assert len(p["limits"].find_elements(By.TAG_NAME, "input")) == len(limits())
    box = p["limit-max_num_seqs"]
    box.click()
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("7", Keys.ENTER)
    p.until("it is said", lambda: p["limits-said"].text.startswith("max_num_seqs ") and "-> 7" in p["limits-said"].text)
    assert limits()["max_num_seqs"] == 7
    p.until("at most seven run", lambda: int(p["running"].text) <= 7)
    before = limits()
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("0", Keys.ENTER)  # what a server says is shown at the field
    p.until("a refusal", lambda: "max_num_seqs" in p["limit-max_num_seqs-said"].text)
    assert box.get_attribute("aria-invalid") is not None and "bad" in p["limit-max_num_seqs-said"].get_attribute(
        "class"
    )
    assert limits() == before
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("128", Keys.TAB)
    p.until("it is as it was", lambda: limits()["max_num_seqs"] == 128)
    p.until("no refusal any more", lambda: box.get_attribute("aria-invalid") is None)
    p.s.ask("PATCH", "/admin/limits", json.dumps({"max_park_seconds": 3.5}))  # somebody else does
    p.until("that, too", lambda: p["limit-max_park_seconds"].get_attribute("value") == "3.5")


HOLDING = """return { api = 1, needs = {}, doc = "holds low requests", admit = function(r, view, act)
  if r.priority > 0 and not r.again then act.hold(r, "low requests rest", view.now + 0.03) end
end, step = function(view, act)
  for _, g in ipairs(view.idle) do
    local b = act.batch(g)
    b:decodes()
    b:prefill(view.waiting, 512)
    if b.tokens > 0 then act.forward(g, b) end
  end
end }
"""


def holds_and_what_was_predicted_are_seen(p):
    p["name"].clear()
    p["name"].send_keys("holding")
    p.write(HOLDING)
    p.until("it passes", p["live"].is_enabled)
    p["whatif"].click()
    p.until("it was tried", lambda: "without an error" in p["said"].text)
    p["live"].click()
    p.until("it is live", lambda: p["p-name"].text == "holding")
    p.until("holds by class", lambda: "low requests rest" in p["classes"].text)
    p.until("holds by reason", lambda: "low requests rest" in p["holds"].text)
    p.until("the probation", lambda: "holding is watched" in p["pr-said"].text)
    first = p.rows("pr-rows")[0]
    assert first[0] == "Time to first token, mean" and "%" in first[1], p.rows("pr-rows")
    assert "By a what-if on " in p["pr-from"].text, p["pr-from"].text
    it = json.loads(p.s.ask("GET", "/admin/policy")[1])["probation"]["prediction"]["what_if"]["changes"][0]
    assert it["predicted"] > 0.1, it  # it holds half of them
    # it came out somehow: what the page says of that is what the server says
    p.until("its end", lambda: p["pr-said"].text.startswith("The last one, of holding "))
    last = json.loads(p.s.ask("GET", "/admin/policy")[1])["last_probation"]
    assert last["reason"] in p["pr-said"].text, (last, p["pr-said"].text)
    seen = last["prediction"]["what_if"]["changes"]
    words = {"as_predicted": "as predicted", "worse": "worse than predicted", "better": "better than predicted"}
    for one, row in zip(seen, p.rows("pr-rows"), strict=True):
        assert row[3] == words.get(one["result"], row[3]) and ("observed" in one) == ("%" in row[2]), (one, row)


def it_can_be_used_without_a_mouse(p):
    p.d.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen = []
    for _ in range(80):
        p.press(Keys.TAB)
        name = p.d.execute_script(
            "const a = document.activeElement; return a.id || a.getAttribute('href') || a.className"
        )
        if name == "source":
            break
        seen.append(name)
    assert name == "source" and "files" in seen and "#policy" in seen, seen
    p.press(Keys.ESCAPE, Keys.TAB)
    assert p.d.execute_script("return document.activeElement.id") == "check"
    for n in p.d.find_elements(By.CSS_SELECTOR, "input, select, button, textarea"):
        named = p.d.execute_script(
            "const n = arguments[0]; return n.labels?.length || n.textContent.trim() || n.getAttribute('aria-label')", n
        )
        assert named, n.get_attribute("outerHTML")


def both_themes_have_contrast(p):
    for theme in ("light", "dark"):
        p.d.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        )
        for name in ("p-name", "p-doc", "said", "b-said", "limits-said", "pr-said"):
            ratio = p.d.execute_script(CONTRAST, p[name])
            assert ratio >= 4.5, (theme, name, ratio)
        if KEEP:
            time.sleep(1)
            p.d.save_screenshot(os.path.join(KEEP, f"room-{theme}.png"))
            p.d.execute_script("document.getElementById('queue-title').scrollIntoView()")
            p.d.save_screenshot(os.path.join(KEEP, f"limits-{theme}.png"))


CONTRAST = """
const lum = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => (v /= 255) <= .03928 ? v / 12.92
  : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
let n = arguments[0], ground;
const ink = lum(getComputedStyle(n).color);
while (!ground || ground === 'rgba(0, 0, 0, 0)') { ground = getComputedStyle(n).backgroundColor; n = n.parentElement; }
const g = lum(ground);
return (Math.max(ink, g) + .05) / (Math.min(ink, g) + .05);
"""


def nothing_went_wrong_in_the_browser(p):
    wrong = [
        m
        for m in p.d.get_log("browser")
        if m["level"] == "SEVERE"
        and " 401 " not in m["message"]
        and "/admin/polic" not in m["message"]
        and "/admin/what-if" not in m["message"]
        and "/admin/limits" not in m["message"]
    ]  # what was refused on purpose above
    assert not wrong, wrong


CASES = [
    the_key_is_asked_for_once,
    numbers_come,
    a_switch_is_seen_with_its_reason,
    an_error_is_refused_at_its_line,
    what_if_shows_both,
    one_is_asked_beside_the_live_one,
    some_groups_are_a_canarys,
    it_goes_live_and_back,
    a_parameter_is_set,
    limits_are_shown_and_set,
    holds_and_what_was_predicted_are_seen,
    it_can_be_used_without_a_mouse,
    both_themes_have_contrast,
    nothing_went_wrong_in_the_browser,
]

parser = argparse.ArgumentParser()
parser.add_argument("--binary", required=True)
parser.add_argument("--keep")
options = parser.parse_args()
KEEP = options.keep
os.environ["MOONSHIFT_BUILD"] = os.path.dirname(options.binary)

from serving import Server  # noqa: E402

failed = 0
with Server("--admin-key", "sesame", "--policy-probation-seconds", "8", policy="static:dp=2") as server:
    stop, driver = threading.Event(), browser()
    clients, page = load(server, stop), Page(driver, server)
    for case in CASES:
        try:
            case(page)
        except Exception as e:  # each is reported, and the others still run
            failed += 1
            print(f"{case.__name__}: {type(e).__name__}: {str(e)[:2000]}")
    driver.quit()
    stop.set()
    for t in clients:
        t.join()
print(f"{len(CASES) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
