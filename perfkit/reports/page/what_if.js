// The critical path: which task the step waited for at each time, and what would be saved if a part were free.

section("what-if", "Critical path", (data) => Boolean(data.what_if), (at, data, page) => {
  const path = data.what_if;
  put(at, "p", {}, path.verdict);
  if (path.starts.length) path_strip(put(at, "div", { class: "path" }), path, page);
  key(at, path.owners.filter((one) => one.share >= 0.005).map((one) => [one.kind, one.name, `${ms(one.ns)} ${percent(one.share)}`]));
  const per = data.per === "step" ? "per step" : "in the recording";
  const slowed = path.step_ns < 0.98 * path.recorded_ns ? ` Drawn as recorded, at ${ms(path.recorded_ns)} a step; the figures are of steps that were not recorded.` : "";
  put(at, "p", { class: "note" }, `The chain of tasks that the steps waited for, ${per}: anything else can take longer without the step taking longer.${slowed}`);
  table_of(at, {
    id: "path-owners", title: "Shares of the critical path",
    columns: [{ label: "owner", unit: "text" }, { label: "mostly", unit: "text" }, { label: per, unit: "ns" }, { label: "share", unit: "share" }],
    rows: path.owners.map((one) => [one.name, one.mostly, one.ns, one.share]),
  });
  if (path.if_free.length) {
    put(at, "h3", {}, "If this were free");
    free_rows(at, path, page);
  }
  for (const note of path.notes) put(at, "p", { class: "note" }, `Note: ${note}`);
});

// One row of the page's width: each stretch in the colour of its owner.
function path_strip(host, path, page) {
  const end = path.starts[path.starts.length - 1] + path.lengths[path.lengths.length - 1];
  fluid(host, (width) => {
    host.replaceChildren();
    const height = 46, top = 4, tall = 22;
    const largest = path.owners.slice(0, 3).map((one) => `${one.name} ${percent(one.share)}`).join(", ");
    const svg = svg_of(host, width, height, `Critical path over ${ms(end)}: ${largest}`);
    const x = (ns) => (width * ns) / end;
    path.starts.forEach((start, i) => {
      draw_in(svg, "rect", { x: x(start), y: top, width: x(path.lengths[i]) + 0.2, height: tall, class: kind_class(path.owners[path.owner[i]].kind) });
    });
    for (let ns = 0, tick = nice(end / 8); ns <= end; ns += tick) {
      const shift = ns === 0 ? "" : x(ns) > width - 30 ? " end" : " middle";
      draw_in(svg, "text", { x: Math.min(width, x(ns)), y: height - 4, class: `axis${shift}` }, ms(ns));
    }
    svg.addEventListener("mousemove", (event) => {
      const ns = (end * (event.clientX - svg.getBoundingClientRect().left)) / width;
      const at = Math.max(0, first_after(path.starts, ns) - 1);
      page.tip.show(event, [path.owners[path.owner[at]].name, clip(short(path.name[at]), 90), `${ms(path.lengths[at])} at ${ms(path.starts[at])}`]);
    });
    svg.addEventListener("mouseleave", page.tip.hide);
  });
}

// A row for each change: what it would save at least and at most, as a bar of the step.
function free_rows(at, path, page) {
  const width = 220, height = 16;
  const frame = put(at, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What would be saved if a part were free" });
  const table = put(frame, "table", { "data-table": "if-free" });
  const head = put(put(table, "thead"), "tr");
  for (const [label, kind] of [["change", ""], ["of the step", ""], ["saves at least", "number"], ["at most", "number"], ["perfkit what-if", ""]]) put(head, "th", { scope: "col", class: kind }, label);
  const body = put(table, "tbody");
  for (const one of path.if_free) {
    const row = put(body, "tr");
    put(row, "th", { scope: "row", class: "words" }, one.change);
    const said = `${one.change}: saves ${ms(one.low_ns)} to ${ms(one.high_ns)} of ${ms(path.step_ns)}`;
    const svg = svg_of(put(row, "td"), width, height, said);
    const x = (ns) => Math.min(width, (width * ns) / path.step_ns);
    draw_in(svg, "rect", { x: 0, y: 3, width, height: height - 6, class: "floor" });
    draw_in(svg, "rect", { x: 0, y: 3, width: x(one.high_ns), height: height - 6, class: "predicted" });
    draw_in(svg, "rect", { x: 0, y: 3, width: x(one.low_ns), height: height - 6, class: kind_class("at-limit") });
    svg.addEventListener("mousemove", (event) => page.tip.show(event, [said]));
    svg.addEventListener("mouseleave", page.tip.hide);
    for (const ns of [one.low_ns, one.high_ns]) put(row, "td", { class: "number" }, ms(ns));
    put(row, "td", { class: "code" }, one.option);
  }
}
