// A flame graph, drawn by time or by memory, and host time by call path.

// Draws `flame` (columns of paths) below `at`; `describe(i)` returns the lines of a tooltip, the first one the name.
function flame_graph(at, page, flame, { total, label, kinds, describe }) {
  const n = flame.total.length;
  const children = Array.from({ length: n }, () => []), roots = [], depth = new Int32Array(n);
  for (let i = 0; i < n; i += 1) {
    if (flame.parent[i] < 0) roots.push(i);
    else { children[flame.parent[i]].push(i); depth[i] = depth[flame.parent[i]] + 1; }
  }
  const longest_first = (a, b) => flame.total[b] - flame.total[a];
  roots.sort(longest_first);
  children.forEach((list) => list.sort(longest_first));
  const bar = put(at, "div", { class: "tools" });
  const show_all = put(bar, "button", { type: "button", disabled: "" }, "Show all");
  const status = put(bar, "span", { class: "status", "aria-live": "polite" });
  const host = put(at, "div", { class: "flame" });
  key(at, kinds.filter(([kind]) => flame.kinds.includes(kind)));
  let width = 0, focus = -1;
  const show = (i) => { focus = i; show_all.disabled = i < 0; render(); status.textContent = i < 0 ? "" : describe(i).join(" · "); };

  function render() {
    const above = [];
    for (let i = focus < 0 ? -1 : flame.parent[focus]; i >= 0; i = flame.parent[i]) above.unshift(i);
    const boxes = above.map((i) => [i, 0, width]);
    const place = (list, x, room, total) => {
      for (const i of list) {
        const w = (room * flame.total[i]) / total;
        if (w < 0.7) continue;
        boxes.push([i, x, w]);
        place(children[i], x, w, Math.max(flame.total[i], children[i].reduce((sum, child) => sum + flame.total[child], 0)));
        x += w;
      }
    };
    if (focus < 0) place(roots, 0, width, total); else place([focus], 0, width, flame.total[focus]);
    const deepest = boxes.reduce((maximum, [i]) => Math.max(maximum, depth[i]), 0);
    host.replaceChildren();
    const svg = svg_of(host, width, (deepest + 1) * 18, label, { role: "group" });
    for (const [i, x, w] of boxes) {
      const name = flame.names[flame.name[i]];
      const wide = w > 24;
      const box = draw_in(svg, "g", wide ? { tabindex: "0", role: "button", "aria-label": describe(i).join(", ") } : {});
      draw_in(box, "rect", { x, y: depth[i] * 18, width: Math.max(0.5, w - 0.7), height: 17, rx: 1.5, class: `${kind_class(flame.kinds[flame.name[i]])}${above.includes(i) ? " faint" : ""}` });
      if (w > 34) draw_in(box, "text", { x: x + 4, y: depth[i] * 18 + 12.5, class: `on ${kind_class(flame.kinds[flame.name[i]])}` }, fitting(short(name), w - 8));
      box.addEventListener("click", () => show(i));
      box.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(i); host.querySelector("g[tabindex]").focus(); }
        if (event.key === "Escape") show(-1);
      });
      box.addEventListener("mousemove", (event) => page.tip.show(event, describe(i)));
      box.addEventListener("mouseleave", page.tip.hide);
    }
  }
  show_all.addEventListener("click", () => show(-1));
  fluid(host, (now) => { width = now; render(); });
}

section("flame", "Flame graph of host time", (data) => data.flame !== null && data.flame.total.length > 0, (at, data, page) => {
  const flame = data.flame;
  const sampled = flame.unit === "samples";
  const steps = !flame.steps ? "" : sampled ? " of one step" : ` over ${flame.steps} step${flame.steps > 1 ? "s" : ""}`;
  const threads = sampled ? "the training thread" : "all threads";
  put(at, "p", { class: "note" }, `Host time of ${threads} by call path${steps}, from ${flame.source}. A click or Enter shows a path in full width, Escape shows all again.`);
  for (const note of flame.notes || []) put(at, "p", { class: "note" }, note);
  flame_graph(at, page, flame, {
    total: flame.total_ns,
    label: `flame graph of ${ms(flame.total_ns)} of host time`,
    kinds: sampled ? [["python", "your line"], ["api", "library"]] : [["range", "range"], ["python", "Python"], ["op", "op"], ["api", "API call"]],
    describe: (i) => [flame.names[flame.name[i]], `${ms(flame.total[i])}, ${percent(flame.total[i] / flame.total_ns)} of ${sampled && flame.steps ? "the step" : "host time"}`, `${count(flame.count[i])} ${flame.unit || "calls"}${flame.steps && !sampled ? `, ${ms(flame.total[i] / flame.steps)} per step` : ""}`],
  });
});
