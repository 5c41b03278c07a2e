"use strict";

// The page reads without this script: it draws the curves to choose from, sorts tables and moves
// the sliders.
const SVG = "http://www.w3.org/2000/svg";
const MOST_MARKED_EPOCHS = 30;
const MARGIN = { right: 14, top: 12, bottom: 34 };
const LETTER = 7; // pixels of a label's digit

function drawn(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function short(value) {
  const [number, size] = [Number(value.toPrecision(8)), Math.abs(value)];
  return size && (size < 1e-3 || size >= 1e6) ? number.toExponential() : String(number);
}

// Round numbers, 1, 2 or 5 times a power of ten, each with its text.
function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const text = largest < 1e-3 || largest >= 1e6 ? short : (value) => value.toFixed(decimals);
  const found = [];
  for (let count = Math.ceil(low / step); count * step <= high; count += 1) found.push(count * step);
  return found.map((value) => ({ value, text: text(value) }));
}

// At most twelve; where fewer than three are inside, as on any axis.
function logTicks(low, high) {
  const [first, last] = [low, high].map((value) => Math.floor(Math.log10(value)));
  const factors = last - first < 4 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = first; power <= last; power += Math.ceil((last - first + 1) / 12)) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  const inside = found.filter((value) => value >= low && value <= high);
  if (inside.length < 3) return ticks(low, high, 5);
  return inside.map((value) => ({ value, text: short(value) }));
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
  constructor(figure, curves, epochs, buttons) {
    Object.assign(this, { curves, epochs, buttons, points: [], chosen: null });
    this.picker = figure.querySelector("select");
    this.log = figure.querySelector("input");
    this.svg = figure.querySelector("svg");
    this.tip = figure.querySelector("output");
    for (const control of [this.picker, this.log]) control.addEventListener("change", () => this.draw());
    for (const kind of ["pointermove", "pointerdown"]) {
      this.svg.addEventListener(kind, (event) => this.point(event));
    }
    // A finger that is lifted leaves too, and its reader has yet to read.
    this.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.choose(null));
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
    const y = scale(this.points.map((point) => point.value), bottom - 8, MARGIN.top + 4, this.log.checked);
    const levels = this.log.checked ? logTicks(y.low, y.high) : ticks(y.low, y.high, 5);
    const left = 20 + LETTER * Math.max(...levels.map(({ text }) => text.length));
    const x = scale(this.points.map((point) => point.epoch), left + 8, right - 8, false);
    for (const point of this.points) Object.assign(point, { x: x.at(point.epoch), y: y.at(point.value) });
    for (const { value, text } of levels) {
      const at = y.at(value);
      drawn(this.svg, "line", { x1: left, x2: right, y1: at, y2: at, class: "grid" });
      drawn(this.svg, "text", { x: left - 8, y: at + 4, "text-anchor": "end", class: "axis level" }, text);
    }
    for (const epoch of this.epochs.filter((epoch) => epoch >= x.low && epoch <= x.high)) {
      const place = { x: x.at(epoch), y: bottom + 16, "text-anchor": "middle", class: "axis" };
      drawn(this.svg, "text", place, String(epoch));
    }
    drawn(this.svg, "text", { x: right, y: bottom + 31, "text-anchor": "end", class: "axis" }, "epoch");
    // The faint ones first, so that what counts lies on top.
    const inOrder = [...new Set(this.points.map((point) => point.curve))].sort((a, b) => a.main - b.main);
    for (const curve of inOrder) this.line(curve, this.points.filter((point) => point.curve === curve));
    this.cursor = drawn(this.svg, "circle", { r: 7, class: "cursor", visibility: "hidden" });
  }

  visible() {
    const shown = this.curves.filter(({ method }) => this.buttons[method].ariaPressed === "true");
    const points = shown.flatMap((curve) =>
      (curve.points[this.picker.value] ?? []).map(([epoch, value]) => ({ curve, epoch, value })),
    );
    return this.log.checked ? points.filter((point) => point.value > 0) : points;
  }

  // As the method's button shows it.
  line(curve, points) {
    const [line, marker] = [...this.buttons[curve.method].querySelectorAll("path")];
    const path = line.cloneNode();
    path.setAttribute("d", `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`);
    path.classList.toggle("faint", !curve.main);
    path.dataset.method = curve.method;
    this.svg.append(path);
    if (!curve.main || points.length > MOST_MARKED_EPOCHS) return;
    for (const { x, y } of points) {
      const mark = marker.cloneNode();
      mark.setAttribute("transform", `translate(${x} ${y})`);
      this.svg.append(mark);
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
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (!step) return;
    event.preventDefault();
    const main = this.points.filter((point) => point.curve.main);
    const from = main.find((point) => point === this.chosen);
    const kind = ["ArrowUp", "ArrowDown"].includes(event.key) ? "epoch" : "curve";
    const line = main.filter((point) => from && point[kind] === from[kind]);
    this.choose(from ? line.at((line.indexOf(from) + step) % line.length) : main.at(-1));
  }

  choose(point) {
    this.chosen = point;
    this.tip.hidden = !point;
    this.cursor?.setAttribute("visibility", point ? "visible" : "hidden");
    if (!point) return;
    this.cursor.setAttribute("cx", point.x);
    this.cursor.setAttribute("cy", point.y);
    // All that lie under each other there; thin lines only where there is no bold one.
    const here = this.points.filter(({ epoch, y }) => epoch === point.epoch && y.toFixed() === point.y.toFixed());
    const main = here.filter(({ curve }) => curve.main);
    const told = (main.length ? main : here).map(({ curve, epoch, value }) =>
      `${this.buttons[curve.method].textContent}, ${curve.name}, epoch ${epoch}: ${value.toPrecision(4)}`);
    this.tip.textContent = told.join("\n");
    const { width, height } = this.svg.viewBox.baseVal;
    this.tip.style.left = `${Math.min(72, Math.max(28, (100 * point.x) / width))}%`;
    this.tip.style.top = `${(100 * point.y) / height}%`;
    this.tip.classList.toggle("below", point.y < height / 3);
  }
}

function showCurves(section, curves, epochs) {
  const buttons = [...section.querySelectorAll(".legend button")];
  const charts = [...section.querySelectorAll(".chart")].map((figure) => new Chart(figure, curves, epochs, buttons));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.ariaPressed = String(button.ariaPressed !== "true");
      charts.forEach((chart) => chart.draw());
    });
  }
}

function showFlow(section, flow) {
  const slider = section.querySelector("input");
  const clock = section.querySelector(".clock");
  const play = section.querySelector(".play");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const [first, last] = [flow.times[0], flow.times.at(-1)];
  const views = flow.methods.map((moments, place) => ({
    moments,
    step: section.querySelectorAll(".step")[place],
    images: [...section.querySelectorAll(".states")[place].querySelectorAll(".state")].map((node) => ({
      frame: node.querySelector(".frame:last-child"),
      bars: [...node.querySelectorAll(".bar")],
    })),
  }));
  let timer = null;

  function show() {
    const time = flow.times[slider.value];
    clock.textContent = `t = ${time.toFixed(2)}`;
    slider.setAttribute("aria-valuetext", clock.textContent);
    section.style.setProperty("--now", (time - first) / (last - first || 1));
    for (const { moments, step, images } of views) {
      const moment = moments[slider.value];
      step.textContent = moment.step;
      images.forEach(({ frame, bars }, image) => {
        frame.style.setProperty("--at", moment.at);
        bars.forEach((bar, place) => fill(bar, moment.shares[image][place]));
      });
    }
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function moveTo(place) {
    stop();
    slider.value = place;
    show();
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
  slider.addEventListener("input", () => moveTo(slider.value));
  addEventListener("beforeprint", () => moveTo(slider.max)); // paper does not move
  moveTo(0);
}

function fill(bar, share) {
  bar.style.setProperty("--share", share ?? 0);
  bar.querySelector("b").textContent = share === null ? "–" : `${Math.round(100 * share)} %`;
}

// By the first number of a cell, else by its text; cells without a number come last.
function offerSorting(head) {
  const body = head.closest("table").tBodies[0];
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const way = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const read = (row) => row.cells[head.cellIndex].textContent.trim();
    const number = (row) => Number.parseFloat(read(row).replaceAll(",", ""));
    const missing = (row) => Number.isNaN(number(row));
    body.append(...[...body.rows].sort((a, b) =>
      missing(a) - missing(b) || way * (number(a) - number(b) || read(a).localeCompare(read(b)))));
  });
}

// Whether something is wider than its place, now or once its run is unfolded.
function tellOverflow(region) {
  const hint = region.parentElement.querySelector(".hint");
  const look = () => { hint.hidden = region.scrollWidth <= region.clientWidth + 1; };
  new ResizeObserver(look).observe(region);
}

// A link to a run unfolds it.
function unfoldTarget() {
  const run = document.getElementById(location.hash.slice(1));
  if (!(run instanceof HTMLDetailsElement)) return;
  run.open = true;
  run.scrollIntoView();
}

document.documentElement.classList.add("live");
document.querySelectorAll(".scroll").forEach(tellOverflow);
addEventListener("hashchange", unfoldTarget);
document.querySelectorAll(".sortable th").forEach(offerSorting);
JSON.parse(document.getElementById("data").textContent).forEach(({ curves, epochs, flow }, place) => {
  const task = document.getElementById(`task-${place}`);
  showCurves(task, curves, epochs);
  if (flow) showFlow(task.querySelector(".flow"), flow);
});
unfoldTarget();
