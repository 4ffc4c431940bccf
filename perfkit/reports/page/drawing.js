// Shared by all sections: number formats, elements, the key, the tooltip, and the list of sections.
// Text from outside is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// ---- number formats

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

function ms(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns < 0) return "-" + ms(-ns);
  const [size, unit] = UNITS.find(([size]) => ns >= size) || UNITS[3];
  const value = ns / size;
  return `${value >= 100 || unit === "ns" ? Math.round(value) : value.toPrecision(3)} ${unit}`;
}

function scaled(value, unit, step = 1000, names = ["", "k", "M", "G", "T", "P"]) {
  let at = 0;
  while (Math.abs(value) >= step && at < names.length - 1) { value /= step; at += 1; }
  const text = Math.abs(value) >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(3);
  return `${text} ${names[at]}${unit}`.trim();
}

const bytes = (value) => scaled(value, "B");
const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);
const count = (value) => value.toLocaleString("en-US", { maximumFractionDigits: Math.abs(value) < 100 ? 2 : 0 });

// ---- making elements

function put(parent, tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  for (const child of children) made.append(child);
  parent.append(made);
  return made;
}

function draw_in(parent, tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

const svg_of = (parent, width, height, label, attributes = {}) =>
  draw_in(parent, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, ...attributes });

let next_id = 0;
const fresh = (what) => `perfkit-${what}-${(next_id += 1)}`;

const clip = (text, length) => (text.length <= length ? text : length < 2 ? "" : `${text.slice(0, length - 1)}…`);
// Width of a letter of the small font, in pixels.
const LETTER = 6.6;
const fitting = (text, width) => clip(text, Math.floor(width / LETTER));
// The name of a kernel or frame without common prefixes.
const short = (name) => name.replace(/^(?:void |autograd::engine::evaluate_function: )/, "").replace(/^(?:.*[\\/])?([^\\/]+\.py\(\d+\): )/, "$1");

const known_kind = new Set([
  "data", "transfer", "forward", "backward", "optimizer", "validation", "callbacks", "logging", "checkpoint", "other",
  "compute", "communication", "copy", "memset", "idle", "step", "range", "op", "api", "python",
  "idle-data", "idle-sync", "idle-allocation", "idle-copy", "idle-launch", "idle-communication", "idle-host",
  "idle-device", "idle-unknown", "idle-profiler", "memory", "neither", "unknown", "dry", "window", "extra",
  "claimed", "at-limit", "overhead", "unexplained",
  "parameters", "buffers", "gradients", "optimizer-state", "activations", "inputs", "temporaries",
]);
// Kinds are classes of the stylesheet: an unknown one must not become a class.
const kind_class = (kind) => `k-${known_kind.has(kind) ? kind : "other"}`;

function swatch(parent, kind) {
  const drawn = draw_in(parent, "svg", { width: 12, height: 12, "aria-hidden": "true" });
  draw_in(drawn, "rect", { width: 12, height: 12, rx: 2, class: kind_class(kind) });
}

function key(parent, entries) {
  const list = put(parent, "ul", { class: "key" });
  for (const [kind, label, value] of entries) {
    const entry = put(list, "li");
    swatch(entry, kind);
    put(entry, "span", {}, label);
    if (value) put(entry, "span", { class: "value" }, value);
  }
}

// One tooltip for the page; screen readers get the label of the focused element instead.
function tooltip(root) {
  const box = put(root, "div", { class: "tip", role: "presentation", hidden: "" });
  return {
    show(event, lines) {
      box.replaceChildren(...lines.filter(Boolean).map((line, i) => {
        const row = document.createElement("div");
        if (i === 0) row.className = "first";
        row.textContent = line;
        return row;
      }));
      box.hidden = false;
      const margin = 14;
      const left = Math.min(event.clientX + margin, window.innerWidth - box.offsetWidth - 4);
      const below = event.clientY + margin + box.offsetHeight < window.innerHeight;
      box.style.left = `${Math.max(4, left)}px`;
      box.style.top = `${below ? event.clientY + margin : Math.max(4, event.clientY - margin - box.offsetHeight)}px`;
    },
    hide() { box.hidden = true; },
  };
}

// Draws now and whenever the width changes; a hidden element has no width and is drawn when it is shown.
function fluid(host, render) {
  let width = 0;
  const again = () => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && now !== width) { width = now; render(now); }
  };
  new ResizeObserver(again).observe(host);
  again();
}

function underline(cell, kind, share) {
  if (share < 0.02) return;
  const length = 60 * share;
  const bar = draw_in(cell, "svg", { class: kind, width: 60, height: 3, "aria-hidden": "true" });
  draw_in(bar, "rect", { x: 60 - length, width: length, height: 3 });
}

// The first index in a sorted column with a value above this one.
function first_after(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const mid = (low + high) >> 1; if (sorted[mid] > value) high = mid; else low = mid + 1; }
  return low;
}

// The smallest of 1, 2, 5, 10, 20, ... that is at least this: the distance between two ticks.
function nice(rough) {
  const size = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= rough);
}

// Columns of width `w` from `left` on can be chosen: by the pointer, with a tip, and by the keys. `about(i)` has the lines
// of text of one; `tell` gets them as one text.
function choose_columns(svg, tip, { n, left, w, top, bottom, about, tell }) {
  const cursor = draw_in(svg, "rect", { y: top, width: Math.max(2, w), height: bottom - top, class: "cursor", visibility: "hidden" });
  let chosen = -1;
  const choose = (i) => {
    chosen = Math.max(0, Math.min(n - 1, i));
    cursor.setAttribute("x", left + chosen * w);
    cursor.setAttribute("visibility", "visible");
    tell(about(chosen).join(", "));
  };
  svg.addEventListener("mousemove", (event) => {
    const i = Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / w);
    if (i < 0 || i >= n) return tip.hide();
    choose(i);
    return tip.show(event, about(i));
  });
  svg.addEventListener("mouseleave", tip.hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -n, End: n }[event.key];
    if (move) { event.preventDefault(); choose(chosen + move); }
  });
}

// ---- sections

const sections = [];
// `has(data)`: whether there is something to draw; `render(at, data, page)` draws it.
const section = (id, title, has, render) => sections.push({ id, title, has, render });
