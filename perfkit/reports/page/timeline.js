// The timeline of a window: lanes of streams and threads, idle time by cause, at any zoom.

const ROW = 17, GAP = 3, HEAD = 26;

// A column of integers: base64 of seven bits per byte, the lowest first; the highest bit is set if more follow.
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

const families = [
  ["idle-data", "idle: waiting for data"], ["idle-sync", "idle: sync"], ["idle-host", "idle: host at work"],
  ["idle-launch", "idle: launching"], ["idle-communication", "idle: communication"], ["idle-copy", "idle: copy call"],
  ["idle-allocation", "idle: allocation, loading"], ["idle-device", "idle: device waits for itself"],
  ["idle-unknown", "idle: cause unknown"], ["idle-profiler", "idle: the profiler"],
  ["compute", "compute"], ["communication", "communication"], ["copy", "copy"], ["memset", "memset"],
  ["range", "range"], ["op", "op"], ["api", "API call"],
  ...["data", "transfer", "forward", "backward", "optimizer", "validation", "callbacks", "logging", "checkpoint", "other"].map((phase) => [phase, phase]),
];

const no_timeline = (data) => (data.ranks === null ? "" : data.ranks.no_timeline);

section("timeline", (data) => (data.about === "ranks" ? "A few ranks on one timeline" : "Timeline of the window"), (data) => data.timeline !== null || no_timeline(data) !== "", (at, data, page) => {
  const line = data.timeline;
  if (line === null) return put(at, "p", { class: "note" }, no_timeline(data));
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
  const status = put(bar, "span", { class: "status", "aria-live": "polite" });
  const keys = fresh("keys");
  put(at, "p", { class: "note", id: keys },
    `Click an event for details; a click on events that are drawn together zooms in. Ctrl and the wheel or + and − zoom, dragging or ← and → move, 0 shows all. Keyboard: ↑ and ↓ select a row, comma and full stop an event, Enter zooms to it${gaps.length ? ", n and p select the longest idle times" : ""}.`);
  const host = put(at, "div", { class: "timeline" });
  const chosen = put(at, "p", { class: "status chosen", "aria-live": "polite" });
  for (const note of line.notes) put(at, "p", { class: "note" }, note);
  const present = new Set(line.kinds);
  key(at, families.filter(([kind]) => present.has(kind)));

  // Width of the labels of lanes; less on a narrow page.
  let width = 0, LABEL = 150, pending = false, svg = null, selected = null;
  const scale = () => (width - LABEL) / (view.high - view.low);
  const x_of = (ns) => LABEL + (ns - view.low) * scale();

  function show(low, high) {
    const shortest = 50; // ns: the resolution of a trace's clock
    const span = Math.min(line.span_ns, Math.max(shortest, high - low));
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
  // their share of the time: nothing disappears, and a busy stretch looks busy at any zoom.
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
    status.textContent = `${view.low < 1 ? "0" : ms(Math.round(view.low))} to ${ms(Math.round(view.high))} of ${ms(line.span_ns)}`;
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
    // An item that is wide enough to point at is selected alone.
    return best && { ...best, t, events: best.longer > 2 * slack ? 1 : events };
  }

  const origins = origins_of(data.tables.find((table) => table.id === "kernels"));

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
    const during = items.during.length && items.during[i] > 0 ? `host: ${line.names[items.during[i] - 1]}` : null;
    const what = lane.role === "idle" ? `idle: ${name}` : name;
    const origin = lane.role === "stream" ? origins.get(name) : null;
    return [what, `${ms(items.length[i])}, from ${ms(items.starts[i])}`, origin, during, at_lane];
  }

  function select(lane, items, i, events = 1) {
    selected = { lane, items, i, events, start: items.starts[i], length: items.length[i] };
    chosen.textContent = [...about(selected), how_to_separate(selected)].filter(Boolean).join(" · ");
    schedule();
  }

  const zoom_in = () => selected && show(selected.start - selected.length * 0.5, selected.start + selected.length * 1.5);

  // Events that are drawn together are separated by zooming in; a merged block, by a page of its step alone.
  function how_to_separate({ items, i }) {
    if (!items.count.length || items.count[i] === 1) return null;
    const steps = lanes.find((lane) => lane.role === "steps");
    const at_step = steps ? first_after(steps.single.starts, items.starts[i]) - 1 : -1;
    const cut = at_step >= 0 ? line.names[steps.single.name[at_step]].replace(/^step /, "--steps ") : null;
    return cut ? `to see each: perfkit trim ${line.title} ${cut}, and perfkit diagnose --html of that` : null;
  }

  // Keys select the next row, or the next event of a row.
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
        if (hit.items.count.length && hit.items.length[hit.i] * scale() > 3) zoom_in();
        else if (hit.events > 1) zoom(1 / 12, hit.t);
      }
      svg.focus({ preventScroll: true });
    });
    svg.addEventListener("pointerleave", page.tip.hide);
    svg.addEventListener("dblclick", zoom_in);
    svg.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5, middle()), "=": () => zoom(0.5, middle()),
        "-": () => zoom(2, middle()), 0: () => show(0, line.span_ns), Home: () => show(0, view.high - view.low),
        End: () => show(line.span_ns, line.span_ns * 2), n: () => next_gap(1), p: () => next_gap(-1),
        Enter: zoom_in, ArrowDown: () => row_to(1), ArrowUp: () => row_to(-1), ".": () => step_to(1), ",": () => step_to(-1),
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }
});

function longest_idle(lanes) {
  const found = [];
  for (const lane of lanes) {
    if (lane.role === "idle") lane.single.length.forEach((length, i) => found.push([lane, i, length]));
  }
  return found.sort((a, b) => b[2] - a[2]).slice(0, 30);
}

// Kernel -> where it is launched: the call, the op around it, and the user's line, as far as the trace shows them.
function origins_of(table) {
  const found = new Map();
  if (!table) return found;
  const column = (label) => table.columns.findIndex((one) => one.label === label);
  const [call, op, line] = ["launched by", "op", "line"].map(column);
  for (const row of table.rows) {
    const words = [[call, ""], [op, "in "], [line, "at "]].filter(([at]) => at >= 0 && row[at] !== null).map(([at, word]) => word + row[at]);
    if (words.length) found.set(row[0], `launched by ${words.join(" ")}`);
  }
  return found;
}
