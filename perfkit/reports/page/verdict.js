// The verdict, and the parts of a step.

section("verdict", "Verdict", () => true, (at, data) => {
  put(at, "p", { class: "verdict" }, data.verdict);
  const first = data.findings.find((found) => found.severity !== "info");
  if (data.about === "diagnosis" && first) {
    const change = put(at, "div", { class: "first-change" });
    put(change, "h3", {}, "The change to make first");
    put(change, "p", {}, first.advice);
    if (first.diff && first.diff.length) diff_of(change, first);
    else excerpt_of(change, first.change_excerpt || first.excerpt, fresh("excerpt"));
  }
  if (data.next_step) {
    const next = put(at, "p", { class: "next" });
    put(next, "strong", {}, "Next: ");
    put(next, "span", { class: "code" }, data.next_step);
  }
  const list = put(at, "dl", { class: "facts" });
  for (const fact of data.facts) {
    const pair = put(list, "div");
    put(pair, "dt", {}, fact.label);
    put(pair, "dd", {}, fact.value);
  }
});

const where = { diagnosis: "Phases and devices", comparison: "A step, before and after", ranks: "A step" };

section("where", (data) => where[data.about], (data) => data.bars.length > 0, (at, data, page) => {
  for (const bar of data.bars) {
    const block = put(at, "div", { class: "bar-block" });
    const head = put(block, "h3", {}, bar.title);
    put(head, "span", { class: "value" }, ` ${ms(bar.total_ns)}`);
    if (bar.note) put(head, "span", { class: "note" }, ` ${bar.note}`);
    const host = put(block, "div");
    const total = bar.parts.reduce((sum, part) => sum + part.ns, 0) || 1;
    const description = bar.parts.map((part) => `${part.name} ${ms(part.ns)}, ${percent(part.ns / total)}`).join("; ");
    fluid(host, (width) => {
      host.replaceChildren();
      const svg = svg_of(host, width, 26, `${bar.title}: ${description}`);
      let x = 0;
      for (const part of bar.parts) {
        const w = (width * part.ns) / (bar.scale_ns || total);
        const box = draw_in(svg, "rect", { x, width: Math.max(0.5, w - 1), height: 26, rx: 2, class: kind_class(part.kind) });
        box.addEventListener("mousemove", (event) =>
          page.tip.show(event, [part.name, `${ms(part.ns)}, ${percent(part.ns / total)}`]));
        box.addEventListener("mouseleave", page.tip.hide);
        if (w > 44) draw_in(svg, "text", { x: x + 7, y: 17.5, class: `on ${kind_class(part.kind)}` }, fitting(part.name, w - 12));
        x += w;
      }
    });
    key(block, bar.parts.map((part) => [part.kind, part.name, `${ms(part.ns)} · ${percent(part.ns / total)}`]));
  }
});
