// Draws perfkit's figure data (figures.json) as SVG and tables: perfkit.draw(root, data).
// One script for the HTML page, the TensorBoard tab and whoever else has the data. No library, no eval, no network.
// Whatever came from outside is set as text, never as markup.
"use strict";
(() => {
  const SCHEMA = 2;
  const SVG = "http://www.w3.org/2000/svg";

  // ---- what numbers look like

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

  const WRITE = {
    text: String, place: String, ns: ms, bytes, count, share: percent, number: count,
    flops: (value) => scaled(value, "FLOP"),
  };
  const IS_TEXT = { text: true, place: true };

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

  const clip = (text, most) => (text.length <= most ? text : most < 2 ? "" : `${text.slice(0, most - 1)}…`);
  // Numbers of pixels that a letter takes in the page's small print.
  const LETTER = 6.6;
  const fitting = (text, width) => clip(text, Math.floor(width / LETTER));
  // A kernel's or a frame's name without what is the same in most of them.
  const short = (name) => name.replace(/^(?:void |autograd::engine::evaluate_function: )/, "").replace(/^(?:.*[\\/])?([^\\/]+\.py\(\d+\): )/, "$1");

  const known_kind = new Set([
    "data", "transfer", "forward", "backward", "optimizer", "validation", "callbacks", "logging", "checkpoint", "other",
    "compute", "communication", "copy", "memset", "idle", "step", "range", "op", "api", "python",
    "idle-data", "idle-sync", "idle-allocation", "idle-copy", "idle-launch", "idle-communication", "idle-host",
    "idle-device", "idle-unknown", "idle-profiler", "memory", "neither", "unknown", "dry", "window", "extra",
  ]);
  // Kinds are classes of the stylesheet, so one that it does not know must not become a class.
  const kind_class = (kind) => `k-${known_kind.has(kind) ? kind : "other"}`;

  function key(parent, entries) {
    const list = put(parent, "ul", { class: "key" });
    for (const [kind, label, value] of entries) {
      const entry = put(list, "li");
      const swatch = draw_in(entry, "svg", { width: 12, height: 12, "aria-hidden": "true" });
      draw_in(swatch, "rect", { width: 12, height: 12, rx: 2, class: kind_class(kind) });
      put(entry, "span", {}, label);
      if (value) put(entry, "span", { class: "value" }, value);
    }
  }

  // One tooltip for the page; also told to screen readers by whoever has the focus.
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

  // Draws now and again whenever the width has changed; what is hidden has none and waits until it is seen.
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

  // ---- tables

  function table_of(parent, table, options = {}) {
    const caption = put(parent, "p", { class: "caption", id: fresh("caption") });
    put(caption, "strong", {}, table.title);
    if (table.note) caption.append(` ${table.note}`);
    const frame = put(parent, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title });
    const element = put(frame, "table", { "data-table": table.id, "aria-labelledby": caption.id });
    const head = put(put(element, "thead"), "tr");
    const body = put(element, "tbody");
    const order = { column: -1, down: true };
    const buttons = table.columns.map((column, at) => {
      const cell = put(head, "th", { scope: "col", class: IS_TEXT[column.unit] ? "" : "number" });
      const button = put(cell, "button", { type: "button" }, column.label);
      button.addEventListener("click", () => {
        order.down = order.column === at ? !order.down : !IS_TEXT[column.unit];
        order.column = at;
        fill();
      });
      return cell;
    });
    const most = table.columns.map((column, at) =>
      column.unit === "ns" ? Math.max(1, ...table.rows.map((row) => row[at] || 0)) : 0);

    function sorted() {
      if (order.column < 0) return table.rows;
      const at = order.column;
      const text = IS_TEXT[table.columns[at].unit];
      const sign = order.down ? -1 : 1;
      return [...table.rows].sort((a, b) => {
        if (a[at] === null || b[at] === null) return (a[at] === null) - (b[at] === null); // unknown is last
        return sign * (text ? String(a[at]).localeCompare(String(b[at])) : a[at] - b[at]);
      });
    }

    function fill() {
      buttons.forEach((cell, at) => {
        if (at === order.column) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      body.replaceChildren(...sorted().map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, at) => {
          const unit = table.columns[at].unit;
          const written = value === null ? "–" : (WRITE[unit] || String)(value);
          const cell = put(line, at === 0 ? "th" : "td", {
            scope: at === 0 ? "row" : null, class: IS_TEXT[unit] ? (unit === "place" ? "code" : "words") : "number",
          });
          if (unit === "text" && at === 0) cell.title = written;
          put(cell, "span", {}, at === 0 && unit === "text" ? short(written) : written);
          // A thin line as long as the value, to be seen without reading.
          if (at > 0 && most[at] && value) underline(cell, "spark", value / most[at]);
        });
        if (options.pick) options.pick(line, row);
        return line;
      }));
    }
    fill();
    return frame;
  }

  // ---- sections

  const sections = [];
  const section = (id, title, has, render) => sections.push({ id, title, has, render });

  section("verdict", "Verdict", () => true, (at, data) => {
    put(at, "p", { class: "verdict" }, data.verdict);
    const list = put(at, "dl", { class: "facts" });
    for (const fact of data.facts) {
      const pair = put(list, "div");
      put(pair, "dt", {}, fact.label);
      put(pair, "dd", {}, fact.value);
    }
  });

  section("where", (data) => (data.about === "comparison" ? "A step, before and after" : "Where a step goes"), (data) => data.bars.length > 0, (at, data, page) => {
    for (const bar of data.bars) {
      const block = put(at, "div", { class: "bar-block" });
      const head = put(block, "h3", {}, bar.title);
      put(head, "span", { class: "value" }, ` ${ms(bar.total_ns)}`);
      if (bar.note) put(head, "span", { class: "note" }, ` ${bar.note}`);
      const host = put(block, "div");
      const whole = bar.parts.reduce((sum, part) => sum + part.ns, 0) || 1;
      const said = bar.parts.map((part) => `${part.name} ${ms(part.ns)}, ${percent(part.ns / whole)}`).join("; ");
      fluid(host, (width) => {
        host.replaceChildren();
        const svg = svg_of(host, width, 26, `${bar.title}: ${said}`);
        let x = 0;
        for (const part of bar.parts) {
          const w = (width * part.ns) / (bar.scale_ns || whole);
          const box = draw_in(svg, "rect", { x, width: Math.max(0.5, w - 1), height: 26, rx: 2, class: kind_class(part.kind) });
          box.addEventListener("mousemove", (event) =>
            page.tip.show(event, [part.name, `${ms(part.ns)}, ${percent(part.ns / whole)}`]));
          box.addEventListener("mouseleave", page.tip.hide);
          if (w > 44) draw_in(svg, "text", { x: x + 7, y: 17.5, class: `on ${kind_class(part.kind)}` }, fitting(part.name, w - 12));
          x += w;
        }
      });
      key(block, bar.parts.map((part) => [part.kind, part.name, `${ms(part.ns)} · ${percent(part.ns / whole)}`]));
    }
  });

  section("findings", (data) => (data.about === "comparison" ? "New findings" : "Findings"), () => true, (at, data, page) => {
    if (!data.findings.length) put(at, "p", { class: "note" }, data.about === "comparison" ? "None that was not there before." : "No rule found a problem.");
    const list = put(at, "ol", { class: "findings" });
    // What costs most is read at once, the others by a click.
    data.findings.forEach((found, i) => finding_of(list, found, i < 5, data, page));
  });

  function finding_of(list, found, unfolded, data, page) {
    const severity = ["critical", "warning", "info"].includes(found.severity) ? found.severity : "info";
    const item = put(list, "li", { class: `finding ${severity}` });
    const head = put(item, "h3");
    put(head, "span", { class: "severity" }, severity);
    put(head, "span", { class: "rule" }, found.rule);
    const excerpt_id = found.excerpt ? fresh("excerpt") : null;
    if (found.place) {
      const id = excerpt_id;
      if (id) {
        const button = put(head, "button", { type: "button", class: "place code", "aria-expanded": String(unfolded), "aria-controls": id }, found.place);
        button.addEventListener("click", () => {
          const box = page.root.querySelector(`#${id}`);
          box.hidden = !box.hidden;
          button.setAttribute("aria-expanded", String(!box.hidden));
        });
      } else {
        put(head, "span", { class: "place code" }, found.place);
      }
    }
    if (found.lost_ns !== null) {
      const price = put(head, "span", { class: "price" }, `${ms(found.lost_ns)}${data.per === "step" ? " per step" : ""}`);
      if (found.lost_share !== null) put(price, "span", { class: "note" }, ` ${percent(found.lost_share)}`);
      const share = Math.max(0, Math.min(1, found.lost_share || 0));
      const bar = draw_in(item, "svg", { class: "share", width: "100%", height: 4, viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" });
      draw_in(bar, "rect", { width: 100, height: 4, class: "track" });
      draw_in(bar, "rect", { width: 100 * share, height: 4, class: "lost" });
    }
    put(item, "p", {}, found.message);
    if (found.no_price) put(item, "p", { class: "note" }, `No price here: ${found.no_price}.`);
    const advice = put(item, "p", { class: "advice" });
    put(advice, "strong", {}, "Change: ");
    advice.append(found.advice);
    if (found.gain) put(advice, "span", { class: "gain" }, ` Gains ${found.gain}${data.per === "step" ? " per step" : ""} (confidence ${found.confidence}).`);
    if (found.excerpt) excerpt_of(item, found.excerpt, excerpt_id).hidden = !unfolded;
    for (const message of found.explains) put(item, "p", { class: "note" }, `Explains: ${message}`);
    if (found.evidence.length) {
      const more = put(item, "details");
      put(more, "summary", {}, "Evidence");
      const list = put(more, "ul", { class: "evidence" });
      for (const one of found.evidence) put(list, "li", {}, `${one.name}: ${one.value} (${one.source})`);
    }
  }

  function excerpt_of(parent, excerpt, id) {
    const box = put(parent, "figure", { class: "excerpt", id, "aria-label": `source, line ${excerpt.line}` });
    if (excerpt.lines.length) {
      const code = put(put(box, "pre", { tabindex: "0" }), "code");
      excerpt.lines.forEach((text, i) => {
        const line = excerpt.first_line + i;
        const row = put(code, "span", { class: line === excerpt.line ? "line marked" : "line" });
        put(row, "span", { class: "lineno" }, String(line));
        put(row, "span", { class: "text" }, text);
        row.append("\n");
      });
    }
    if (excerpt.note) put(box, "figcaption", { class: "note" }, excerpt.note);
    return box;
  }

  section("steps", "Steps over time", (data) => data.steps !== null && data.steps.wall_ns.length > 0, (at, data, page) => {
    const steps = data.steps;
    const phases = Object.keys(steps.phases_ns);
    const n = steps.wall_ns.length;
    const host = put(at, "div", { class: "steps" });
    // Outliers and recorded steps must not press all others to the floor: the axis ends at 3 times the 90th percentile.
    const calm = steps.longest_ns.filter((_, i) => !steps.state[i]);
    const ordered = (calm.length ? calm : [...steps.longest_ns]).sort((a, b) => a - b);
    const longest = Math.max(...steps.longest_ns);
    const top = Math.max(1, Math.min(longest, 3 * ordered[Math.floor(0.9 * (ordered.length - 1))])) * 1.05;
    const states = { window: "recorded in a window", extra: "recorded by line", dry: "dry run" };
    const total = steps.steps.reduce((sum, one) => sum + one, 0);
    fluid(host, (width) => {
      host.replaceChildren();
      const left = 58, height = 198, base = 168, head = 22;
      const svg = svg_of(host, width, height, `${total} steps; the longest took ${ms(longest)}`, { tabindex: "0" });
      // A few steps are no wall of colour.
      const w = Math.min(64, (width - left) / n);
      const y = (ns) => base - (base - head) * Math.min(1, ns / top);
      for (let ns = 0, tick = nice(top / 5); ns <= top; ns += tick) {
        draw_in(svg, "line", { x1: left, x2: width, y1: y(ns), y2: y(ns), class: "grid" });
        draw_in(svg, "text", { x: left - 6, y: y(ns) + 4, class: "axis end" }, ns ? ms(ns) : "0");
      }
      const paths = {};
      const add = (kind, x, y0, y1) => { (paths[kind] = paths[kind] || []).push(`M${x.toFixed(2)} ${y0.toFixed(2)}h${Math.max(0.6, w > 3 ? w - 1 : w).toFixed(2)}V${y1.toFixed(2)}h${(-Math.max(0.6, w > 3 ? w - 1 : w)).toFixed(2)}z`); };
      const dots = [];
      for (let i = 0; i < n; i += 1) {
        const x = left + i * w;
        if (steps.state[i]) draw_in(svg, "rect", { x, y: head - 8, width: Math.max(1, w), height: base - head + 8, class: "state" });
        let sum = 0;
        for (const phase of phases) {
          const ns = steps.phases_ns[phase][i];
          if (!ns) continue;
          add(phase, x, y(sum), y(sum + ns));
          sum += ns;
        }
        if (sum < steps.wall_ns[i]) add(phases.length ? "other" : "step", x, y(sum), y(steps.wall_ns[i]));
        if (steps.steps[i] > 1 || steps.longest_ns[i] > top) dots.push([x + w / 2, y(steps.longest_ns[i]), steps.longest_ns[i] > top]);
      }
      for (const [kind, d] of Object.entries(paths)) draw_in(svg, "path", { d: d.join(""), class: kind_class(kind) });
      for (const [x, at_y, beyond] of dots) draw_in(svg, "path", { d: beyond ? `M${x - 3} ${at_y + 5}l3 -6 3 6z` : `M${x - w / 2} ${at_y}h${Math.max(1, w)}`, class: beyond ? "beyond" : "tick" });
      // A row that stands for some steps begins a window where one of them does.
      let free = 0;
      for (const window of steps.windows) {
        const i = first_after(steps.first_step, window.first_step) - 1;
        if (i < 0 || steps.first_step[i] + steps.steps[i] <= window.first_step) continue;
        const x = left + i * w, label = `window ${window.index}`;
        draw_in(svg, "line", { x1: x, x2: x, y1: 0, y2: base, class: "bound" });
        if (x < free) continue; // its name would lie on another's
        const flip = x + (label.length + 1) * LETTER > width;
        draw_in(svg, "text", { x: flip ? x - 4 : x + 4, y: 10, class: flip ? "axis end" : "axis" }, label);
        free = x + (label.length + 1) * LETTER;
      }
      draw_in(svg, "line", { x1: left, x2: width, y1: base, y2: base, class: "base" });
      const every = Math.max(1, Math.ceil(90 / w / (w > 40 ? 3 : 1)));
      for (let i = 0; i < n; i += every) draw_in(svg, "text", { x: left + i * w, y: base + 18, class: "axis" }, String(steps.first_step[i]));
      const cursor = draw_in(svg, "rect", { y: head - 8, width: Math.max(1, w), height: base - head + 8, class: "cursor", visibility: "hidden" });
      let chosen = -1;
      const about = (i) => {
        const last = steps.first_step[i] + steps.steps[i] - 1;
        const lines = [steps.steps[i] > 1 ? `steps ${steps.first_step[i]} to ${last}` : `step ${steps.first_step[i]}`];
        lines.push(`${ms(steps.wall_ns[i])}${steps.steps[i] > 1 ? `, the longest (${steps.longest_step[i]}) ${ms(steps.longest_ns[i])}` : ""}`);
        for (const phase of phases) if (steps.phases_ns[phase][i]) lines.push(`${phase} ${ms(steps.phases_ns[phase][i])}`);
        if (steps.state[i]) lines.push(states[steps.state[i]] || "");
        for (const [name, column, write] of [["memory", steps.memory_bytes, bytes], ["syncs", steps.syncs, count], ["loss", steps.loss, (v) => v.toPrecision(4)]]) {
          if (column.length && column[i] !== null) lines.push(`${name} ${write(column[i])}`);
        }
        return lines;
      };
      const choose = (i) => {
        chosen = Math.max(0, Math.min(n - 1, i));
        cursor.setAttribute("x", left + chosen * w);
        cursor.setAttribute("visibility", "visible");
        status.textContent = about(chosen).join(", ");
      };
      svg.addEventListener("mousemove", (event) => {
        const i = Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / w);
        if (i < 0 || i >= n) return page.tip.hide();
        choose(i);
        return page.tip.show(event, about(i));
      });
      svg.addEventListener("mouseleave", page.tip.hide);
      svg.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -n, End: n }[event.key];
        if (move) { event.preventDefault(); choose(chosen + move); }
      });
    });
    const status = put(at, "p", { class: "status", "aria-live": "polite" }, "Point at a step, or focus the chart and use the arrow keys.");
    const entries = (phases.length ? phases : ["step"]).map((phase) => [phase, phase]);
    if (steps.state.some(Boolean)) entries.push(["window", "recorded: slower, left out of all means"]);
    key(at, entries);
  });

  // ---- the timeline of the window

  const ROW = 17, GAP = 3, HEAD = 26;

  // A column of whole numbers: base64 of seven bits to a byte, the lowest first; the highest bit says that more follow.
  function unpacked(text) {
    const packed = atob(text), values = [];
    let value = 0, place = 1;
    for (let i = 0; i < packed.length; i += 1) {
      const byte = packed.charCodeAt(i);
      value += (byte & 127) * place;
      if (byte < 128) { values.push(value); value = 0; place = 1; } else place *= 128;
    }
    return Float64Array.from(values);
  }

  function intervals(items) {
    const columns = Object.fromEntries(Object.entries(items).map(([name, text]) => [name, unpacked(text)]));
    const starts = columns.start;
    // Items of one lane may overlap (graphs, streams that run two at once): the running maximum finds the first in view.
    const reach = new Float64Array(starts.length);
    for (let i = 0, at = 0, far = -Infinity; i < starts.length; i += 1) {
      starts[i] = at += starts[i];
      reach[i] = far = Math.max(far, at + columns.length[i]);
    }
    return { ...columns, starts, reach };
  }

  function first_after(sorted, value) {
    let low = 0, high = sorted.length;
    while (low < high) { const mid = (low + high) >> 1; if (sorted[mid] > value) high = mid; else low = mid + 1; }
    return low;
  }

  const families = [
    ["idle-data", "idle: waiting for data"], ["idle-sync", "idle: sync"], ["idle-host", "idle: host at work"],
    ["idle-launch", "idle: launching"], ["idle-communication", "idle: communication"], ["idle-copy", "idle: copy call"],
    ["idle-allocation", "idle: allocation, loading"], ["idle-device", "idle: device waits for itself"],
    ["idle-unknown", "idle: not told"], ["idle-profiler", "idle: the profiler"],
    ["compute", "compute"], ["communication", "communication"], ["copy", "copy"], ["memset", "memset"],
    ["range", "range"], ["op", "op"], ["api", "API call"],
  ];

  section("timeline", "Timeline of the window", (data) => data.timeline !== null, (at, data, page) => {
    const line = data.timeline;
    const lanes = line.lanes.map((lane) => ({
      ...lane, single: intervals(lane.items), rest: lane.merged ? intervals(lane.merged) : null,
    }));
    let top = HEAD, group = null;
    for (const lane of lanes) {
      if (group !== null && lane.group !== group) top += 9;
      group = lane.group;
      lane.y = top;
      top += ROW + GAP;
    }
    const height = top + 4;
    const view = { low: 0, high: line.span_ns };

    const bar = put(at, "div", { class: "tools", role: "group", "aria-label": "Timeline" });
    const tool = (label, text, act) => put(bar, "button", { type: "button", "aria-label": label, title: label }, text)
      .addEventListener("click", act);
    const middle = () => (view.low + view.high) / 2;
    tool("Zoom in", "+", () => zoom(0.5, middle()));
    tool("Zoom out", "−", () => zoom(2, middle()));
    tool("Show the whole window", "All", () => show(0, line.span_ns));
    const gaps = longest_idle(lanes);
    let gap = -1;
    const next_gap = (move) => {
      if (!gaps.length) return;
      gap = (gap + move + gaps.length) % gaps.length;
      const [lane, i] = gaps[gap];
      const start = lane.single.starts[i], length = lane.single.length[i];
      show(start - length, start + 2 * length);
      select(lane, lane.single, i);
    };
    if (gaps.length) {
      tool("Longer idle time before this", "‹ idle", () => next_gap(-1));
      tool("Next longest idle time", "idle ›", () => next_gap(1));
    }
    const where = put(bar, "span", { class: "status", "aria-live": "polite" });
    const keys = fresh("keys");
    put(at, "p", { class: "note", id: keys },
      `A click tells more, and goes nearer to events that are drawn together. Ctrl and the wheel or + and − zoom, dragging or ← and → move, 0 shows all. Keys alone: ↑ and ↓ choose a row, comma and full stop an event, Enter goes nearer${gaps.length ? ", n and p go to the longest idle times" : ""}.`);
    const host = put(at, "div", { class: "timeline" });
    const chosen = put(at, "p", { class: "status chosen", "aria-live": "polite" });
    for (const note of line.notes) put(at, "p", { class: "note" }, note);
    const present = new Set(line.kinds);
    key(at, families.filter(([kind]) => present.has(kind)));

    // Names of lanes take a sixth of a wide page, and on a narrow one no more than they must.
    let width = 0, LABEL = 150, pending = false, svg = null, selected = null;
    const scale = () => (width - LABEL) / (view.high - view.low);
    const x_of = (ns) => LABEL + (ns - view.low) * scale();

    function show(low, high) {
      const least = 50; // ns: below this a trace's clock tells nothing
      const span = Math.min(line.span_ns, Math.max(least, high - low));
      view.low = Math.max(0, Math.min(line.span_ns - span, low));
      view.high = view.low + span;
      schedule();
    }
    const zoom = (factor, around) => show(around - (around - view.low) * factor, around + (view.high - around) * factor);
    const pan = (share) => show(view.low + share * (view.high - view.low), view.high + share * (view.high - view.low));

    function schedule() {
      if (pending) return;
      pending = true;
      requestAnimationFrame(() => { pending = false; redraw(); });
    }

    // Items narrower than a pixel, and merged ones, are drawn together in the colour of the longest and as high as
    // the share of time that is theirs: nothing vanishes, and a busy stretch looks busy at any zoom.
    function lane_paths(lane, paths, labels) {
      for (const items of [lane.rest, lane.single]) {
        if (!items) continue;
        const merged = items === lane.rest;
        let run = null;
        const flush = () => {
          if (!run) return;
          const wide = Math.max(0.7, run.end - run.x);
          const high = Math.max(0.15, Math.min(1, run.busy / wide)) * ROW;
          const kind = line.kinds[run.name];
          (paths[kind] = paths[kind] || []).push(`M${run.x.toFixed(1)} ${(lane.y + ROW - high).toFixed(1)}h${wide.toFixed(1)}V${lane.y + ROW}H${run.x.toFixed(1)}z`);
          run = null;
        };
        for (let i = first_after(items.reach, view.low); i < items.starts.length && items.starts[i] < view.high; i += 1) {
          const x = Math.max(LABEL, x_of(items.starts[i]));
          const end = Math.min(width, x_of(items.starts[i] + items.length[i]));
          const busy = merged ? ((end - x) * items.busy[i]) / items.length[i] : end - x;
          const length = merged ? items.longest[i] : items.length[i];
          if (end - x >= 1.5) {
            flush();
            run = { x, end: end - (end - x > 3 && !merged ? 0.5 : 0), busy, name: items.name[i] };
            flush();
            if (!merged && end - x > 34) labels.push([x, end, items.name[i], lane]);
          } else if (run && x - run.end < 1 && end - run.x < 2) {
            run.end = Math.max(run.end, end);
            run.busy += busy;
            if (length > run.length) { run.length = length; run.name = items.name[i]; }
          } else {
            flush();
            run = { x, end: Math.max(end, x), busy: Math.max(busy, 0.1), name: items.name[i], length };
          }
        }
        flush();
      }
    }

    function redraw() {
      if (!width) return;
      const began = performance.now();
      const old = svg.querySelector(".moving");
      const moving = document.createElementNS(SVG, "g");
      moving.setAttribute("class", "moving");
      const span = view.high - view.low;
      const every = nice(span / Math.max(2, (width - LABEL) / 110));
      for (let t = Math.ceil(view.low / every) * every; t <= view.high; t += every) {
        const x = x_of(t);
        draw_in(moving, "line", { x1: x, x2: x, y1: HEAD - 6, y2: height, class: "grid" });
        draw_in(moving, "text", { x: x + 3, y: HEAD - 11, class: "axis" }, t === 0 ? "0" : ms(Math.round(t)));
      }
      const paths = {}, labels = [];
      for (const lane of lanes) lane_paths(lane, paths, labels);
      for (const [kind, d] of Object.entries(paths)) draw_in(moving, "path", { d: d.join(""), class: kind_class(kind) });
      for (const [x, end, name, lane] of labels.slice(0, 600)) {
        draw_in(moving, "text", { x: x + 4, y: lane.y + 12.5, class: `on ${kind_class(line.kinds[name])}` }, fitting(short(line.names[name]), end - x - 6));
      }
      if (selected) {
        const x = Math.max(LABEL, x_of(selected.start)), end = Math.min(width, x_of(selected.start + selected.length));
        if (end >= LABEL && x <= width) draw_in(moving, "rect", { x: x - 1, y: selected.lane.y - 1, width: Math.max(3, end - x + 2), height: ROW + 2, class: "selected", rx: 2 });
      }
      if (old) old.replaceWith(moving); else svg.append(moving);
      where.textContent = `${view.low < 1 ? "0" : ms(Math.round(view.low))} to ${ms(Math.round(view.high))} of ${ms(line.span_ns)}`;
      svg.dataset.drawnMs = (performance.now() - began).toFixed(1);
    }

    function at_point(event) {
      const box = svg.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const lane = lanes.find((one) => y >= one.y && y < one.y + ROW);
      if (!lane || x < LABEL) return null;
      const t = view.low + (x - LABEL) / scale(), slack = 1.5 / scale();
      let best = null, events = 0;
      for (const items of [lane.single, lane.rest]) {
        if (!items) continue;
        for (let i = first_after(items.reach, t - slack); i < items.starts.length && items.starts[i] <= t + slack; i += 1) {
          if (items.starts[i] + items.length[i] < t - slack) continue;
          events += items.count.length ? items.count[i] : 1;
          const longer = items.longest.length ? items.longest[i] : items.length[i];
          if (!best || longer > best.longer) best = { lane, items, i, longer };
        }
      }
      // What is at least as wide as the finger is meant by itself.
      return best && { ...best, t, events: best.longer > 2 * slack ? 1 : events };
    }

    function about({ lane, items, i, events }) {
      const name = line.names[items.name[i]];
      if (events > 1 && !items.count.length) {
        return [`${count(events)} events drawn together, the longest:`, ...about({ lane, items, i })];
      }
      const at_lane = lane.group ? `${lane.group}, ${lane.label}` : lane.label;
      if (items.count.length && items.count[i] > 1) {
        const busy = `${count(items.count[i])} short events, ${ms(items.busy[i])} in ${ms(items.length[i])}`;
        return [busy, `the longest: ${name}, ${ms(items.longest[i])}`, at_lane];
      }
      const during = items.during.length && items.during[i] > 0 ? `the host was in ${line.names[items.during[i] - 1]}` : null;
      const what = lane.role === "idle" ? `idle: ${name}` : name;
      return [what, `${ms(items.length[i])}, from ${ms(items.starts[i])}`, during, at_lane];
    }

    function select(lane, items, i, events = 1) {
      selected = { lane, items, i, events, start: items.starts[i], length: items.length[i] };
      chosen.textContent = [...about(selected), way_to_each(selected)].filter(Boolean).join(" · ");
      schedule();
    }

    const nearer = () => selected && show(selected.start - selected.length * 0.5, selected.start + selected.length * 1.5);

    // What is drawn together is opened by going nearer; what even then is one block, by a page of its step alone.
    function way_to_each({ items, i }) {
      if (!items.count.length || items.count[i] === 1) return null;
      const steps = lanes.find((lane) => lane.role === "steps");
      const at_step = steps ? first_after(steps.single.starts, items.starts[i]) - 1 : -1;
      const cut = at_step >= 0 ? line.names[steps.single.name[at_step]].replace(/^step /, "--steps ") : null;
      return cut ? `each of them: perfkit trim ${line.title} ${cut}, and perfkit diagnose --html of that` : null;
    }

    // Keys go from row to row, and from event to event in a row, through what is in view.
    function step_to(move) {
      const lane = selected ? selected.lane : lanes[0];
      const all = (items, merged) => (items ? Array.from(items.starts, (_, i) => [items.starts[i], merged, i]) : []);
      lane.order = lane.order || [...all(lane.single, false), ...all(lane.rest, true)].sort((a, b) => a[0] - b[0]);
      const now = selected ? lane.order.findIndex(([start, merged, i]) => i === selected.i && (merged ? lane.rest : lane.single) === selected.items) : -1;
      const [start, merged, i] = lane.order[Math.max(0, Math.min(lane.order.length - 1, now + move))];
      const items = merged ? lane.rest : lane.single;
      if (start + items.length[i] < view.low || start > view.high) show(start - (view.high - view.low) / 3, start + (2 * (view.high - view.low)) / 3);
      select(lane, items, i);
    }

    function row_to(move) {
      const at_row = selected ? lanes.indexOf(selected.lane) : -1;
      const lane = lanes[Math.max(0, Math.min(lanes.length - 1, at_row + move))];
      const items = lane.single.starts.length ? lane.single : lane.rest;
      const from = selected ? selected.start : view.low;
      select(lane, items, Math.min(items.starts.length - 1, first_after(items.reach, from)));
    }

    fluid(host, (now) => {
      width = now;
      LABEL = width < 640 ? 76 : 170;
      host.replaceChildren();
      svg = svg_of(host, width, height, `${count(line.events)} events in ${ms(line.span_ns)} on ${lanes.length} lanes`, {
        tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-describedby": keys,
      });
      let shown = null;
      for (const lane of lanes) {
        draw_in(svg, "rect", { x: LABEL, y: lane.y, width: Math.max(0, width - LABEL), height: ROW, class: "lane" });
        const first = lane.group !== shown;
        shown = lane.group;
        const text = lane.role === "host" ? (first ? lane.group : "") : lane.group && first ? `${lane.group}: ${lane.label}` : lane.label;
        draw_in(svg, "text", { x: LABEL - 8, y: lane.y + 12.5, class: "axis end" }, fitting(text, LABEL - 14));
      }
      listen();
      redraw();
    });

    function listen() {
      let drag = null;
      svg.addEventListener("wheel", (event) => {
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          return pan((event.deltaX || event.deltaY) / width);
        }
        // Without a key the wheel scrolls the page where the chart does not have the focus.
        if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return undefined;
        event.preventDefault();
        const x = event.clientX - svg.getBoundingClientRect().left;
        return zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), view.low + Math.max(0, x - LABEL) / scale());
      }, { passive: false });
      svg.addEventListener("pointerdown", (event) => {
        drag = { x: event.clientX, low: view.low, high: view.high, moved: false };
      });
      svg.addEventListener("pointermove", (event) => {
        if (drag && event.buttons) {
          const moved = event.clientX - drag.x;
          if (Math.abs(moved) > 3 && !drag.moved) { drag.moved = true; svg.setPointerCapture(event.pointerId); }
          if (drag.moved) { page.tip.hide(); return show(drag.low - moved / scale(), drag.high - moved / scale()); }
        }
        const hit = at_point(event);
        return hit ? page.tip.show(event, about(hit)) : page.tip.hide();
      });
      svg.addEventListener("pointerup", (event) => {
        const was = drag;
        drag = null;
        if (was && was.moved) return;
        const hit = at_point(event);
        if (hit) {
          select(hit.lane, hit.items, hit.i, hit.events);
          if (hit.items.count.length && hit.items.length[hit.i] * scale() > 3) nearer();
          else if (hit.events > 1) zoom(1 / 12, hit.t);
        }
        svg.focus({ preventScroll: true });
      });
      svg.addEventListener("pointerleave", page.tip.hide);
      svg.addEventListener("dblclick", nearer);
      svg.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const act = {
          ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5, middle()), "=": () => zoom(0.5, middle()),
          "-": () => zoom(2, middle()), 0: () => show(0, line.span_ns), Home: () => show(0, view.high - view.low),
          End: () => show(line.span_ns, line.span_ns * 2), n: () => next_gap(1), p: () => next_gap(-1),
          Enter: nearer, ArrowDown: () => row_to(1), ArrowUp: () => row_to(-1), ".": () => step_to(1), ",": () => step_to(-1),
        }[event.key];
        if (act) { event.preventDefault(); act(); }
      });
    }
  });

  function nice(rough) {
    const size = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
    return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= rough);
  }

  function longest_idle(lanes) {
    const found = [];
    for (const lane of lanes) {
      if (lane.role === "idle") lane.single.length.forEach((length, i) => found.push([lane, i, length]));
    }
    return found.sort((a, b) => b[2] - a[2]).slice(0, 30);
  }

  // ---- lines, tables, roofline, memory, flame graph

  section("lines", "Lines", (data) => data.lines !== null, (at, data) => {
    put(at, "p", { class: "note" }, data.lines.source);
    const columns = [["host_ns", "host", ms], ["total_ns", "with callees", ms], ["device_ns", "device", ms], ["ops", "ops", count], ["syncs", "syncs", count], ["allocated_bytes", "allocated", bytes]];
    data.lines.files.forEach((file, number) => {
      const box = put(at, "details", number < 2 ? { open: "" } : {});
      put(box, "summary", { class: "code" }, file.file);
      if (file.note) put(box, "p", { class: "note" }, file.note);
      const kept = columns.filter(([name]) => file.lines.some((line) => line[name]));
      const frame = put(box, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `lines of ${file.file}` });
      const table = put(frame, "table", { class: "listing" });
      const head = put(put(table, "thead"), "tr");
      for (const [, label] of kept) put(head, "th", { scope: "col", class: "number" }, label);
      put(head, "th", { scope: "col", class: "number" }, "line");
      put(head, "th", { scope: "col" }, "source");
      const body = put(table, "tbody");
      const most = Math.max(1, ...file.lines.map((line) => line.host_ns || 0));
      let last = 0;
      for (const line of file.lines) {
        const row = put(body, "tr", { class: `${line.host_ns === null ? "context" : ""}${last && line.line > last + 1 ? " jump" : ""}` });
        last = line.line;
        for (const [name, , write] of kept) {
          const cell = put(row, "td", { class: "number" });
          if (line[name]) {
            put(cell, "span", {}, write(line[name]));
            if (name === "host_ns") underline(cell, "heat", line.host_ns / most);
          }
        }
        put(row, "th", { scope: "row", class: "lineno" }, String(line.line));
        const cell = put(row, "td", { class: "code" }, line.text !== null ? line.text : line.function);
        if (line.whole) put(cell, "span", { class: "note" }, `  lines of ${line.function} that are not told apart`);
      }
    });
  });

  section("tables", "Tables", (data) => data.tables.some((table) => table.id !== "syncs" && table.id !== "ranks"), (at, data) => {
    const tables = data.tables.filter((table) => table.id !== "syncs" && table.id !== "ranks");
    const tabs = put(at, "div", { class: "tabs", role: "tablist", "aria-label": "Tables" });
    const panels = [];
    const open = (chosen, focus) => panels.forEach(([tab, panel], i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panel.hidden = i !== chosen;
      if (i === chosen && focus) tab.focus();
    });
    tables.forEach((table, i) => {
      const panel_id = fresh("panel"), tab_id = fresh("tab");
      const tab = put(tabs, "button", { type: "button", role: "tab", id: tab_id, "aria-controls": panel_id }, table.title);
      const panel = put(at, "div", { role: "tabpanel", id: panel_id, "aria-labelledby": tab_id });
      table_of(panel, table);
      panels.push([tab, panel]);
      tab.addEventListener("click", () => open(i, false));
      tab.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: tables.length - 1 }[event.key];
        if (move !== undefined) { event.preventDefault(); open((move + tables.length) % tables.length, true); }
      });
    });
    open(0, false);
  });

  section("roofline", "Roofline", (data) => data.roofs.length > 0, (at, data, page) => {
    for (const roof of data.roofs) {
      put(at, "h3", {}, roof.device);
      if (roof.note) put(at, "p", { class: "note" }, roof.note);
      if (!roof.points.length) continue;
      const host = put(at, "div");
      const peaks = Object.entries(roof.peaks).sort((a, b) => b[1] - a[1]);
      const most = Math.max(...roof.points.map((point) => point.device_ns));
      const lowest = Math.min(0.1, ...roof.points.map((point) => point.intensity));
      const ridge = roof.bytes_per_s && peaks.length ? peaks[0][1] / roof.bytes_per_s : 100;
      const highest = Math.max(10 * ridge, ...roof.points.map((point) => 2 * point.intensity));
      const tops = Math.max(...peaks.map(([, peak]) => peak), ...roof.points.map((point) => point.flops_per_s)) * 2;
      const bottom = Math.min(tops / 1e6, ...roof.points.map((point) => point.flops_per_s / 2));
      fluid(host, (width) => {
        host.replaceChildren();
        const left = 86, right = 12, head = 12, height = 330, base = height - 42;
        const svg = svg_of(host, width, height, `${roof.device}: ${roof.points.length} points under the roof`);
        const x = (value) => left + ((width - left - right) * Math.log(value / lowest)) / Math.log(highest / lowest);
        const y = (value) => base - ((base - head) * Math.log(value / bottom)) / Math.log(tops / bottom);
        for (let power = Math.ceil(Math.log10(lowest)); 10 ** power <= highest; power += 1) {
          draw_in(svg, "line", { x1: x(10 ** power), x2: x(10 ** power), y1: head, y2: base, class: "grid" });
          draw_in(svg, "text", { x: x(10 ** power), y: base + 16, class: "axis middle" }, String(Number((10 ** power).toPrecision(1))));
        }
        for (let power = Math.ceil(Math.log10(bottom)); 10 ** power <= tops; power += 1) {
          draw_in(svg, "line", { x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power), class: "grid" });
          if (power % 2 === 0 || tops / bottom < 1e4) draw_in(svg, "text", { x: left - 6, y: y(10 ** power) + 4, class: "axis end" }, scaled(10 ** power, "FLOP/s"));
        }
        draw_in(svg, "text", { x: (left + width) / 2, y: height - 8, class: "axis middle" }, "FLOP per byte");
        for (const [precision, peak] of peaks) {
          const from = roof.bytes_per_s ? Math.max(lowest, peak / roof.bytes_per_s) : lowest;
          draw_in(svg, "line", { x1: x(Math.min(from, highest)), x2: width - right, y1: y(peak), y2: y(peak), class: "roof" });
          draw_in(svg, "text", { x: width - right, y: y(peak) - 5, class: "axis end" }, `${precision} ${scaled(peak, "FLOP/s")}`);
        }
        if (roof.bytes_per_s && peaks.length) {
          const end = peaks[0][1] / roof.bytes_per_s;
          const begin = Math.max(lowest, bottom / roof.bytes_per_s);
          draw_in(svg, "line", { x1: x(begin), y1: y(begin * roof.bytes_per_s), x2: x(end), y2: y(end * roof.bytes_per_s), class: "roof" });
          draw_in(svg, "text", { x: x(begin) + 8, y: y(begin * roof.bytes_per_s) + 18, class: "axis" }, `memory ${scaled(roof.bytes_per_s, "B/s")}`);
        }
        const bound = { compute: "compute", memory: "copy", neither: "idle-launch", unknown: "other" };
        for (const point of [...roof.points].sort((a, b) => b.device_ns - a.device_ns)) {
          const dot = draw_in(svg, "circle", {
            cx: x(point.intensity), cy: y(point.flops_per_s), r: 3 + 9 * Math.sqrt(point.device_ns / most),
            class: `dot ${kind_class(bound[point.bound] || "other")}${point.confidence === "low" ? " faint" : ""}`,
          });
          dot.addEventListener("mousemove", (event) => page.tip.show(event, [point.op, point.shapes, `${ms(point.device_ns)} in ${count(point.count)} calls, ${point.precision}`, `${scaled(point.flops_per_s, "FLOP/s")}, ${point.intensity.toPrecision(3)} FLOP per byte`, `bound by ${point.bound}, confidence ${point.confidence}`]));
          dot.addEventListener("mouseleave", page.tip.hide);
        }
      });
      key(at, [["compute", "bound by compute"], ["copy", "bound by memory"], ["idle-launch", "by neither"]]);
      const more = put(at, "details");
      put(more, "summary", {}, "As a table");
      table_of(more, {
        id: "roofline", title: "Roofline", note: "The longest first.",
        columns: [{ label: "op", unit: "text" }, { label: "shapes", unit: "text" }, { label: "precision", unit: "text" }, { label: "calls", unit: "count" }, { label: "device", unit: "ns" }, { label: "FLOP/byte", unit: "number" }, { label: "FLOP/s", unit: "flops" }, { label: "bound by", unit: "text" }],
        rows: roof.points.map((p) => [p.op, p.shapes, p.precision, p.count, p.device_ns, p.intensity, p.flops_per_s, p.bound]),
      });
    }
  });

  section("memory", "Memory", (data) => data.memory.length > 0, (at, data, page) => {
    for (const memory of data.memory) {
      const head = put(at, "h3", {}, memory.device);
      put(head, "span", { class: "value" }, ` peak ${bytes(memory.peak_bytes)}`);
      if (memory.peak) put(head, "span", { class: "note" }, ` ${memory.peak}`);
      if (memory.note) put(at, "p", { class: "note" }, memory.note);
      const levels = memory.allocated_bytes, n = levels.length;
      if (n) {
        const host = put(at, "div");
        const most = Math.max(1, ...levels, ...memory.reserved_bytes);
        fluid(host, (width) => {
          host.replaceChildren();
          const left = 70, height = 150, base = 124, head_y = 10;
          const svg = svg_of(host, width, height, `${memory.device}: allocated memory over ${ms(n * memory.bucket_ns)}, peak ${bytes(memory.peak_bytes)}`);
          const x = (i) => left + ((width - left) * i) / n;
          const y = (value) => base - ((base - head_y) * Math.max(0, value)) / most;
          for (const part of [0, 0.5, 1]) {
            draw_in(svg, "line", { x1: left, x2: width, y1: y(most * part), y2: y(most * part), class: "grid" });
            draw_in(svg, "text", { x: left - 6, y: y(most * part) + 4, class: "axis end" }, bytes(most * part));
          }
          const outline = (values) => values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}H${x(i + 1).toFixed(1)}`).join("");
          draw_in(svg, "path", { d: `${outline(levels)}L${width} ${base}L${left} ${base}z`, class: "area" });
          if (memory.reserved_bytes.length) draw_in(svg, "path", { d: outline(memory.reserved_bytes), class: "reserved" });
          if (memory.peak_at_ns !== null) {
            const at_x = x(memory.peak_at_ns / memory.bucket_ns);
            draw_in(svg, "line", { x1: at_x, x2: at_x, y1: head_y - 6, y2: base, class: "peak" });
          }
          for (const part of [0, 0.25, 0.5, 0.75]) draw_in(svg, "text", { x: x(n * part), y: base + 17, class: "axis" }, part ? ms(Math.round(n * part * memory.bucket_ns)) : "0");
          svg.addEventListener("mousemove", (event) => {
            const i = Math.floor(((event.clientX - svg.getBoundingClientRect().left - left) / (width - left)) * n);
            if (i < 0 || i >= n) return page.tip.hide();
            const reserved = memory.reserved_bytes.length ? `reserved ${bytes(memory.reserved_bytes[i])}` : null;
            return page.tip.show(event, [`allocated ${bytes(levels[i])}`, reserved, `at ${ms(i * memory.bucket_ns)}`]);
          });
          svg.addEventListener("mouseleave", page.tip.hide);
        });
      }
      if (memory.held.rows.length) table_of(at, memory.held);
    }
  });

  section("flame", "Flame graph of host time", (data) => data.flame !== null && data.flame.total.length > 0, (at, data, page) => {
    const flame = data.flame, n = flame.total.length;
    const steps = flame.steps ? ` over ${flame.steps} step${flame.steps > 1 ? "s" : ""}` : "";
    put(at, "p", { class: "note" }, `${flame.source}: host time of all threads by call path${steps}. A click or Enter shows a path in full width, Escape goes back.`);
    const children = Array.from({ length: n }, () => []), roots = [], depth = new Int32Array(n);
    for (let i = 0; i < n; i += 1) {
      if (flame.parent[i] < 0) roots.push(i);
      else { children[flame.parent[i]].push(i); depth[i] = depth[flame.parent[i]] + 1; }
    }
    const longest_first = (a, b) => flame.total[b] - flame.total[a];
    roots.sort(longest_first);
    children.forEach((list) => list.sort(longest_first));
    const bar = put(at, "div", { class: "tools" });
    const whole = put(bar, "button", { type: "button", disabled: "" }, "Show all");
    const status = put(bar, "span", { class: "status", "aria-live": "polite" });
    const host = put(at, "div", { class: "flame" });
    key(at, [["range", "range"], ["python", "Python"], ["op", "op"], ["api", "API call"]].filter(([kind]) => flame.kinds.includes(kind)));
    let width = 0, focus = -1;
    const said = (i) => [flame.names[flame.name[i]], `${ms(flame.total[i])}, ${percent(flame.total[i] / flame.total_ns)} of host time`, `${count(flame.count[i])} calls${flame.steps ? `, ${ms(flame.total[i] / flame.steps)} per step` : ""}`];
    const show = (i) => { focus = i; whole.disabled = i < 0; render(); status.textContent = i < 0 ? "" : said(i).join(" · "); };

    function render() {
      const above = [];
      for (let i = focus < 0 ? -1 : flame.parent[focus]; i >= 0; i = flame.parent[i]) above.unshift(i);
      const boxes = above.map((i) => [i, 0, width]);
      const place = (list, x, room, whole) => {
        for (const i of list) {
          const w = (room * flame.total[i]) / whole;
          if (w < 0.7) continue;
          boxes.push([i, x, w]);
          place(children[i], x, w, Math.max(flame.total[i], children[i].reduce((sum, child) => sum + flame.total[child], 0)));
          x += w;
        }
      };
      if (focus < 0) place(roots, 0, width, flame.total_ns); else place([focus], 0, width, flame.total[focus]);
      const deepest = boxes.reduce((most, [i]) => Math.max(most, depth[i]), 0);
      host.replaceChildren();
      const svg = svg_of(host, width, (deepest + 1) * 18, `flame graph of ${ms(flame.total_ns)} of host time`, { role: "group" });
      for (const [i, x, w] of boxes) {
        const name = flame.names[flame.name[i]];
        const wide = w > 24;
        const box = draw_in(svg, "g", wide ? { tabindex: "0", role: "button", "aria-label": said(i).join(", ") } : {});
        draw_in(box, "rect", { x, y: depth[i] * 18, width: Math.max(0.5, w - 0.7), height: 17, rx: 1.5, class: `${kind_class(flame.kinds[flame.name[i]])}${above.includes(i) ? " faint" : ""}` });
        if (w > 34) draw_in(box, "text", { x: x + 4, y: depth[i] * 18 + 12.5, class: `on ${kind_class(flame.kinds[flame.name[i]])}` }, fitting(short(name), w - 8));
        box.addEventListener("click", () => show(i));
        box.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(i); host.querySelector("g[tabindex]").focus(); }
          if (event.key === "Escape") show(-1);
        });
        box.addEventListener("mousemove", (event) => page.tip.show(event, said(i)));
        box.addEventListener("mouseleave", page.tip.hide);
      }
    }
    whole.addEventListener("click", () => show(-1));
    fluid(host, (now) => { width = now; render(); });
  });

  const one_table = (id, title) => section(id, title, (data) => data.tables.some((table) => table.id === id), (at, data) =>
    table_of(at, data.tables.find((table) => table.id === id)));
  one_table("syncs", "Syncs");
  one_table("ranks", "Ranks");

  section("missing", (data) => (data.about === "comparison" ? "How it was compared" : "What is missing"), (data) => data.missing.length > 0, (at, data) => {
    const list = put(at, "ul", { class: "missing" });
    for (const sentence of data.missing) put(list, "li", {}, sentence);
  });

  // ---- the page

  // Draws `data` (the content of a figures.json, parsed) into `root`, which is emptied.
  // options.only: ids of the sections wanted, in the page's order; options.contents: false for no list of contents.
  function draw(root, data, options = {}) {
    root.replaceChildren();
    root.classList.add("perfkit");
    if (!data || data.schema !== SCHEMA) {
      put(root, "p", { class: "note", role: "alert" }, `These figures have schema ${data && data.schema}, this page draws ${SCHEMA}: make them again with this perfkit.`);
      return;
    }
    const page = { root, tip: tooltip(root) };
    const wanted = sections.filter((one) => (!options.only || options.only.includes(one.id)) && one.has(data));
    const contents = options.contents === false ? null : put(put(root, "nav", { "aria-label": "Contents" }), "ul");
    for (const one of wanted) {
      const id = fresh(one.id);
      const at = put(root, "section", { id, "aria-labelledby": `${id}-title`, "data-section": one.id });
      const title = typeof one.title === "string" ? one.title : one.title(data);
      put(at, "h2", { id: `${id}-title` }, title);
      if (contents) put(put(contents, "li"), "a", { href: `#${id}` }, title);
      try {
        one.render(at, data, page);
      } catch (error) {
        // One figure's defect must not take the page with it.
        put(at, "p", { class: "note", role: "alert" }, `This could not be drawn: ${error.message}`);
      }
    }
    root.onkeydown = (event) => { if (event.key === "Escape") page.tip.hide(); };
  }

  // A button that switches between the system's colours, light and dark.
  function toggle(parent) {
    const button = put(parent, "button", { type: "button", class: "theme" });
    const dark = () => document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", dark() ? "Light colours" : "Dark colours"); };
    button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; label(); });
    label();
  }

  globalThis.perfkit = Object.freeze({ SCHEMA, draw, toggle, table: table_of, ms, bytes });

  const block = document.getElementById("perfkit-data");
  if (block) {
    const bar = document.getElementById("perfkit-bar");
    if (bar) toggle(bar);
    draw(document.getElementById("perfkit-root"), JSON.parse(block.textContent));
    document.documentElement.dataset.drawn = "yes";
  }
})();
