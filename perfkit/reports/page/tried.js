// What `perfkit try` measured: the saving of each change with its interval, the patch, and the sweeps.

// One digit below ten percent: savings are compared with a floor of one or two.
const share_text = (share) => `${Math.abs(share) >= 0.0995 ? Math.round(100 * share) : (100 * share).toFixed(1)}%`;
const interval_text = (pair) => `${share_text(pair[0])} to ${share_text(pair[1])}`;
const LOSSES = { same: "same", "within-seeds": "as with other seeds", differs: "differs", unknown: "not seen" };
const SAVING_KINDS = { faster: "at-limit", slower: "claimed" };

section("tried", "What was tried", (data) => Boolean(data.trial), (at, data, page) => {
  const trial = data.trial;
  put(at, "p", {}, trial.verdict);
  const floor = trial.floor === null ? "" : ` Two unchanged runs differ by ${share_text(trial.floor)}: nothing below that is a saving.`;
  put(at, "p", { class: "note" }, `${trial.program}, measured in ${Math.round(trial.seconds)} s.${floor}`);
  const measured = trial.changes.filter((one) => one.saving !== null && one.ci !== null);
  if (measured.length) savings_of(at, trial.floor, measured, page);
  const sentences = trial.changes.filter((one) => one.notes.length).map((one) => `${one.name}: ${one.notes.join("; ")}`);
  if (sentences.length || trial.notes.length) {
    const list = put(at, "ul", { class: "missing" });
    for (const sentence of [...sentences, ...trial.notes]) put(list, "li", {}, sentence);
  }
  if (trial.patch.length) {
    put(at, "h3", {}, "Patch");
    patch_of(at, trial.patch);
  }
  if (trial.unpatched.length) {
    put(at, "h3", {}, "By hand");
    const list = put(at, "ul", { class: "missing" });
    for (const line of trial.unpatched) put(list, "li", {}, line);
  }
});

// A row for each change: what it saves as a bar, its interval as whiskers, what was predicted as a dashed box.
function savings_of(at, floor, measured, page) {
  const ends = measured.flatMap((one) => [one.saving, ...one.ci, ...(one.predicted || [])]);
  const low = Math.min(0, ...ends), high = Math.max(0.1, ...ends);
  const width = 220, height = 20, middle = height / 2;
  const x = (share) => 1 + ((width - 2) * (share - low)) / (high - low);
  const frame = put(at, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What each change saves" });
  const table = put(frame, "table", { "data-table": "tried" });
  const head = put(put(table, "thead"), "tr");
  for (const [label, kind] of [["change"], [""], ["saves", "number"], ["95% interval", "number"], ["predicted", "number"], ["step before", "number"], ["after", "number"], ["loss"]]) {
    put(head, "th", { scope: "col", class: kind }, label);
  }
  const body = put(table, "tbody");
  for (const one of measured) {
    const row = put(body, "tr");
    put(row, "th", { scope: "row", class: "code" }, one.name);
    const unseen = { "no-difference": "nothing seen", undecided: "not certain" };
    const seen = unseen[one.outcome] || share_text(one.saving);
    const said = `${one.name}: ${seen}, 95% interval ${interval_text(one.ci)}`;
    const predicted = one.predicted === null ? null : `predicted ${interval_text(one.predicted)}`;
    const svg = svg_of(put(row, "td"), width, height, said);
    const box = (from, to, top, kind) => draw_in(svg, "rect", { x: x(Math.min(from, to)), width: Math.max(1, Math.abs(x(to) - x(from))), y: top, height: height - 2 * top, class: kind });
    if (floor) box(Math.max(low, -floor), Math.min(high, floor), 0, "floor");
    box(0, one.saving, 5, kind_class(SAVING_KINDS[one.outcome] || "other"));
    if (one.predicted !== null) box(one.predicted[0], one.predicted[1], 1, "predicted");
    draw_in(svg, "path", { d: `M${x(one.ci[0])} ${middle - 4}v8M${x(one.ci[0])} ${middle}H${x(one.ci[1])}M${x(one.ci[1])} ${middle - 4}v8`, class: "tick" });
    draw_in(svg, "line", { x1: x(0), x2: x(0), y1: 0, y2: height, class: "base" });
    svg.addEventListener("mousemove", (event) => page.tip.show(event, [said, predicted]));
    svg.addEventListener("mouseleave", page.tip.hide);
    const times = [one.before_ns, one.after_ns].map((ns) => (ns === null ? "–" : ms(ns)));
    for (const text of [seen, interval_text(one.ci), one.predicted === null ? "–" : interval_text(one.predicted), ...times]) put(row, "td", { class: "number" }, text);
    put(row, "td", {}, LOSSES[one.loss] || "–");
  }
  key(at, [["at-limit", "saves"], ["claimed", "costs"], ["other", "no more than two unchanged runs differ by"]]);
  put(at, "p", { class: "note" }, "Whiskers are the 95% interval; a dashed box is what the findings had predicted.");
}

function patch_of(at, lines) {
  const code = put(put(at, "pre", { class: "patch", tabindex: "0", "aria-label": "patch" }), "code");
  for (const line of lines) {
    const kind = /^(\+\+\+|---|@@|diff )/.test(line) ? "head" : { "+": "added", "-": "removed" }[line[0]];
    put(code, "span", { class: kind }, `${line}\n`);
  }
}

section("sweep", (data) => (data.sweep.swept === "workers" ? "Workers" : "Batch size"), (data) => Boolean(data.sweep), (at, data, page) => {
  const sweep = data.sweep;
  put(at, "p", {}, sweep.verdict);
  const drawn = sweep.points.filter((point) => point.per_s !== null);
  if (drawn.length > 1) curve_of(put(at, "div", { class: "sweep" }), sweep, drawn, page);
  const role = (point) => [point.outcome === "measured" ? null : point.outcome, point.value === sweep.own ? "own" : null, point.value === sweep.recommended ? "recommended" : null].filter(Boolean).join(", ");
  const noted = sweep.points.some((point) => point.note);
  const kept = (cells) => (noted ? cells : cells.slice(0, -1));
  table_of(at, {
    id: "sweep", title: "Values", note: sweep.memory,
    columns: kept([{ label: sweep.swept, unit: "number" }, { label: "", unit: "text" }, { label: "step", unit: "ns" }, { label: `${sweep.unit}/s`, unit: "number" }, { label: "lowest", unit: "number" }, { label: "highest", unit: "number" }, { label: "memory", unit: "bytes" }, { label: "left", unit: "bytes" }, { label: "note", unit: "text" }]),
    rows: sweep.points.map((p) => kept([p.value, role(p), p.step_ns, p.per_s, p.low, p.high, p.peak_bytes, p.left_bytes, p.note])),
  });
  for (const note of sweep.notes) put(at, "p", { class: "note" }, note);
});

// Throughput by value; values stand at equal distances, since each is twice the one before.
function curve_of(host, sweep, drawn, page) {
  const top = 1.05 * Math.max(...drawn.map((point) => point.high));
  fluid(host, (full) => {
    host.replaceChildren();
    const width = Math.min(full, 640), left = 70, right = 16, height = 190, base = 156, head = 10;
    const svg = svg_of(host, width, height, `${sweep.unit} per second: ${drawn.map((p) => `${count(p.per_s)} with ${p.value}`).join(", ")}`);
    const x = (i) => left + 24 + ((width - left - right - 48) * i) / (drawn.length - 1);
    const y = (value) => base - ((base - head) * value) / top;
    for (let value = 0, tick = nice(top / 5); value <= top; value += tick) {
      draw_in(svg, "line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" });
      draw_in(svg, "text", { x: left - 6, y: y(value) + 4, class: "axis end" }, count(value));
    }
    draw_in(svg, "path", { d: drawn.map((point, i) => `${i ? "L" : "M"}${x(i)} ${y(point.per_s)}`).join(""), class: "curve" });
    drawn.forEach((point, i) => {
      draw_in(svg, "path", { d: `M${x(i) - 4} ${y(point.low)}h8M${x(i)} ${y(point.low)}V${y(point.high)}M${x(i) - 4} ${y(point.high)}h8`, class: "tick" });
      const chosen = point.value === sweep.recommended;
      const dot = draw_in(svg, "circle", { cx: x(i), cy: y(point.per_s), r: chosen ? 7 : 4, class: `dot ${kind_class(chosen ? "at-limit" : "forward")}` });
      const memory = point.peak_bytes === null ? null : `memory ${bytes(point.peak_bytes)}`;
      dot.addEventListener("mousemove", (event) => page.tip.show(event, [`${sweep.swept}=${point.value}`, `${count(point.per_s)} ${sweep.unit}/s (${count(point.low)} to ${count(point.high)})`, `step ${ms(point.step_ns)}`, memory, point.note]));
      dot.addEventListener("mouseleave", page.tip.hide);
      draw_in(svg, "text", { x: x(i), y: base + 17, class: "axis middle" }, String(point.value));
    });
    draw_in(svg, "text", { x: (left + width) / 2, y: height - 2, class: "axis middle" }, sweep.swept);
  });
  key(host.parentNode, [["forward", `${sweep.unit}/s`], ["at-limit", "recommended"]]);
}
