// The control room's script. One stream of events (GET /admin/events) feeds every picture, four times a second; orders
// go out as single calls. What the server says is put into the page as text, never as markup.

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const WINDOW = 480; // pulses that are kept: two minutes
const RECENT = 40; // pulses that "now" is about: ten seconds

// ---- small helpers

function node(name, attributes, text) {
  const n = document.createElement(name);
  for (const [k, v] of Object.entries(attributes ?? {})) n.setAttribute(k, v);
  if (text !== undefined) n.textContent = text;
  return n;
}

function shape(name, attributes, title) {
  const n = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) n.setAttribute(k, v);
  if (title) n.append(Object.assign(document.createElementNS(SVG, "title"), {textContent: title}));
  return n;
}

const say = (id, text, how) => {
  const n = $(id);
  if (n.textContent !== text) n.textContent = text;
  n.className = how ?? "";
};
const seconds = s => s === null ? "–" : s < 1 ? `${(s * 1000).toPrecision(3)} ms` : `${s.toPrecision(3)} s`;
const count = n => n >= 1e6 ? `${(n / 1e6).toPrecision(3)} M` : n >= 1e4 ? `${(n / 1e3).toPrecision(3)} k`
  : n >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toPrecision(2);
const layoutName = l => [l.sp > 1 && `SP ${l.sp}`, l.tp > 1 && `TP ${l.tp}`, l.pp > 1 && `PP ${l.pp}`]
  .filter(Boolean).join(" × ") || "one rank";

// ---- calls, with the key

let key = sessionStorage.getItem("key") ?? "";

function askKey(wrong) {
  say("ask-wrong", wrong ? "That was not the key." : "", "bad");
  if (!$("ask").open) $("ask").showModal();
  return new Promise(done => $("ask").addEventListener("close", () => {
    key = $("key").value;
    $("key").value = "";
    sessionStorage.setItem("key", key);
    $("forget").hidden = false;
    done();
  }, {once: true}));
}

let asking = null; // one dialog at a time, however many calls want the key

async function call(method, path, body) {
  for (;;) {
    const used = key;
    const r = await fetch(path, {method, body, headers: used ? {Authorization: `Bearer ${used}`} : {}});
    if (r.status !== 401) return r;
    if (used === key) {
      asking ??= askKey(used !== "").finally(() => { asking = null; });
      await asking;
    }
  }
}

async function answer(method, path, body) {
  const r = await call(method, path, body);
  const text = await r.text();
  let it = null;
  try {
    it = JSON.parse(text);
  } catch {}
  return {ok: r.ok, status: r.status, text, it, why: it?.error?.message ?? `${r.status} ${text.slice(0, 200)}`};
}

$("forget").hidden = !key;
$("forget").onclick = () => {
  sessionStorage.removeItem("key");
  location.reload();
};

// ---- what is known

const pulses = []; // newest last
const marks = []; // switches: {at, text}
const log = [];

// The q-quantile of what a histogram of buckets has counted between two looks, or null.
function quantile(old, now, q) {
  const n = now.n.map((c, i) => c - (old?.n[i] ?? 0));
  const all = n.reduce((a, b) => a + b, 0);
  if (all <= 0) return null;
  let want = q * all;
  for (let i = 0; i < n.length; i++) {
    if (want <= n[i] && n[i] > 0) {
      const low = i ? now.le[i - 1] : 0;
      return i < now.le.length ? low + (now.le[i] - low) * want / n[i] : low;
    }
    want -= n[i];
  }
  return now.le.at(-1);
}

// How many of the last decisions a policy beside the live one would have taken alike, or null.
function sameShare(now, old) {
  if (now?.state !== "on" || now.sha256 !== old?.sha256 || now.compared <= old.compared) return null;
  return (now.equal - old.equal) / (now.compared - old.compared);
}

function note(text, how) {
  log.unshift({text: `${new Date().toLocaleTimeString()}  ${text}`, how});
  log.length = Math.min(log.length, 100);
  $("log").replaceChildren(...log.map(l => node("li", l.how ? {class: l.how} : {}, l.text)));
}

// Those that are new here, oldest first.
function takeSwitches(it) {
  const known = new Set(marks.map(m => m.it.serial));
  const fresh = it.switches.filter(s => !known.has(s.serial)).reverse();
  marks.push(...fresh.map(s => ({at: it.uptime_s - s.ago_s, it: s})));
  marks.sort((a, b) => a.it.serial - b.it.serial);
  if (marks.length > 256) marks.splice(0, marks.length - 256);
  return fresh;
}

// A pulse tells of a switch once; the state has those of before, and those that passed this page by.
async function catchUp() {
  const r = await answer("GET", "/admin/state");
  if (r.it?.engine) takeSwitches(r.it.engine);
}

function takePulse(it) {
  const before = pulses.at(-1), old = pulses.at(-RECENT);
  const span = before ? it.uptime_s - before.uptime_s : it.interval_s;
  if (before && span < 0) pulses.length = 0; // another process
  const rate = (name, from) => from && it.uptime_s > from.uptime_s
    ? (it.totals[name] - from.totals[name]) / (it.uptime_s - from.uptime_s) : null;
  it.seen = {
    ttft50: quantile(old?.ttft, it.ttft, .5), ttft99: quantile(old?.ttft, it.ttft, .99),
    itl50: quantile(old?.itl, it.itl, .5), itl99: quantile(old?.itl, it.itl, .99),
    out: rate("generation_tokens", pulses.at(-4)), in: rate("prompt_tokens", pulses.at(-4)),
    rate: rate("submitted", old ?? pulses[0]),
    same: sameShare(it.shadow, pulses.at(-4)?.shadow),
  };
  pulses.push(it);
  if (pulses.length > WINDOW) pulses.shift();
  for (const s of takeSwitches(it))
    if (before) note(`${s.verb} ranks ${s.ranks.join(", ")}: ${s.outcome}${s.reason ? `, ${s.reason}` : ""}`);
}

// ---- pictures

// full: what the top of the picture stands for; without it the most that is shown.
function curve(id, names, format, full) {
  const values = names.map(name => pulses.map(p => p.seen[name] ?? p[name] ?? null));
  const most = Math.max(0, ...values.flat().filter(v => v !== null)), top = full ?? (most || 1);
  const x = i => 480 - (pulses.length - 1 - i) * 480 / (WINDOW - 1);
  $(id).replaceChildren(...values.map((row, k) => {
    let d = "", pen = false;
    row.forEach((v, i) => {
      if (v !== null) d += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${(88 - 84 * v / top).toFixed(1)}`;
      pen = v !== null;
    });
    return shape("path", {d, class: `s${k}`});
  }));
  say(`${id}-top`, most ? `top ${format(top)}` : "");
}

const colours = new Map(); // layout -> its class, in the order of appearance

function colourOf(layout) {
  const name = layoutName(layout);
  if (!colours.has(name)) colours.set(name, `l${colours.size % 8}`);
  return colours.get(name);
}

// The layout that took most of a group's time in one pulse.
function mainLayout(steps, group) {
  let best = null;
  for (const s of steps) if (s.group === group && (!best || s.ms > best.ms)) best = s;
  return best;
}

// Pulses that show the same thing of a rank become one rectangle.
function laneOf(rank) {
  const runs = [];
  for (const p of pulses) {
    const g = p.groups.find(one => one.ranks.includes(rank));
    const s = g && mainLayout(p.steps, g.id);
    const what = s ? `${g.id} ${layoutName(s.layout)}` : "";
    const last = runs.at(-1);
    if (last?.what === what) {
      last.to = p.uptime_s;
      last.steps += s?.n ?? 0;
    } else {
      runs.push({what, from: last?.to ?? p.uptime_s - p.interval_s, to: p.uptime_s, group: g, layout: s?.layout, steps: s?.n ?? 0});
    }
  }
  return runs;
}

function drawLanes(it) {
  const ranks = it.ranks.map(r => r.id), height = Math.max(8, Math.min(22, 220 / ranks.length)), left = 46;
  const end = it.uptime_s, x = t => left + (1 - (end - t) / 120) * 600;
  const all = ranks.length * height, parts = [];
  ranks.forEach((rank, row) => {
    const y = row * height;
    parts.push(shape("rect", {x: left, y: y + 1, width: 600, height: height - 2, class: "quiet"}));
    for (const r of laneOf(rank)) {
      if (!r.layout) continue;
      const from = Math.max(left, x(r.from)), to = x(r.to);
      if (to > from)
        parts.push(shape("rect", {x: from, y: y + 1, width: to - from, height: height - 2, class: colourOf(r.layout)},
          `rank ${rank}, group ${r.group.id} (ranks ${r.group.ranks.join(", ")}): ${layoutName(r.layout)}, ${r.steps} steps`));
    }
    if (height >= 10) {
      const t = shape("text", {x: 0, y: y + height * .72, class: "rank"});
      t.textContent = `rank ${rank}`;
      parts.push(t);
    }
  });
  for (const m of marks)
    if (m.at > end - 120) {
      const text = `${m.it.verb} ranks ${m.it.ranks.join(", ")}: ${m.it.outcome}. ${m.it.reason}`;
      parts.push(shape("line", {x1: x(m.at), x2: x(m.at), y1: 0, y2: all, class: "mark"}, text));
    }
  $("lanes").setAttribute("viewBox", `0 0 ${left + 600} ${all}`);
  $("lanes").replaceChildren(...parts);
  $("legend").replaceChildren(...[...colours].map(([name, colour]) => {
    const s = node("span"), box = shape("svg", {viewBox: "0 0 1 1", "aria-hidden": "true"});
    box.append(shape("rect", {width: 1, height: 1, class: colour}));
    s.append(box, `${name} `);
    return s;
  }), node("span", {}, "| red line: a switch"));
}

function rows(id, list) {
  $(id).replaceChildren(...list.map(cells => {
    const tr = node("tr");
    tr.append(...cells.map(c => node("td", {}, c)));
    return tr;
  }));
}

function drawSwitches(it) {
  rows("switches", marks.slice(-50).reverse().map(({at, it: s}) => [
    `${Math.max(0, it.uptime_s - at).toFixed(0)} s ago`, s.verb, s.ranks.join(", "), s.outcome,
    `${s.worst_stall_ms.toFixed(1)} ms`, s.reason]));
}

function drawKv(it) {
  const lines = it.ranks.map(r => [r.alive ? `rank ${r.id}` : `rank ${r.id} failed`, r.kv]);
  if (it.host_kv) lines.push(["host", it.host_kv]);
  if (it.disk_kv) lines.push(["disk", it.disk_kv]);
  $("kv").replaceChildren(...lines.map(([name, kv]) => {
    const row = node("div", {class: "kvrow"}), total = Math.max(1, kv.total);
    const bar = shape("svg", {viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true"});
    bar.append(shape("rect", {width: 100, height: 12, class: "f-free"}),
      shape("rect", {width: 100 * (kv.held + kv.cached) / total, height: 12, class: "f-cached"}),
      shape("rect", {width: 100 * kv.held / total, height: 12, class: "f-held"}));
    row.append(node("span", {}, name), bar, node("span", {}, `${count(kv.held)} + ${count(kv.cached)} of ${count(kv.total)}`));
    return row;
  }));
}

function drawNow(it) {
  const s = it.seen;
  for (const name of ["ttft50", "ttft99", "itl50", "itl99"]) say(name, seconds(s[name]));
  for (const name of ["out", "in", "rate"]) say(name, s[name] === null ? "–" : `${count(s[name])}/s`);
  say("running", count(it.running));
  say("waiting", it.held ? `${count(it.waiting)}, ${count(it.held)} held` : count(it.waiting));
  const kv = it.ranks.reduce((a, r) => ({held: a.held + r.kv.held, total: a.total + r.kv.total}), {held: 0, total: 0});
  say("kvuse", `${(100 * kv.held / Math.max(1, kv.total)).toFixed(1)}%`);
  rows("classes", it.queue.map(c => [c.priority, count(c.n), seconds(c.oldest_s),
    c.held.map(h => `${count(h.n)}: ${h.reason}`).join("; ") || "–"]));
  $("holds-part").hidden = !it.holds.length;
  rows("holds", it.holds.map(h => [h.reason, count(h.now), count(h.times)]));
}

// ---- limits

const LIMITS = {
  max_num_seqs: ["Requests that run at once", ""], max_num_batched_tokens: ["Token budget of a step", "tokens"],
  max_num_queued_reqs: ["Requests that may wait, 0: as many as can be", ""], max_num_queued_tokens: ["Prompt tokens that may wait, 0: all", "tokens"],
  max_park_seconds: ["Keep the KV of a preempted one for", "s"], starvation_seconds: ["Starved after, 0: never", "s"],
};
let limits = null; // what GET /admin/limits said: the names, what each may be, and what it was at the start
let asked = false;

function limitSaid(name, text, bad) {
  say(`limit-${name}-said`, text, bad ? "bad" : "");
  $(`limit-${name}`).toggleAttribute("aria-invalid", bad);
}

// What it may be, unless the server has refused something there.
function limitRange(name) {
  const {least, most} = limits.ranges[name];
  return `${least} to ${most}; ${limits.start[name]} at the start`;
}

async function setLimit(name) {
  const box = $(`limit-${name}`);
  if (box.value !== "" && Number(box.value) === pulses.at(-1)?.limits[name]) return limitSaid(name, limitRange(name), false);
  const r = await answer("PATCH", "/admin/limits", JSON.stringify({[name]: box.value === "" ? null : Number(box.value)}));
  limitSaid(name, r.ok ? limitRange(name) : r.why, !r.ok);
  say("limits-said", r.ok ? r.it.changed || `${name} is as it was` : `${name} stays as it is`, r.ok ? "good" : "bad");
  box.dataset.refused = r.ok ? "" : "1";
}

function limitField(name) {
  const [words, unit] = LIMITS[name] ?? [name, ""], id = `limit-${name}`, label = node("label", {for: id}, unit ? `${words}, ` : words);
  const box = node("input", {id, type: "number", step: "any", "aria-describedby": `${id}-said`});
  if (unit) label.append(node("span", {class: "unit"}, unit));
  box.onchange = () => setLimit(name);
  const part = node("div");
  part.append(label, box, node("small", {id: `${id}-said`, role: "status"}, limitRange(name)));
  return part;
}

async function askLimits() {
  asked = true;
  const r = await answer("GET", "/admin/limits");
  if (!r.ok) return say("limits-said", r.why, "bad");
  limits = r.it;
  $("limits").replaceChildren(...Object.keys(limits.limits).map(limitField));
}

// A field that somebody is in, or whose value was refused, stays as it is.
function drawLimits(it) {
  if (!asked) askLimits();
  for (const [name, v] of Object.entries(limits ? it.limits : {})) {
    const box = $(`limit-${name}`);
    if (box && box !== document.activeElement && !box.dataset.refused) box.value = v;
  }
}

$("limits").onsubmit = e => e.preventDefault();

// ---- the policy

// A value as it is typed: a table of numbers is an object.
function typed(v) {
  return typeof v === "object" ? JSON.stringify(v) : String(v);
}

function fromTyped(text, was) {
  if (typeof was === "number") return Number(text);
  if (typeof was === "boolean") return text === "true";
  if (typeof was !== "object") return text;
  try { return JSON.parse(text); } catch { return text; } // the server says what is wrong with it
}

function valueBox(name, p) {
  const choices = typeof p.value === "boolean" ? ["true", "false"] : p.choices;
  if (!choices) return node("input", {type: typeof p.value === "number" ? "number" : "text", name, step: "any", "aria-label": name});
  const box = node("select", {name, "aria-label": name});
  box.append(...choices.map(c => node("option", {value: c}, c)));
  return box;
}

function field(name, p) {
  const label = node("label", {}, p.unit ? `${name}, ` : name), pair = node("span", {class: "pair"}), box = valueBox(name, p);
  box.value = typed(p.value);
  const send = v => patch(name, fromTyped(v, p.value));
  if (typeof p.value === "number" && Number.isFinite(p.min) && Number.isFinite(p.max)) {
    const whole = p.type === "integer"; // else what is read is sent: four digits
    const span = p.max - p.min, wide = span > 1000; // then each place of the slider is so many times the one before
    const slide = node("input", {type: "range", min: wide ? 0 : p.min, max: wide ? 1 : p.max, step: whole && !wide ? 1 : "any",
      "aria-label": `${name}, slider`});
    const value = () => wide ? p.min + Math.expm1(slide.value * Math.log1p(span)) : Number(slide.value);
    const short = () => Math.min(p.max, Math.max(p.min, Number(value().toPrecision(wide ? 3 : 4))));
    const read = () => String(whole ? Math.round(short()) : short());
    const tell = v => slide.setAttribute("aria-valuetext", v);
    slide.value = wide ? Math.log1p(p.value - p.min) / Math.log1p(span) : p.value;
    tell(typed(p.value));
    slide.oninput = () => tell(box.value = read());
    slide.onchange = () => send(read());
    box.min = p.min;
    box.max = p.max;
    pair.append(slide);
  }
  box.onchange = () => send(box.value);
  pair.append(box);
  if (p.unit) label.append(node("span", {class: "unit"}, p.unit));
  label.append(pair, node("small", {}, `${p.doc ?? ""} (default ${typed(p.default)}${p.unit ? ` ${p.unit}` : ""})`));
  return label;
}

let shown = ""; // which policy's params the form has

async function patch(name, value) {
  const r = await answer("PATCH", "/admin/policy/params", JSON.stringify({[name]: value}));
  say("params-said", r.ok ? `${name} is ${typed(value)}` : r.why, r.ok ? "good" : "bad");
  shown = "";
}

function drawPolicy(it) {
  const p = it.policy, a = p.active;
  say("p-name", a.name);
  say("p-sha", a.sha256.slice(0, 12));
  say("p-doc", a.doc ?? "");
  say("p-previous", p.previous ? `${p.previous.name} ${p.previous.sha256.slice(0, 12)}` : "–");
  say("p-strikes", String(p.strikes), p.strikes ? "bad" : "");
  say("p-fallback", String(Object.values(p.fallback_steps).reduce((x, y) => x + y, 0)));
  say("p-withdrawn", String(p.withdrawn), p.withdrawn ? "bad" : "");
  say("p-error", p.last_error || "none");
  const state = `${a.sha256} ${JSON.stringify(a.params)}`;
  if (state === shown || $("params").contains(document.activeElement)) return;
  if (!state.startsWith(shown.slice(0, 64))) say("params-said", ""); // what was said is of another policy
  shown = state;
  $("params").replaceChildren(...Object.entries(a.params ?? {}).map(([name, one]) => field(name, one)));
}

const CAME_OUT = {unknown: "not known", as_predicted: "as predicted", better: "better than predicted",
  undecided: "undecided", worse: "worse than predicted"};
const CHANGES = {ttft: "Time to first token, mean", tpot: "Between tokens, mean", throughput: "Tokens a second"};
const percent = v => `${v > 0 ? "+" : ""}${(100 * v).toFixed(Math.abs(v) < .1 ? 1 : 0)}%`;

function drawPrediction(p) {
  const w = p?.what_if, b = p?.shadow;
  $("pr-table").hidden = !w;
  if (w) say("pr-from", `By a what-if on ${count(w.requests)} requests, ${w.ago_s.toFixed(0)} s before the swap: ${CAME_OUT[p.result]}` +
    (p.strict ? "; held to it, it goes back when that is worse by more than chance" : ""), p.result === "worse" ? "note bad" : "note");
  rows("pr-rows", (w?.changes ?? []).map(c => [CHANGES[c.name],
    c.stretches ? `${percent(c.predicted)} (${percent(c.predicted_least)} to ${percent(c.predicted_most)})` : "–",
    c.observed === undefined ? "–" : `${percent(c.observed)} (${percent(c.observed_least)} to ${percent(c.observed_most)})`,
    CAME_OUT[c.result]]));
  say("pr-beside", b ? `Beside the policy before it, ${(100 * b.equal).toFixed(1)}% of its ${count(b.decisions)} decisions were the same, ` +
    `and ${(100 * b.failed).toFixed(1)}% of its calls failed; live ${(100 * p.failed).toFixed(1)}%.` : "", "note");
}

function drawProbation(p) {
  const on = p.probation.state === "on", last = p.last_probation, now = p.probation;
  $("probation").hidden = !on && !last;
  if (on) say("pr-said", `${p.active.name} is watched, for ${now.since_s.toFixed(0)} s of ${now.window_s.toFixed(0)}: ${count(now.requests)} requests` +
    now.guards.filter(g => g.sees).map(g => `; ${g.sees}`).join(""));
  else if (last) say("pr-said", `The last one, of ${last.name} ${last.sha256.slice(0, 12)}: ${last.outcome.replace("_", " ")}: ${last.reason}`,
    last.outcome === "rolled_back" || last.outcome === "withdrawn" ? "bad" : "");
  if (on || last) drawPrediction((on ? now : last).prediction);
}

function drawBeside(it) {
  const b = it.shadow;
  $("beside").hidden = !b;
  if (!b) return;
  const on = b.state === "on";
  say("b-name", b.name);
  say("b-sha", b.sha256.slice(0, 12));
  say("b-said", on ? `is asked for another ${b.left_s.toFixed(0)} s` : `has ended: ${b.why_ended}`);
  $("b-end").hidden = !on;
  say("b-compared", count(b.compared));
  say("b-equal", b.compared ? `${(100 * b.equal / b.compared).toFixed(1)}%` : "–");
  say("b-passed", count(b.passed_over));
  say("b-live", b.live_did || "–");
  say("b-would", b.shadow_would || "–");
  rows("b-verbs", Object.entries(b.verbs).map(([name, n]) => [name, count(n.both), count(n.live), count(n.shadow)]));
  curve("c-same", ["same"], v => `${(100 * v).toFixed(0)}%`, 1);
}

// Of a comparison: is there a difference, and how sure is that?
function chance(c) {
  if (!c) return "";
  if (c.enough === false) return "too few to tell";
  if (c.p >= .05) return `no more than chance (p ${c.p.toPrecision(2)})`;
  return `${c.canary_longer === undefined ? "more than chance" : c.canary_longer > .5 ? "the canary's are longer" : "the canary's are shorter"} (p ${c.p.toPrecision(2)})`;
}

const COUNTS = [["Came", "came"], ["Ended", "ended"], ["Errors", "errors"], ["Refused", "refused"], ["Preempted", "preempted"]];
const TIMES = [["Time to first token", "ttft"], ["Between tokens", "tpot"], ["Waited", "queue"]];

function drawCanary(it) {
  const c = it.canary;
  $("canary").hidden = !c;
  if (!c) return;
  const on = c.state === "on", {live, canary} = c.sides, seen = c.compared;
  say("y-name", c.name);
  say("y-sha", c.sha256.slice(0, 12));
  say("y-said", `${on ? "decides" : "decided"} for ${c.groups.length > 1 ? "groups" : "group"} ${c.groups.join(", ")}, ${(100 * c.share).toFixed(0)}% of the ranks; ` +
    (on ? `${c.left_s.toFixed(0)} s are left` : `it has ended: ${c.why_ended}`));
  $("y-end").hidden = !on;
  say("y-beside", `Live: ${c.beside}`);
  rows("y-rows", [
    ...COUNTS.map(([words, name]) => [words, count(live[name]), count(canary[name]), live[name] + canary[name] ? chance(seen[name]) : ""]),
    ...TIMES.flatMap(([words, name]) => ["p50", "p90", "p99"].map((q, i) => [`${words}, ${q}`,
      ...[live, canary].map(s => seconds(s[`${name}_ms`].n ? s[`${name}_ms`][q] / 1000 : null)), i ? "" : chance(seen[name])])),
    ["Tokens a second", count(live.tokens_per_s), count(canary.tokens_per_s), ""],
  ]);
  const calls = Object.entries(c.calls).map(([verdict, n]) => `${count(n)} ${verdict}`).join(", ");
  say("y-calls", `Its calls: ${calls || "none"}; decided in its stead: ${count(c.fallbacks)}${c.last_error ? `; last error: ${c.last_error}` : ""}`, "note");
}

// Which groups there are changes with every switch; what is chosen stays.
function drawGroups(it) {
  const text = it.groups.map(g => `${g.id}: ranks ${g.ranks.join(", ")}`), box = $("y-groups");
  if (text.join() === [...box.options].map(o => o.text).join()) return;
  const chosen = new Set([...box.selectedOptions].map(o => o.value));
  box.replaceChildren(...it.groups.map((g, i) => node("option", {value: g.id, ...(chosen.has(`${g.id}`) ? {selected: ""} : {})}, text[i])));
}

$("params").onsubmit = e => e.preventDefault();

// ---- the editor

let line = 0; // where the error is; 0: none
let edited = 0; // counts changes, so that only the newest check is shown

function drawLines() {
  const n = $("source").value.split("\n").length;
  $("lines").replaceChildren(...Array.from({length: n}, (_, i) => i + 1 === line ? node("b", {}, `${i + 1}\n`) : `${i + 1}\n`));
  $("lines").scrollTop = $("source").scrollTop;
}

function goTo(at) {
  const text = $("source").value.split("\n"), from = text.slice(0, at - 1).join("\n").length + (at > 1 ? 1 : 0);
  $("source").focus();
  $("source").setSelectionRange(from, from + (text[at - 1] ?? "").length);
}

async function check() {
  const mine = ++edited, name = encodeURIComponent($("name").value);
  const r = await answer("POST", `/admin/policy/check?name=${name}`, $("source").value);
  if (mine !== edited) return false;
  line = r.ok ? 0 : r.it?.error?.line ?? 0;
  say("said", r.ok ? "It passes its tests and the dry runs." : r.why, r.ok ? "good" : "bad");
  if (line) {
    const b = node("button", {type: "button"}, `go to line ${line}`);
    b.onclick = () => goTo(line);
    $("said").append(" ", b);
  }
  $("report").hidden = !r.ok;
  say("report", r.it?.report ?? "");
  $("live").disabled = $("shadow").disabled = $("y-begin").disabled = !r.ok;
  drawLines();
  return r.ok;
}

// ---- what if: both policies on the server's last traffic

// Both over one time and one scale; where nobody came, the line goes on.
function pair(id, runs, name, format) {
  const end = Math.max(1e-9, ...runs.map(r => r ? r.curve[name].length * r.curve.bin_s : 0));
  const most = Math.max(0, ...runs.flatMap(r => r ? r.curve[name] : []).filter(v => v !== null)), top = most || 1;
  $(id).replaceChildren(...runs.map((r, k) => {
    let d = "";
    r?.curve[name].forEach((v, i) => {
      if (v !== null) d += `${d ? "L" : "M"}${(480 * (i + .5) * r.curve.bin_s / end).toFixed(1)} ${(88 - 84 * v / top).toFixed(1)}`;
    });
    return shape("path", {d: d && `${d}h.1`, class: `s${k}`});
  }));
  say(`${id}-top`, most ? `top ${format(most)}` : "");
}

// Words, the figure of a run, how it is shown; and whether it follows from what steps take.
const FIGURES = [
  ["Finished", r => r.finished, count], ["Refused", r => r.refused, count], ["Never ended", r => r.unfinished, count],
  ...[["Time to first token", "ttft_ms"], ["Between tokens", "tpot_ms"], ["Until complete", "completion_ms"]]
    .flatMap(([words, name]) => ["p50", "p90", "p99"].map(p => [`${words}, ${p}`, r => r[name][p] ?? null, ms => seconds(ms === null ? null : ms / 1000), true])),
  ["Tokens a second", r => r.throughput, count, true], ["Preemptions", r => r.preemptions, count], ["Switches", r => r.switches, count],
];

function drawTrial(it) {
  const {live, other, window: w} = it;
  say("trial-title", `What if: ${other.name} ${other.sha256.slice(0, 12)}${live ? ` instead of ${live.name} ${live.sha256.slice(0, 12)}` : ""}`);
  say("trial-window", `Simulated on the last ${w.seconds.toFixed(0)} s that the server keeps: ${count(w.requests)} requests. Steps cost what ` +
    `${count(it.model.steps)} of them took then, with an error of ${(100 * it.model.error).toFixed(1)}% on one.`, "note");
  $("trial-notes").replaceChildren(...it.problems.map(t => node("li", {class: "bad"}, t)), ...it.notes.map(t => node("li", {}, t)));
  for (const [id, name, format] of [["t-ttft", "ttft_ms", v => seconds(v / 1000)], ["t-tpot", "tpot_ms", v => seconds(v / 1000)],
    ["t-tok", "throughput", count], ["t-wait", "waiting", count]]) pair(id, [live, other], name, format);
  rows("trial-rows", FIGURES.map(([words, of, show, timed]) => {
    const a = live && of(live), b = of(other), cell = (r, v) => (timed && r.guessed >= .001 ? "~" : "") + show(v);
    return [words, live ? cell(live, a) : "–", cell(other, b),
      a > 0 && b !== null && a !== b ? `${b > a ? "+" : ""}${(100 * (b / a - 1)).toFixed(1)}%` : ""];
  }));
  $("trial").hidden = false;
}

$("whatif").onclick = async () => {
  const name = encodeURIComponent($("name").value);
  $("whatif").disabled = true;
  say("said", "It is being simulated on the server's last traffic.");
  const r = await answer("POST", `/admin/what-if?name=${name}`, $("source").value);
  $("whatif").disabled = false;
  say("said", !r.ok ? r.why : r.it.ok ? "It went through the last traffic without an error." : "It failed on the last traffic; below is why.",
    r.ok && r.it.ok ? "good" : "bad");
  if (r.ok) return drawTrial(r.it);
  line = r.it?.error?.line ?? 0;
  drawLines();
};

let later = 0;

function changed() {
  edited++;
  $("live").disabled = $("shadow").disabled = $("y-begin").disabled = true;
  drawLines();
  clearTimeout(later);
  later = setTimeout(check, 700);
}

async function order(method, path, body, done) {
  const r = await answer(method, path, body);
  say("said", r.ok ? done : r.why, r.ok ? "good" : "bad");
  if (!r.ok && r.it?.error?.line) {
    line = r.it.error.line;
    drawLines();
  }
  listFiles();
}

async function listFiles() {
  const r = await answer("GET", "/admin/policies");
  const now = $("files").value;
  const kept = [...new Set((r.it?.versions ?? []).filter(v => v.bytes).map(v => v.name))].sort();
  const rest = (r.it?.files ?? []).filter(f => !kept.includes(f));
  $("files").replaceChildren(...kept.map(f => node("option", {value: f}, f)),
    ...rest.map(f => node("option", {value: `${f}?from=folder`}, `${f} (in the folder)`)));
  if (now) $("files").value = now;
}

$("source").oninput = changed;
$("source").onscroll = () => { $("lines").scrollTop = $("source").scrollTop; };
$("source").onkeydown = e => {
  if (e.key !== "Tab" || e.shiftKey || e.ctrlKey || e.altKey) return;
  if ($("source").dataset.leave) return delete $("source").dataset.leave; // Escape, Tab: out of the editor
  e.preventDefault();
  document.execCommand("insertText", false, "    ");
};
$("source").onkeyup = e => { if (e.key === "Escape") $("source").dataset.leave = "1"; };
$("check").onclick = check;
$("live").onclick = () => order("PUT", `/admin/policies/${encodeURIComponent($("name").value)}`, $("source").value,
  `${$("name").value} is live.`);
$("shadow").onclick = () => order("POST", `/admin/policies/${encodeURIComponent($("name").value)}/shadow`,
  $("source").value, `${$("name").value} is asked beside the live policy; the section above shows what it would do.`);
$("b-end").onclick = () => order("DELETE", "/admin/shadow", undefined, "It is asked no more.");
$("y-begin").onclick = () => {
  const groups = [...$("y-groups").selectedOptions].map(o => o.value).join(",");
  if (!groups) return say("said", "Which groups? Choose some, but not all, in the list beside the button.", "bad");
  order("POST", `/admin/policies/${encodeURIComponent($("name").value)}/canary?groups=${groups}`, $("source").value,
    `${$("name").value} decides for these groups; the section above shows how requests fare on both sides.`);
};
$("y-end").onclick = () => order("DELETE", "/admin/canary", undefined, "All groups are the live policy's again.");
$("back").onclick = () => order("POST", "/admin/policy/rollback", undefined, "The policy before it is live again.");
$("from").onchange = async () => {
  const f = $("from").files[0];
  if (!f) return;
  $("source").value = await f.text();
  $("name").value = f.name.replace(/\.lua$/, "").slice(0, 40);
  changed();
};
$("open").onclick = async () => {
  const [name, from] = $("files").value.split("?");
  const r = await answer("GET", `/admin/policies/${encodeURIComponent(name)}${from ? `?${from}` : ""}`);
  if (!r.ok) return say("said", r.why, "bad");
  $("source").value = r.text;
  $("name").value = name;
  changed();
};

// ---- the stream

let due = false;

function draw() {
  due = false;
  const it = pulses.at(-1);
  if (!it || document.hidden) return;
  drawNow(it);
  curve("c-ttft", ["ttft50", "ttft99"], seconds);
  curve("c-itl", ["itl50", "itl99"], seconds);
  curve("c-tok", ["out", "in"], count);
  curve("c-req", ["running", "waiting"], count);
  drawLanes(it);
  drawSwitches(it);
  drawKv(it);
  drawPolicy(it);
  drawProbation(it.policy);
  drawLimits(it);
  drawBeside(it);
  drawCanary(it);
  drawGroups(it);
}

function take(event, data) {
  const {missed, it} = JSON.parse(data);
  if (missed) {
    note(`${missed} events passed this page by: it was too slow`);
    catchUp();
  }
  if (event === "pulse") takePulse(it);
  else if (event === "policy") note(`${it.event}${it.policy ? ` ${it.policy} ${it.to.slice(0, 12)}` : ""}, by ${it.actor}: ${it.result}${it.reason ? `, ${it.reason}` : ""}`,
    it.result === "ok" ? "" : "bad");
  else if (event === "bye") note("the server ends");
  if (!due) {
    due = true;
    requestAnimationFrame(draw);
  }
}

async function read(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", event = "", data = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    text += value;
    const whole = text.split("\n");
    text = whole.pop();
    for (const l of whole) {
      if (l.startsWith("event: ")) event = l.slice(7);
      else if (l.startsWith("data: ")) data = l.slice(6);
      else if (l === "" && data) {
        take(event, data);
        event = data = "";
      }
    }
  }
}

async function watch() {
  for (;;) {
    try {
      const r = await call("GET", "/admin/events");
      if (r.ok) {
        say("link", "live");
        asked = false; // it may be another process
        marks.length = 0;
        catchUp();
        listFiles();
        await read(r.body);
      } else {
        say("link", `no events: ${r.status}`, "bad");
      }
    } catch {
      // the connection ended; below says so
    }
    say("link", "not connected; trying again", "bad");
    await new Promise(done => setTimeout(done, 2000));
  }
}

drawLines();
watch();
