// Steps over time: phases as stacked bars, windows marked.

section("steps", "Steps over time", (data) => data.steps !== null && data.steps.wall_ns.length > 0, (at, data, page) => {
  const steps = data.steps;
  const phases = Object.keys(steps.phases_ns);
  const n = steps.wall_ns.length;
  const host = put(at, "div", { class: "steps" });
  // Outliers and recorded steps must not flatten all others: the axis ends at 3 times the 90th percentile.
  const timed = steps.longest_ns.filter((_, i) => !steps.state[i]);
  const ordered = (timed.length ? timed : [...steps.longest_ns]).sort((a, b) => a - b);
  const longest = Math.max(...steps.longest_ns);
  const top = Math.max(1, Math.min(longest, 3 * ordered[Math.floor(0.9 * (ordered.length - 1))])) * 1.05;
  const states = { window: "recorded in a window", extra: "recorded by line", dry: "dry run" };
  const total = steps.steps.reduce((sum, one) => sum + one, 0);
  fluid(host, (width) => {
    host.replaceChildren();
    const left = 58, height = 198, base = 168, head = 22;
    const svg = svg_of(host, width, height, `${total} steps; the longest took ${ms(longest)}`, { tabindex: "0" });
    // Bars of few steps have a maximum width.
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
    // A merged row begins a window if one of its steps does.
    let free = 0;
    for (const window of steps.windows) {
      const i = first_after(steps.first_step, window.first_step) - 1;
      if (i < 0 || steps.first_step[i] + steps.steps[i] <= window.first_step) continue;
      const x = left + i * w, label = `window ${window.index}`;
      draw_in(svg, "line", { x1: x, x2: x, y1: 0, y2: base, class: "bound" });
      if (x < free) continue; // its label would overlap another
      const flip = x + (label.length + 1) * LETTER > width;
      draw_in(svg, "text", { x: flip ? x - 4 : x + 4, y: 10, class: flip ? "axis end" : "axis" }, label);
      free = x + (label.length + 1) * LETTER;
    }
    draw_in(svg, "line", { x1: left, x2: width, y1: base, y2: base, class: "base" });
    const every = Math.max(1, Math.ceil(90 / w / (w > 40 ? 3 : 1)));
    for (let i = 0; i < n; i += every) draw_in(svg, "text", { x: left + i * w, y: base + 18, class: "axis" }, String(steps.first_step[i]));
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
    choose_columns(svg, page.tip, { n, left, w, top: head - 8, bottom: base, about, tell: (text) => { status.textContent = text; } });
  });
  const status = put(at, "p", { class: "status", "aria-live": "polite" }, "Point at a step, or focus the chart and use the arrow keys.");
  const entries = (phases.length ? phases : ["step"]).map((phase) => [phase, phase]);
  if (steps.state.some(Boolean)) entries.push(["window", "recorded: slower, left out of all means"]);
  key(at, entries);
});
