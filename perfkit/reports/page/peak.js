// What a device holds at the peak of a step: by kind, by call path as a flame graph, by part, and what can be freed.

section("peak", "Memory at the peak of a step", (data) => data.peaks.length > 0, (at, data, page) => {
  for (const peak of data.peaks) {
    const block = put(at, "div", { class: "bar-block" });
    put(block, "h3", {}, peak.device);
    put(block, "p", {}, peak.summary);
    const total = peak.parts.reduce((sum, part) => sum + part.bytes, 0) || 1;
    const host = put(block, "div");
    fluid(host, (width) => {
      host.replaceChildren();
      const text = peak.parts.map((part) => `${part.name} ${bytes(part.bytes)}, ${percent(part.bytes / total)}`).join("; ");
      const svg = svg_of(host, width, 26, `${peak.device}, held at the peak: ${text}`);
      let x = 0;
      for (const part of peak.parts) {
        const w = (width * part.bytes) / total;
        const box = draw_in(svg, "rect", { x, width: Math.max(0.5, w - 1), height: 26, rx: 2, class: kind_class(part.kind) });
        box.addEventListener("mousemove", (event) => page.tip.show(event, [part.name, `${bytes(part.bytes)}, ${percent(part.bytes / total)}`]));
        box.addEventListener("mouseleave", page.tip.hide);
        if (w > 44) draw_in(svg, "text", { x: x + 7, y: 17.5, class: `on ${kind_class(part.kind)}` }, fitting(part.name, w - 12));
        x += w;
      }
    });
    key(block, peak.parts.map((part) => [part.kind, part.name, `${bytes(part.bytes)} · ${percent(part.bytes / total)}`]));
    const flame = peak.flame;
    if (flame.total.length) {
      put(at, "p", { class: "note" }, "What is held at the peak by where it was allocated: the user's calls, the module and the op, or the parameter's name. A click or Enter shows a path in full width, Escape shows all again.");
      flame_graph(at, page, flame, {
        total: flame.total_bytes,
        label: `flame graph of ${bytes(flame.total_bytes)} held at the peak on ${peak.device}`,
        kinds: [],
        describe: (i) => [flame.names[flame.name[i]], `${bytes(flame.total[i])}, ${percent(flame.total[i] / flame.total_bytes)} of the peak`, `${count(flame.count[i])} allocations`],
      });
    }
    for (const table of peak.tables) table_of(at, table);
  }
});
