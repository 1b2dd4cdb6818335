// The interactive picture of how-it-works: a real run, batch by batch. Its numbers are made by docs/tools/pictures.py.
"use strict";
(() => {
  const UNKNOWN = -1, UNLABELED = -2, SIZE = 400, STRIP = 96;
  const COLOURS = ["#1f78b4", "#1f8a70", "#c2559d", "#6a4c93", "#7fb800", "#8c564b", "#17becf"];
  const AMBER = "#f0a202", GREY = "#9aa1aa";
  const place = document.getElementById("mixture"), run = window.driftgateRun;
  if (!place || !run) return;

  const colour = (label) => (label === UNKNOWN ? AMBER : label === UNLABELED ? GREY : COLOURS[label]);
  const word = (label) => (label === UNKNOWN ? "unknown" : label === UNLABELED ? "nothing" : run.classes[label]);
  const svg = (tag, attributes, parent, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const html = (tag, attributes, parent, text) => {
    const element = Object.assign(document.createElement(tag), attributes);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };

  const bar = html("div", { className: "mixture-bar" }, place);
  const play = html("button", { type: "button" }, bar, "▶ play");
  const slider = html("input", { type: "range", min: 1, max: run.steps.length, value: 30 }, bar);
  slider.setAttribute("aria-label", "batch");
  const counter = html("output", {}, bar);
  const choice = html("select", {}, bar);
  choice.setAttribute("aria-label", "colours");
  for (const [value, text] of [["truth", "colour: what it truly is"], ["learns", "colour: what it teaches"],
    ["answer", "colour: what gmm answers"], ["source", "colour: what the source model answers"]]) {
    html("option", { value }, choice, text);
  }
  const picture = svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE + STRIP}`, role: "img" }, place);
  picture.setAttribute("aria-label", "Samples and Gaussians of one batch in a plane, and the entropies below");
  const told = html("div", { className: "mixture-told" }, place);
  const digit = html("span", { className: "mixture-digit" }, told);
  const line = html("span", {}, told);

  const scale = SIZE / (2 * run.side);
  const spot = ([x, y]) => [SIZE / 2 + x * scale, SIZE / 2 - y * scale].map((v) => Math.min(SIZE - 5, Math.max(5, v)));
  const along = (entropy) => 8 + (SIZE - 16) * (1 - Math.log(entropy) / Math.log(run.smallest));

  function gaussian([xx, xy, yy], mean, label) {
    const middle = (xx + yy) / 2, off = Math.hypot((xx - yy) / 2, xy);
    const angle = (-0.5 * Math.atan2(2 * xy, xx - yy) * 180) / Math.PI;
    const [x, y] = spot(mean), comes = run.shared.includes(label);
    const [rx, ry] = [middle + off, middle - off].map((value) => run.half * Math.sqrt(Math.max(0, value)) * scale);
    svg("ellipse", { cx: x, cy: y, rx, ry, transform: `rotate(${angle} ${x} ${y})`, stroke: comes ? colour(label) : GREY,
      "stroke-width": 1.6, "stroke-dasharray": comes ? "none" : "2 3", fill: comes ? colour(label) : "none",
      "fill-opacity": 0.1 }, picture);
    if (!comes) return;
    svg("circle", { cx: x, cy: y, r: 9, fill: colour(label) }, picture);
    svg("text", { x, y: y + 4, "text-anchor": "middle", class: "mixture-name" }, picture, run.classes[label]);
  }

  function tell(number, sample) {
    const step = run.steps[number];
    digit.style.backgroundPosition = `-${sample * 56}px -${number * 56}px`;
    line.textContent = `gmm: ${word(step.answer[sample])} · source model: ${word(step.source[sample])} · truly `
      + `${word(step.truth[sample])} · teaches ${word(step.learns[sample])} · entropy ${step.entropy[sample]}`;
  }

  function draw() {
    const number = Number(slider.value) - 1, step = run.steps[number], shown = step[choice.value];
    const right = step.answer.filter((label, sample) => label === step.truth[sample]).length;
    counter.textContent = `batch ${number + 1}: ${right} of ${step.truth.length} right`;
    picture.replaceChildren();
    svg("rect", { x: 0.5, y: 0.5, width: SIZE - 1, height: SIZE - 1, rx: 4, class: "mixture-frame" }, picture);
    step.means.forEach((mean, label) => gaussian(step.spreads[label], mean, label));
    const base = SIZE + 46, [known, unknown, limit] = step.thresholds.map((value) => along(Math.max(value, run.smallest)));
    svg("rect", { x: 0, y: base - 26, width: known, height: 42, fill: COLOURS[1], opacity: 0.15 }, picture);
    svg("rect", { x: unknown, y: base - 26, width: SIZE - unknown, height: 42, fill: AMBER, opacity: 0.2 }, picture);
    svg("line", { x1: limit, x2: limit, y1: base - 26, y2: base + 16, class: "mixture-limit" }, picture);
    svg("text", { x: 4, y: base - 30, class: "mixture-text" }, picture, "learn their class");
    svg("text", { x: SIZE - 4, y: base - 30, "text-anchor": "end", class: "mixture-text" }, picture, "learn: unknown");
    svg("text", { x: SIZE / 2, y: base + 34, "text-anchor": "middle", class: "mixture-text" }, picture,
      "entropy of the likelihoods, logarithmic; dashed: answered as unknown to the right");
    step.points.forEach((point, sample) => {
      const [x, y] = spot(point), height = ((sample * 37) % 32) - 21;
      for (const [cx, cy] of [[x, y], [along(step.entropy[sample]), base + height]]) {
        const mark = svg("circle", { cx, cy, r: 4, fill: colour(shown[sample]), class: "mixture-sample" }, picture);
        for (const event of ["pointerenter", "click"]) mark.addEventListener(event, () => tell(number, sample));
      }
    });
    tell(number, 0);
  }

  let timer = null;
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ play";
  }
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (slider.value === slider.max) slider.value = 1;
    play.textContent = "❚❚ stop";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      draw();
      if (slider.value === slider.max) stop();
    }, 350);
  });
  slider.addEventListener("input", () => { stop(); draw(); });
  choice.addEventListener("change", draw);
  draw();
})();
