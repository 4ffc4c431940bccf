// Many ranks: how late each is in each step, and its hosts.

// Lateness as a share of the step, from which on each shade is drawn: pages of different jobs can be compared.
const SHADES = [0.01, 0.03, 0.1, 0.3, 1];

section("lateness", "Who is late, step by step", (data) => data.ranks !== null && data.ranks.lateness !== null, (at, data, page) => {
  const map = data.ranks.lateness;
  const cells = unpacked(map.cells), latest = unpacked(map.latest);
  const late = (i) => (cells[i] === 0 ? null : (cells[i] - 1) * map.unit_ns);
  const shade = (i) => SHADES.filter((share) => late(i) >= share * data.wall_ns).length;
  const one = map.ranks_per_row === 1 && map.steps_per_column === 1;
  put(at, "p", { class: "note" }, "How much longer the own time of a rank (without waiting for others) is than that of the middle rank in the same step. "
    + (one ? "A cell is one rank in one step." : `A cell is ${count(map.ranks_per_row)} rank${map.ranks_per_row > 1 ? "s" : ""} in ${count(map.steps_per_column)} step${map.steps_per_column > 1 ? "s" : ""}: the mean of its steps${map.ranks_per_row > 1 ? ", of the rank that is the latest there" : ""}.`));
  let worst = 0;
  for (let i = 1; i < cells.length; i += 1) if (cells[i] > cells[worst]) worst = i;

  const last_of = (first, all, i, last) => (i + 1 < all.length ? all[i + 1] - 1 : last);
  const range = (what, first, last) => (first === last ? `${what} ${first}` : `${what}s ${first} to ${last}`);
  const about = (row, column) => {
    const i = row * map.columns + column;
    const steps = range("step", map.first_steps[column], last_of(map.first_steps[column], map.first_steps, column, map.last_step));
    const ranks = range("rank", map.first_ranks[row], last_of(map.first_ranks[row], map.first_ranks, row, map.last_rank));
    if (late(i) === null) return [ranks, steps, "not recorded"];
    const who = latest.length && late(i) > 0 ? `the latest: rank ${map.first_ranks[row] + latest[i]}` : null;
    return [ranks, steps, late(i) > 0 ? `${ms(late(i))} late (${percent(late(i) / data.wall_ns)} of the step)` : "not late", who];
  };
  const words = (row, column) => about(row, column).filter(Boolean).join(", ");
  const worst_at = [Math.floor(worst / map.columns), worst % map.columns];

  const host = put(at, "div", { class: "lateness" });
  const status = put(at, "p", { class: "status", "aria-live": "polite" }, "Point at a cell, or focus the map and use the arrow keys.");
  let chosen = worst_at;
  fluid(host, (width) => {
    host.replaceChildren();
    const left = width < 640 ? 56 : 84, head = 4, foot = 22;
    const h = Math.max(3, Math.min(18, Math.floor(540 / map.rows)));
    const w = Math.min(36, (width - left) / map.columns);
    const base = head + h * map.rows;
    const svg = svg_of(host, width, base + foot, `Lateness of ${count(map.first_ranks.length)} rows of ranks in ${count(map.columns)} columns of steps. The latest: ${words(...worst_at)}.`, { tabindex: "0" });
    draw_in(svg, "rect", { x: left, y: head, width: w * map.columns, height: h * map.rows, class: "lane" });
    const paths = {};
    for (let row = 0; row < map.rows; row += 1) {
      const y = head + h * row;
      for (let column = 0; column < map.columns;) {
        const i = row * map.columns + column;
        const level = cells[i] === 0 ? "absent" : shade(i);
        let end = column + 1;
        while (end < map.columns && (cells[row * map.columns + end] === 0 ? "absent" : shade(row * map.columns + end)) === level) end += 1;
        if (level !== 0) (paths[level] = paths[level] || []).push(`M${(left + w * column).toFixed(1)} ${y}h${Math.max(1, w * (end - column)).toFixed(1)}v${h > 6 ? h - 1 : h}h${(-Math.max(1, w * (end - column))).toFixed(1)}z`);
        column = end;
      }
    }
    for (const [level, d] of Object.entries(paths)) draw_in(svg, "path", { d: d.join(""), class: level === "absent" ? "absent" : `late late-${level}` });
    // A row of some pixels is found by its mark.
    if (late(worst) > 0) draw_in(svg, "path", { d: `M${left - 1} ${head + h * (worst_at[0] + 0.5)}l-6 -4v8z`, class: "beyond" });
    const every_row = Math.ceil(15 / h);
    for (let row = 0; row < map.rows; row += every_row) draw_in(svg, "text", { x: left - 12, y: head + h * row + Math.min(11, h + 6), class: "axis end" }, width < 640 ? String(map.first_ranks[row]) : `rank ${map.first_ranks[row]}`);
    const every = Math.max(1, Math.ceil(70 / w));
    for (let column = 0; column < map.columns; column += every) {
      const x = left + w * column, text = column ? String(map.first_steps[column]) : `step ${map.first_steps[0]}`;
      if (x + text.length * LETTER < width) draw_in(svg, "text", { x, y: base + 16, class: "axis" }, text);
    }
    const cursor = draw_in(svg, "rect", { width: Math.max(2, w), height: Math.max(2, h), class: "cursor", visibility: "hidden" });
    const choose = (row, column) => {
      chosen = [Math.max(0, Math.min(map.rows - 1, row)), Math.max(0, Math.min(map.columns - 1, column))];
      cursor.setAttribute("x", left + w * chosen[1]);
      cursor.setAttribute("y", head + h * chosen[0]);
      cursor.setAttribute("visibility", "visible");
      status.textContent = words(...chosen);
    };
    const pointed = (event) => {
      const box = svg.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - left) / w), row = Math.floor((event.clientY - box.top - head) / h);
      if (column < 0 || column >= map.columns || row < 0 || row >= map.rows) return page.tip.hide();
      choose(row, column);
      return page.tip.show(event, about(row, column));
    };
    svg.addEventListener("mousemove", pointed);
    svg.addEventListener("click", pointed);
    svg.addEventListener("mouseleave", page.tip.hide);
    svg.addEventListener("keydown", (event) => {
      const [row, column] = chosen;
      const to = {
        ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
        PageUp: [row - 10, column], PageDown: [row + 10, column], Home: [row, 0], End: [row, map.columns - 1], Enter: worst_at,
      }[event.key];
      if (to) { event.preventDefault(); choose(...to); }
    });
  });
  put(at, "p", {}, `The latest: ${words(...worst_at)}.`);
  const list = put(at, "ul", { class: "key" });
  const entry = (kind, label) => {
    const item = put(list, "li");
    draw_in(draw_in(item, "svg", { width: 12, height: 12, "aria-hidden": "true" }), "rect", { width: 12, height: 12, rx: 2, class: kind });
    put(item, "span", {}, label);
  };
  SHADES.forEach((share, i) => entry(`late late-${i + 1}`, `from ${percent(share)} of the step (${ms(share * data.wall_ns)})`));
  if (cells.includes(0)) entry("absent", "not recorded");
});

section("hosts", "Hosts", (data) => data.ranks !== null && data.ranks.hosts.length > 0, (at, data, page) => {
  const { hosts, all_hosts: all } = data.ranks;
  put(at, "p", { class: "note" }, `Means per step of the ranks of ${all > hosts.length ? `${hosts.length} of ${count(all)} hosts, those` : "each host, those"} that others wait for longest first.`);
  const top = Math.max(1, ...hosts.map((one) => Math.max(one.own_ns + (one.waiting_ns || 0), one.longest_ns)));
  const host = put(at, "div", { class: "hosts" });
  fluid(host, (width) => {
    host.replaceChildren();
    for (const one of hosts) {
      const title = `${one.host}, ${count(one.ranks)} rank${one.ranks > 1 ? "s" : ""}`;
      const given = `makes others wait ${ms(one.given_ns)}`;
      const parts = [`own time ${ms(one.own_ns)}`, one.waiting_ns === null ? null : `waits ${ms(one.waiting_ns)}`, `longest: rank ${one.longest_rank}, ${ms(one.longest_ns)}`, given];
      const svg = svg_of(host, width, 42, `${title}: ${parts.filter(Boolean).join(", ")}`);
      const right = given.length * LETTER + 8;
      draw_in(svg, "text", { x: 0, y: 14 }, fitting(title, width - right));
      draw_in(svg, "text", { x: width, y: 14, class: "axis end" }, given);
      draw_in(svg, "rect", { y: 20, width, height: 14, class: "lane" });
      const x = (ns) => (width * ns) / top;
      draw_in(svg, "rect", { y: 20, width: x(one.own_ns), height: 14, class: "k-compute" });
      if (one.waiting_ns) draw_in(svg, "rect", { x: x(one.own_ns), y: 20, width: x(one.waiting_ns), height: 14, class: "k-data" });
      const tick = Math.min(width - 1, Math.max(1, x(one.longest_ns)));
      draw_in(svg, "path", { d: `M${tick} 17V37`, class: "tick" });
      svg.addEventListener("mousemove", (event) => page.tip.show(event, [title, ...parts]));
      svg.addEventListener("mouseleave", page.tip.hide);
    }
  });
  key(at, [["compute", "own time"], ...(hosts.some((one) => one.waiting_ns !== null) ? [["data", "waits for later ranks"]] : [])]);
  put(at, "p", { class: "note" }, "The mark is the own time of the rank that has the longest; what others wait is the sum over all of them.");
});
