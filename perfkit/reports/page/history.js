// The steps of a workload over its runs: medians, their p10 to p90, levels between changes, objectives as lines.

section("history", (data) => (data.history.length > 1 ? "Workloads" : "Steps over runs"), (data) => Boolean(data.history && data.history.length), (at, data, page) => {
  data.history.forEach((workload, number) => {
    const block = put(at, "div", { class: "workload" });
    const head = put(block, "h3", {}, workload.name);
    put(head, "span", { class: "note" }, ` ${workload.machine}`);
    if (data.history.length > 1) put(block, "p", {}, workload.verdict);
    for (const held of workload.objectives) put(block, "p", { class: held.met ? "held" : "broken" }, `${held.met ? "✓" : "✗"} ${held.sentence}`);
    runs_of(block, workload, page);
    for (const change of workload.changes) put(block, "p", { class: "change" }, `${change.slower ? "▲" : "▼"} ${change.sentence}`);
    if (workload.note) put(block, "p", { class: "note" }, workload.note);
    const n = workload.start.length;
    const more = put(block, "details", data.history.length === 1 ? { open: "" } : {});
    put(more, "summary", {}, `${n} run${n === 1 ? "" : "s"}`);
    table_of(more, data.tables.find((table) => table.id === `history-${number}`));
  });
});

function runs_of(block, workload, page) {
  const n = workload.start.length;
  const medians = workload.median_ns.filter((ns) => ns !== null).sort((a, b) => a - b);
  if (!medians.length) return;
  const limits = workload.limits;
  // From zero, so that shares are true; one slow run must not flatten all others.
  const usual = 2.5 * medians[Math.floor(0.95 * (medians.length - 1))];
  const highest = Math.max(...workload.p90_ns.filter((ns) => ns !== null));
  const top = Math.max(Math.min(highest, usual), ...limits.map((limit) => Math.min(limit.ns, 2 * usual))) * 1.08;
  const host = put(block, "div", { class: "runs" });
  fluid(host, (width) => {
    host.replaceChildren();
    const left = 58, height = 240, base = 206, head = 30, right = 8;
    const svg = svg_of(host, width, height, `${n} runs; ${workload.verdict}`, { tabindex: "0" });
    const w = Math.min(48, (width - left - right) / n);
    const x = (i) => left + (i + 0.5) * w;
    const y = (ns) => base - (base - head) * Math.min(1, ns / top);
    for (let ns = 0, tick = nice(top / 5); ns <= top; ns += tick) {
      draw_in(svg, "line", { x1: left, x2: width, y1: y(ns), y2: y(ns), class: "grid" });
      draw_in(svg, "text", { x: left - 6, y: y(ns) + 4, class: "axis end" }, ns ? ms(ns) : "0");
    }
    const spread = [], levels = [], dots = [], beyond = [];
    for (let i = 0; i < n; i += 1) {
      const median = workload.median_ns[i];
      if (median === null) continue;
      spread.push(`M${x(i).toFixed(1)} ${y(workload.p10_ns[i]).toFixed(1)}V${y(workload.p90_ns[i]).toFixed(1)}`);
      if (median > top) beyond.push(`M${(x(i) - 3).toFixed(1)} ${head + 5}l3 -6 3 6z`);
      else dots.push(`M${x(i).toFixed(1)} ${y(median).toFixed(1)}h0`);
    }
    for (let i = 0; i < n; i += 1) {
      if (workload.level_ns[i] === null) continue;
      const same = i && workload.level_ns[i - 1] === workload.level_ns[i];
      levels.push(`${same ? "L" : "M"}${(x(i) - w / 2).toFixed(1)} ${y(workload.level_ns[i]).toFixed(1)}h${w.toFixed(1)}`);
    }
    draw_in(svg, "path", { d: spread.join(""), class: "spread", "stroke-width": Math.max(1, Math.min(8, 0.5 * w)) });
    draw_in(svg, "path", { d: levels.join(""), class: "level" });
    draw_in(svg, "path", { d: dots.join(""), class: "dots", "stroke-width": Math.max(3, Math.min(7, 0.6 * w)) });
    draw_in(svg, "path", { d: beyond.join(""), class: "beyond" });
    let free = 0;
    for (const change of workload.changes) {
      const at_x = x(change.at) - w / 2;
      draw_in(svg, "line", { x1: at_x, x2: at_x, y1: 4, y2: base, class: change.slower ? "bound slower" : "bound faster" });
      const long = (change.label.length + 1) * LETTER, flip = at_x + long > width;
      if (at_x < free || (flip && at_x - long < free)) continue; // its label would overlap another
      draw_in(svg, "text", { x: flip ? at_x - 4 : at_x + 4, y: 14, class: flip ? "axis end" : "axis" }, change.label);
      free = flip ? at_x : at_x + long;
    }
    for (const limit of limits.filter((one) => one.ns <= top)) {
      draw_in(svg, "line", { x1: left, x2: width, y1: y(limit.ns), y2: y(limit.ns), class: "limit" });
      draw_in(svg, "text", { x: left + 4, y: y(limit.ns) - 5, class: "axis halo" }, fitting(limit.label, width - left));
    }
    draw_in(svg, "line", { x1: left, x2: width, y1: base, y2: base, class: "base" });
    const every = Math.max(1, Math.ceil(84 / w));
    for (let i = 0; i < n; i += every) if (x(i) - w / 2 + 70 < width) draw_in(svg, "text", { x: x(i) - w / 2, y: base + 18, class: "axis" }, workload.start[i].slice(0, 10));
    const about = (i) => [
      workload.folder[i], workload.start[i], workload.commit[i] && `commit ${workload.commit[i]}`,
      workload.median_ns[i] === null ? "no step was timed" : `median ${ms(workload.median_ns[i])}, p10 ${ms(workload.p10_ns[i])}, p90 ${ms(workload.p90_ns[i])}`,
    ].filter(Boolean);
    choose_columns(svg, page.tip, { n, left, w, top: head - 8, bottom: base, about, tell: (text) => { status.textContent = text; } });
  });
  const status = put(block, "p", { class: "status", "aria-live": "polite" }, "A dot is the median step of a run, its bar p10 to p90. Point at a run, or focus the chart and use the arrow keys.");
}
