// Ops against the limits of the device.

section("roofline", "Roofline", (data) => data.roofs.length > 0, (at, data, page) => {
  for (const roof of data.roofs) {
    put(at, "h3", {}, roof.device);
    if (roof.note) put(at, "p", { class: "note" }, roof.note);
    if (!roof.points.length) continue;
    const host = put(at, "div");
    const peaks = Object.entries(roof.peaks).sort((a, b) => b[1] - a[1]);
    const maximum = Math.max(...roof.points.map((point) => point.device_ns));
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
          cx: x(point.intensity), cy: y(point.flops_per_s), r: 3 + 9 * Math.sqrt(point.device_ns / maximum),
          class: `dot ${kind_class(bound[point.bound] || "other")}${point.confidence === "low" ? " faint" : ""}`,
        });
        dot.addEventListener("mousemove", (event) => page.tip.show(event, [point.op, point.shapes, `${ms(point.device_ns)} in ${count(point.count)} calls, ${point.precision}`, `${scaled(point.flops_per_s, "FLOP/s")}, ${point.intensity.toPrecision(3)} FLOP per byte`, `bound by ${point.bound}, confidence ${point.confidence}`]));
        dot.addEventListener("mouseleave", page.tip.hide);
      }
    });
    key(at, [["compute", "bound by compute"], ["copy", "bound by memory"], ["idle-launch", "bound by neither"]]);
    const more = put(at, "details");
    put(more, "summary", {}, "As a table");
    table_of(more, {
      id: "roofline", title: "Roofline", note: "The longest first.",
      columns: [{ label: "op", unit: "text" }, { label: "shapes", unit: "text" }, { label: "precision", unit: "text" }, { label: "calls", unit: "count" }, { label: "device", unit: "ns" }, { label: "FLOP/byte", unit: "number" }, { label: "FLOP/s", unit: "flops" }, { label: "bound by", unit: "text" }],
      rows: roof.points.map((p) => [p.op, p.shapes, p.precision, p.count, p.device_ns, p.intensity, p.flops_per_s, p.bound]),
    });
  }
});
