"use strict";

// The page reads without this script: it draws the curves to choose from, and moves the slider.
const SVG = "http://www.w3.org/2000/svg";
// The markers and dashes of the figures, in their order.
const MARKERS = [
  "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0",
  "M-2.9-2.9h5.8v5.8h-5.8z",
  "M0-3.9L3.7 2.7H-3.7z",
  "M0-4.2L4.2 0L0 4.2L-4.2 0z",
  "M0 3.9L3.7-2.7H-3.7z",
  "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
  "M-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0L-4-2z",
  "M-3.9 0L2.7-3.7V3.7z",
  "M3.9 0L-2.7-3.7V3.7z",
  "M0-4L3.8-1.2L2.4 3.2H-2.4L-3.8-1.2z",
];
const DASHES = 4;
const MOST_MARKED_EPOCHS = 30;
const MARGIN = { left: 56, right: 14, top: 12, bottom: 34 };

function drawn(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function marker(parent, style, x, y, extra = "") {
  const attributes = { d: MARKERS[style.form % MARKERS.length], transform: `translate(${x} ${y})` };
  return drawn(parent, "path", { ...attributes, class: `marker ink-${style.hue} ${extra}` });
}

const plain = (value) => String(Number(value.toPrecision(4)));

// Round numbers: 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let count = Math.ceil(low / step); count * step <= high; count += 1) found.push(count * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    for (const factor of [1, 2, 5]) found.push(factor * 10 ** power);
  }
  const inside = found.filter((value) => value >= low && value <= high);
  return inside.length > 2 ? inside : ticks(low, high, 5);
}

// A line from values to pixels; values that are the same but for rounding get some room around them.
function scale(values, start, end, logarithmic) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const rounding = 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= rounding) [low, high] = logarithmic ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const bend = logarithmic ? Math.log10 : (value) => value;
  const slope = (end - start) / (bend(high) - bend(low));
  return { low, high, at: (value) => start + slope * (bend(value) - bend(low)) };
}

class Chart {
  constructor(figure, curves, styles, hidden) {
    Object.assign(this, { figure, curves, styles, hidden, points: [], chosen: null });
    this.picker = figure.querySelector("select");
    this.log = figure.querySelector("input");
    this.svg = figure.querySelector("svg");
    this.tip = figure.querySelector("output");
    for (const control of [this.picker, this.log]) {
      control.addEventListener("change", () => this.draw());
    }
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.walk(event));
    new ResizeObserver(() => this.draw()).observe(this.svg.parentElement);
  }

  draw() {
    const width = Math.max(this.svg.parentElement.clientWidth, 240);
    const height = Math.round(Math.min(360, Math.max(240, width * 0.56)));
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.points = this.visible();
    this.choose(null);
    if (!this.points.length) {
      const middle = { x: width / 2, y: height / 2, "text-anchor": "middle", class: "axis" };
      drawn(this.svg, "text", middle, "nothing to draw");
      return;
    }
    const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
    const x = scale(this.points.map((point) => point.epoch), MARGIN.left + 8, right - 8, false);
    const y = scale(this.points.map((point) => point.value), bottom - 8, MARGIN.top + 4, this.log.checked);
    for (const point of this.points) Object.assign(point, { x: x.at(point.epoch), y: y.at(point.value) });
    this.axes(x, y, right, bottom);
    // The faint ones first, so that what counts lies on top.
    const inOrder = [...new Set(this.points.map((point) => point.curve))].sort((a, b) => a.main - b.main);
    for (const curve of inOrder) this.line(this.points.filter((point) => point.curve === curve));
    this.cursor = drawn(this.svg, "circle", { r: 7, class: "cursor", visibility: "hidden" });
  }

  visible() {
    const shown = this.curves.filter((curve) => !this.hidden.has(curve.method));
    const points = shown.flatMap((curve) =>
      (curve.points[this.picker.value] ?? []).map(([epoch, value]) => ({ curve, epoch, value })),
    );
    return this.log.checked ? points.filter((point) => point.value > 0) : points;
  }

  axes(x, y, right, bottom) {
    const levels = this.log.checked ? logTicks(y.low, y.high) : ticks(y.low, y.high, 5);
    const decimals = Math.max(...levels.map((value) => (plain(value).split(".")[1] ?? "").length));
    for (const value of levels) {
      const height = y.at(value);
      drawn(this.svg, "line", { x1: MARGIN.left, x2: right, y1: height, y2: height, class: "grid" });
      const place = { x: MARGIN.left - 8, y: height + 4, "text-anchor": "end", class: "axis level" };
      drawn(this.svg, "text", place, this.log.checked ? plain(value) : value.toFixed(decimals));
    }
    const epochs = ticks(x.low, x.high, Math.min(8, Math.max(1, x.high - x.low)));
    for (const epoch of epochs.filter(Number.isInteger)) {
      const place = { x: x.at(epoch), y: bottom + 16, "text-anchor": "middle", class: "axis" };
      drawn(this.svg, "text", place, String(epoch));
    }
    drawn(this.svg, "text", { x: right, y: bottom + 31, "text-anchor": "end", class: "axis" }, "epoch");
  }

  line(points) {
    const { curve } = points[0];
    const style = this.styles[curve.method];
    const path = points.map((point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join("L");
    const classes = `curve ink-${style.hue} dash-${style.dash}${curve.main ? "" : " faint"}`;
    drawn(this.svg, "path", { d: `M${path}`, class: classes, "data-method": curve.method });
    if (curve.main && points.length <= MOST_MARKED_EPOCHS) {
      for (const point of points) marker(this.svg, style, point.x, point.y);
    }
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const shrink = this.svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * shrink, (event.clientY - box.top) * shrink];
    const far = (point) => Math.hypot(point.x - x, point.y - y);
    this.choose(this.points.reduce((a, b) => (a && far(a) <= far(b) ? a : b), null));
  }

  // Arrows left and right go along a curve, up and down to the next curve.
  walk(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (!step || !this.points.length) return;
    event.preventDefault();
    const main = this.points.filter((point) => point.curve.main);
    if (!this.chosen) return this.choose(main.at(-1));
    const curves = [...new Set(main.map((point) => point.curve))];
    const place = Math.max(0, curves.indexOf(this.chosen.curve)) + step[1] + curves.length;
    const along = main.filter((point) => point.curve === curves[place % curves.length]);
    const near = (point) => Math.abs(point.epoch - this.chosen.epoch);
    const here = along.reduce((a, b) => (near(a) <= near(b) ? a : b));
    this.choose(along[along.indexOf(here) + step[0]] ?? here);
  }

  choose(point) {
    this.chosen = point;
    this.tip.hidden = !point;
    this.cursor?.setAttribute("visibility", point ? "visible" : "hidden");
    if (!point) return;
    this.cursor.setAttribute("cx", point.x);
    this.cursor.setAttribute("cy", point.y);
    const { curve, epoch, value } = point;
    const label = this.styles[curve.method].label;
    this.tip.textContent = `${label}, ${curve.name}, epoch ${epoch}: ${value.toPrecision(4)}`;
    const { width, height } = this.svg.viewBox.baseVal;
    this.tip.style.left = `${Math.min(72, Math.max(28, (100 * point.x) / width))}%`;
    this.tip.style.top = `${(100 * point.y) / height}%`;
    this.tip.classList.toggle("below", point.y < height / 3);
  }
}

function showCurves(section, curves) {
  const hidden = new Set();
  const buttons = [...section.querySelectorAll(".legend button")];
  const styles = buttons.map(({ dataset }) => ({
    label: dataset.label, hue: dataset.hue, form: Number(dataset.form), dash: dataset.form % DASHES,
  }));
  const charts = [...section.querySelectorAll(".chart")].map(
    (figure) => new Chart(figure, curves, styles, hidden),
  );
  buttons.forEach((button, method) => {
    const sample = button.querySelector("svg");
    const { hue, dash } = styles[method];
    drawn(sample, "path", { d: "M1 6H27", class: `curve ink-${hue} dash-${dash}` });
    marker(sample, styles[method], 14, 6);
    button.addEventListener("click", () => {
      const shown = !hidden.delete(method) && hidden.add(method) ? "false" : "true";
      button.setAttribute("aria-pressed", shown);
      charts.forEach((chart) => chart.draw());
    });
  });
}

function nearest(times, time) {
  const far = times.map((other) => Math.abs(other - time));
  return far.indexOf(Math.min(...far));
}

function stepOf(steps, time) {
  const begun = steps.filter((start) => start <= time + 1e-9).length;
  return Math.min(Math.max(begun, 1), Math.max(steps.length - 1, 1));
}

function showFlow(section, flow) {
  const slider = section.querySelector("input");
  const clock = section.querySelector(".time output");
  const play = section.querySelector(".play");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const [first, last] = [flow.times[0], flow.times.at(-1)];
  const views = flow.methods.map((method, place) => ({
    method,
    rail: section.querySelectorAll(".rail")[place],
    images: [...section.querySelectorAll(".states")[place].querySelectorAll(".state")].map((node) => ({
      frame: node.querySelector(".frame"),
      bars: [...node.querySelectorAll(".bar")],
    })),
  }));
  let timer = null;

  function show() {
    const time = flow.times[slider.value];
    clock.textContent = `t = ${time.toFixed(2)}`;
    slider.setAttribute("aria-valuetext", clock.textContent);
    for (const { method, rail, images } of views) {
      const frame = nearest(method.times, time);
      const count = Math.max(method.steps.length - 1, 1);
      rail.style.setProperty("--now", (time - first) / (last - first || 1));
      rail.querySelector(".step").textContent = `step ${stepOf(method.steps, time)} of ${count}`;
      images.forEach((image, place) => {
        image.frame.style.setProperty("--at", frame / Math.max(method.times.length - 1, 1));
        image.bars.forEach((bar, index) => fill(bar, method.images[place][frame][index]));
      });
    }
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      slider.stepUp();
      show();
      if (slider.value === slider.max) stop();
    }, still.matches ? 700 : 140);
    show();
  });
  slider.addEventListener("input", () => {
    stop();
    show();
  });
  slider.value = 0;
  show();
}

function fill(bar, share) {
  bar.style.setProperty("--share", share);
  bar.querySelector("b").textContent = `${Math.round(100 * share)} %`;
}

function offerTheme(button) {
  const root = document.documentElement;
  button.addEventListener("click", () => {
    const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme ?? preferred) === "dark" ? "light" : "dark";
  });
}

document.documentElement.classList.add("live");
offerTheme(document.getElementById("theme"));
JSON.parse(document.getElementById("data").textContent).forEach(({ curves, flow }, place) => {
  const task = document.getElementById(`task-${place}`);
  showCurves(task, curves);
  if (flow) showFlow(task.querySelector(".flow"), flow);
});
