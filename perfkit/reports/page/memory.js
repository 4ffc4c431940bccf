// Memory over time, and the allocations at its peak.

section("memory", "Memory", (data) => data.memory.length > 0, (at, data, page) => {
  for (const memory of data.memory) {
    const head = put(at, "h3", {}, memory.device);
    put(head, "span", { class: "value" }, ` peak ${bytes(memory.peak_bytes)}`);
    if (memory.peak) put(head, "span", { class: "note" }, ` ${memory.peak}`);
    if (memory.note) put(at, "p", { class: "note" }, memory.note);
    const levels = memory.allocated_bytes, n = levels.length;
    if (n) {
      const host = put(at, "div");
      const maximum = Math.max(1, ...levels, ...memory.reserved_bytes);
      fluid(host, (width) => {
        host.replaceChildren();
        const left = 70, height = 150, base = 124, head_y = 10;
        const svg = svg_of(host, width, height, `${memory.device}: allocated memory over ${ms(n * memory.bucket_ns)}, peak ${bytes(memory.peak_bytes)}`);
        const x = (i) => left + ((width - left) * i) / n;
        const y = (value) => base - ((base - head_y) * Math.max(0, value)) / maximum;
        for (const part of [0, 0.5, 1]) {
          draw_in(svg, "line", { x1: left, x2: width, y1: y(maximum * part), y2: y(maximum * part), class: "grid" });
          draw_in(svg, "text", { x: left - 6, y: y(maximum * part) + 4, class: "axis end" }, bytes(maximum * part));
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
