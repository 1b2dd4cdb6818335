// The live page: one stream of server-sent events, drawn as it comes. Read with fetch, for an EventSource sends no key.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MODES = { learning: "learning", slow: "learning slowly", stopped: "stopped by an alarm", frozen: "not learning" };
const SHOWN = 14, GROUPS = 9; // pictures of a group, groups
let state = null;
let lastGallery = { revision: -1, time: 0 };

// Everything that comes from the service is put into the page as text, never as markup.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`);
const short = (value) => (value == null ? "–" : Math.abs(value) < 1e-6 ? "0" : Number(value.toPrecision(3)).toString());
const bytes = (count) => (count > 1e9 ? `${(count / 1e9).toFixed(2)} GB` : count > 1e6 ? `${(count / 1e6).toFixed(1)} MB`
  : `${(count / 1e3).toFixed(0)} kB`);
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour12: false });
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const headers = () => {
  const key = sessionStorage.getItem("driftgate-key");
  return key ? { Authorization: `Bearer ${key}` } : {};
};

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...(options.headers || {}) } });
  if (answer.status === 401) $("door").hidden = false;
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.error || `The service answered ${answer.status}.`);
  }
  return answer;
}

const post = (path, body = {}) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

let refused = { sentence: "", until: 0 };

// What is wrong with the service, and for some seconds what it refused to do; said once, for it is read out aloud.
function complain(problems) {
  const sentence = [...problems, ...(Date.now() < refused.until ? [refused.sentence] : [])].join(" ");
  if ($("banner").textContent !== sentence) $("banner").textContent = sentence;
  $("banner").hidden = !sentence;
}

// As the log has it, but for people.
const words = (text) => text.replaceAll("+-", "±").replaceAll("_", " ");

// Charts: an axis with round numbers, lines, bars.

function frame(place, label) {
  const width = Math.max(place.clientWidth, 120), height = Math.max(place.clientHeight, 40);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  place.replaceChildren(svg);
  return { svg, width, height, left: 48, right: width - 4, top: 6, bottom: height - 6 };
}

function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function lines(place, label, series, { most, format, least = 0 }) {
  const area = frame(place, label);
  const values = series.flatMap((one) => one.values).filter((value) => value != null);
  const high = most ?? ceiling(Math.max(...values, 0));
  const y = (value) => area.bottom - ((area.bottom - area.top) * (Math.min(value, high) - least)) / (high - least);
  for (const level of [least, (least + high) / 2, high]) {
    area.svg.append(draw("line", { class: "grid", x1: area.left, x2: area.right, y1: y(level), y2: y(level) }));
    area.svg.append(draw("text", { x: area.left - 5, y: y(level) + 4, "text-anchor": "end" }, format(level)));
  }
  const count = Math.max(...series.map((one) => one.values.length), 2);
  const x = (index) => area.left + ((area.right - area.left) * index) / (count - 1);
  for (const one of series) {
    const points = one.values.map((value, index) => [x(index), value]).filter(([, value]) => value != null);
    if (!points.length) continue;
    const path = points.map(([across, value]) => `${across.toFixed(1)},${y(value).toFixed(1)}`).join("L");
    area.svg.append(draw("path", { class: `line stroke-${one.colour}`, d: `M${path}` }));
  }
}

function smooth(values, window = 5) {
  return values.map((_, index) => {
    const part = values.slice(Math.max(0, index - window + 1), index + 1).filter((value) => value != null);
    return part.length ? part.reduce((sum, value) => sum + value, 0) / part.length : null;
  });
}

function histogram(place, novelty) {
  const area = frame(place, "Histogram of the novelty of recent samples, with the thresholds");
  const bottom = area.bottom - 14, bins = novelty.known.length;
  const highest = Math.max(...novelty.known.map((count, bin) => count + novelty.unknown[bin]), 1);
  // Square roots, so that one crowded bin does not flatten all others.
  const tall = (count) => (bottom - area.top) * Math.sqrt(count / highest);
  const x = (value) => 4 + (area.right - 4) * Math.min(Math.max((value - novelty.low) / (novelty.high - novelty.low), 0), 1);
  const wide = (area.right - 4) / bins;
  for (let bin = 0; bin < bins; bin++) {
    const all = tall(novelty.known[bin] + novelty.unknown[bin]);
    const total = novelty.known[bin] + novelty.unknown[bin];
    const known = total ? (all * novelty.known[bin]) / total : 0;
    const common = { x: 4 + bin * wide + 0.5, width: Math.max(wide - 1, 0.5) };
    area.svg.append(draw("rect", { ...common, class: "fill-known", y: bottom - known, height: known }));
    area.svg.append(draw("rect", { ...common, class: "fill-unknown", y: bottom - all, height: Math.max(all - known, 0) }));
  }
  area.svg.append(draw("line", { class: "grid", x1: 4, x2: area.right, y1: bottom, y2: bottom }));
  for (const [name, value] of Object.entries(novelty.thresholds)) {
    if (value == null) continue;
    const kind = name === "prediction" ? "cut" : "taught";
    area.svg.append(draw("line", { class: kind, x1: x(value), x2: x(value), y1: area.top, y2: bottom }));
  }
  area.svg.append(draw("text", { x: 4, y: area.bottom }, short(novelty.low)));
  area.svg.append(draw("text", { x: area.right, y: area.bottom, "text-anchor": "end" }, short(novelty.high)));
}

function meter(share, kind = "") {
  const bar = make("i", { class: kind });
  bar.style.width = `${Math.min(100, 100 * share)}%`;
  return make("div", { class: "track" }, bar);
}

// The parts of the page.

function show() {
  const { series } = state;
  document.title = `${state.name}: ${MODES[state.mode]}`;
  $("name").textContent = state.name;
  $("mode").textContent = MODES[state.mode];
  $("mode").className = `pill ${state.mode}`;
  $("facts").textContent = [
    `${state.method} on ${state.backbone}`, `${state.steps.toLocaleString("en")} steps`, `version ${state.version}`,
    `${state.totals.samples.toLocaleString("en")} answers`, `remembers ${bytes(state.state_bytes)}`,
    ...(state.queue > 64 ? [`${state.queue} waiting`] : []), ...(state.playing ? [`playing: ${state.playing}`] : []),
  ].join(" · ");
  const learns = state.mode === "learning" || state.mode === "slow";
  $("freeze").textContent = learns ? "Stop learning" : "Learn again";
  $("freeze").disabled = $("snapshot").disabled = false;
  const alarm = state.mode === "stopped" ? [...state.events].reverse().find((event) => event.kind === "alarm") : null;
  complain([...state.problems, ...(alarm ? [`Alarm: ${words(alarm.reason)}. It went back and predicts on.`] : [])]);
  showHealth();
  showEvents();
  showSnapshots();
  if (!series.rejected) return;
  const recent = smooth(series.rejected, 10);
  $("share").textContent = percent(recent.at(-1));
  $("share-of").textContent = `the last ${series.rejected.length} batches`;
  const estimated = series.estimated.some((value) => value != null);
  $("estimated-key").hidden = !estimated;
  lines($("share-chart"), `Share answered as unknown: ${percent(recent.at(-1))}`,
    [{ values: smooth(series.rejected), colour: "unknown" }, { values: series.estimated, colour: "estimated" }],
    { most: 1, format: (value) => `${100 * value} %` });
  $("novelty-of").textContent = "of recent samples, heights as square roots";
  histogram($("novelty-chart"), state.novelty);
  $("classes").replaceChildren(...state.classes.map((row) =>
    make("li", {}, make("span", { title: row.name }, row.name), meter(row.share, row.unknown ? "unknown" : ""),
      make("span", {}, percent(row.share)))));
  $("time").textContent = `${Math.round(median(series.answer_ms.slice(-20)))} ms`;
  lines($("time-chart"), "Milliseconds a batch takes to its answer and to the end of its learning",
    [{ values: smooth(series.step_ms, 3), colour: "estimated" }, { values: smooth(series.answer_ms, 3), colour: "known" }],
    { format: (value) => (value >= 1000 ? `${value / 1000} s` : `${value} ms`) });
  if (state.resident_bytes) {
    $("memory").textContent = bytes(state.resident_bytes);
    lines($("memory-chart"), `Memory: ${bytes(state.resident_bytes)}`, [{ values: series.memory_mb, colour: "known" }],
      { format: (value) => (value >= 1000 ? `${value / 1000} GB` : `${value} MB`) });
  }
}

function showHealth() {
  const { health } = state;
  $("alarms").textContent = health.alarms === 1 ? "1 alarm so far" : `${health.alarms} alarms so far`;
  const rows = Object.entries(health.signals).map(([name, signal]) => {
    const usual = signal.expected == null ? "no past yet" : `${short(signal.expected)} ± ${short(signal.spread && Number(signal.spread.toPrecision(2)))}`;
    const evidence = signal.evidence || 0;
    const kind = evidence >= 1 ? "rings" : evidence > 0.5 ? "worry" : "calm";
    return make("li", { title: signal.meaning },
      make("span", {}, name.replaceAll("_", " ")), make("b", {}, short(signal.value)),
      make("span", { class: "sub" }, usual), meter(Math.max(evidence, 0.02), kind));
  });
  $("signals-key").hidden = !rows.length;
  const empty = make("li", { class: "empty" }, "Nothing to judge yet: it first has to know what is usual.");
  $("signals").replaceChildren(...(rows.length ? rows : [empty]));
}

function showEvents() {
  const told = []; // the newest first; snapshots in a row are one line
  for (const event of [...state.events].reverse()) {
    const last = told.at(-1);
    if (event.kind === "snapshot" && last?.kind === "snapshot" && last.reason === event.reason) last.count += 1;
    else told.push({ ...event, count: 1 });
  }
  const rows = told.map((event) =>
    make("li", { class: event.kind }, make("time", {}, clock(event.created)),
      make("b", {}, event.kind + (event.signal ? ` (${words(event.signal)})` : "")),
      ` ${words(event.reason)}${event.count > 1 ? `, and ${event.count - 1} before` : ""}`));
  $("events").replaceChildren(...(rows.length ? rows : [make("li", { class: "empty" }, "Nothing yet.")]));
}

function showSnapshots() {
  const list = $("snapshots");
  const mark = state.snapshots.map((snapshot) => snapshot.id).join();
  if (list.dataset.mark === mark) return; // a button must not vanish under the finger
  list.dataset.mark = mark;
  list.replaceChildren(...[...state.snapshots].reverse().map((snapshot) =>
    make("li", {},
      make("span", {}, snapshot.id === 0 ? "the start" : `step ${snapshot.steps}`,
        make("span", {}, `${clock(snapshot.created)}, ${snapshot.reason}, ${bytes(snapshot.num_bytes)}`)),
      make("button", { type: "button", class: "plain", onclick: () => goBack(snapshot),
        "aria-label": `Go back to snapshot ${snapshot.id}` }, "Go back"))));
}

async function goBack(snapshot) {
  const where = snapshot.id === 0 ? "the start" : `step ${snapshot.steps}`;
  $("question").textContent = `Put the service back to ${where}? What it has learned since is left behind.`;
  const dialog = $("sure");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue === "yes") await act(() => post(`v1/rollback/${snapshot.id}`, { reason: "asked for on the page" }));
}

async function act(work) {
  try { await work(); } catch (error) {
    refused = { sentence: error.message, until: Date.now() + 8000 };
    complain(state ? state.problems : []);
  }
}

// The gallery: looked at again when it has changed, but not while somebody types a name.

async function showGallery() {
  if (state.gallery == null) return;
  const now = Date.now();
  const typing = $("groups").contains(document.activeElement) && document.activeElement.tagName === "INPUT";
  if (typing || state.gallery === lastGallery.revision || now - lastGallery.time < 4000) return;
  lastGallery = { revision: state.gallery, time: now };
  const found = await (await ask(`v1/unknowns?thumbnails=${SHOWN}`)).json();
  const count = found.groups.reduce((sum, group) => sum + group.items.length, found.alone.length);
  $("gallery").hidden = false;
  $("gallery-count").textContent = `${count} of at most ${found.size}, in memory only`;
  const groups = found.groups.slice(0, GROUPS).map((group) => groupOf(group));
  const rest = [...found.groups.slice(GROUPS).flatMap((group) => group.items), ...found.alone];
  if (rest.length) groups.push(groupOf({ items: rest }, true));
  $("groups").replaceChildren(...(groups.length ? groups : [make("p", { class: "empty" }, "No unknowns yet.")]));
}

function groupOf(group, alone = false) {
  const count = group.items.length;
  const title = alone ? `${count} others` : group.name ? group.name : `These ${count} look alike`;
  const images = group.items.filter((item) => item.thumbnail).slice(0, SHOWN).map((item) =>
    make("img", { src: item.thumbnail, alt: `unknown of novelty ${short(item.novelty)}`, title: `novelty ${short(item.novelty)}` }));
  const rest = make("span", { class: "sub" }, alone ? "" : group.name ? `${count} pictures` : "a new class?");
  const box = make("div", { class: "group" }, make("p", {}, title, " ", rest), make("div", { class: "pictures" }, ...images));
  if (!alone) {
    const field = make("input", { value: group.name || "", placeholder: "its name", maxlength: 80, "aria-label": `Name of ${title}` });
    box.append(make("form", { onsubmit: (event) => {
      event.preventDefault();
      field.blur();
      lastGallery = { revision: -1, time: 0 };
      act(() => post("v1/unknowns/name", { ids: group.items.map((item) => item.id), name: field.value.trim() || null }));
    } }, field, make("button", { type: "submit" }, group.name ? "Rename" : "Name it")));
  }
  return box;
}

async function download() {
  const url = URL.createObjectURL(await (await ask("v1/unknowns.zip")).blob());
  make("a", { href: url, download: "unknowns.zip" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// The stream: it comes back by itself after a break.

async function listen() {
  const answer = await ask("v1/events");
  $("door").hidden = true;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    const last = parts.filter((part) => part.startsWith("data: ")).at(-1);
    if (!last) continue;
    state = JSON.parse(last.slice(6));
    show();
    showGallery().catch(() => {});
  }
}

async function listenOn() {
  for (;;) {
    try { await listen(); } catch { /* said below */ }
    $("mode").textContent = $("door").hidden ? "no connection" : "locked";
    $("mode").className = "pill gone";
    await new Promise((wait) => setTimeout(wait, 2000));
  }
}

$("freeze").addEventListener("click", () =>
  act(() => post(state.mode === "learning" || state.mode === "slow" ? "v1/freeze" : "v1/thaw", { reason: "asked for on the page" })));
$("snapshot").addEventListener("click", () => act(() => post("v1/snapshots", { reason: "asked for on the page" })));
$("download").addEventListener("click", () => act(download));
$("forget").addEventListener("click", () => act(() => ask("v1/unknowns", { method: "DELETE" })));
$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("driftgate-key", $("key").value);
  $("key").value = "";
  $("door").hidden = true;
});
$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim() === "#11151a";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
listenOn();
