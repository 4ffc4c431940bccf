// Where the step goes: a bar by what accounts for it, a bar by owner with its parts below, and the rows.

const SPLIT = [["claimed", "claimed by findings", "claimed_ns"], ["at-limit", "at the limit", "at_limit_ns"], ["overhead", "overhead of ops", "overhead_ns"], ["unexplained", "unexplained", "unexplained_ns"]];

section("ledger", (data) => `Where the ${data.per} goes`, (data) => Boolean(data.ledger), (at, data, page) => {
  const ledger = data.ledger;
  put(at, "p", {}, ledger.summary);
  const whole = ledger.wall_ns || 1;
  const owners = ledger.owners.map((owner) => ({ ...owner, ns: SPLIT.reduce((sum, [, , field]) => sum + owner[field], 0) }));
  // The time of other programs is neither explained nor a question about this one.
  const others = owners.filter((owner) => owner.name === "other programs").reduce((sum, owner) => sum + owner.unexplained_ns, 0);
  const parts = SPLIT.map(([kind, label, field]) => [kind, label, owners.reduce((sum, owner) => sum + owner[field], 0) - (field === "unexplained_ns" ? others : 0)])
    .filter(([kind, , ns]) => ns || kind !== "overhead");
  if (others) parts.push(["other", "other programs", others]);
  const account = put(at, "div");
  const host = put(at, "div", { class: "ledger" });
  const said = (ns) => `${ms(ns)} · ${percent(ns / whole)}`;
  fluid(account, (width) => {
    account.replaceChildren();
    const svg = svg_of(account, width, 30, parts.map(([, label, ns]) => `${label} ${said(ns)}`).join("; "));
    let x = 0;
    for (const [kind, label, ns] of parts) {
      const w = (width * ns) / whole;
      draw_in(svg, "rect", { x, width: Math.max(0, w - 1), height: 24, rx: 2, class: kind_class(kind) });
      if (w > 44) draw_in(svg, "text", { x: x + 7, y: 16.5, class: `on ${kind_class(kind)}` }, fitting(label, w - 12));
      x += w;
    }
  });
  key(account.parentNode, parts.map(([kind, label, ns]) => [kind, label, said(ns)]));
  host.parentNode.append(host);
  fluid(host, (width) => {
    host.replaceChildren();
    const svg = svg_of(host, width, 40, owners.map((owner) => `${owner.name} ${said(owner.ns)}`).join("; "));
    let x = 0;
    const box = (left, ns, y, height, kind, owner, lines) => {
      const made = draw_in(svg, "rect", { x: left, y, width: (width * ns) / whole, height, class: kind_class(kind) });
      made.addEventListener("mousemove", (event) => page.tip.show(event, lines));
      made.addEventListener("mouseleave", page.tip.hide);
      made.addEventListener("click", () => choose(owner.name));
    };
    for (const owner of owners) {
      const w = (width * owner.ns) / whole;
      box(x, owner.ns, 0, 26, owner.kind, owner, [owner.name, said(owner.ns)]);
      if (w > 44) draw_in(svg, "text", { x: x + 7, y: 17.5, class: `on ${kind_class(owner.kind)}` }, fitting(owner.name, w - 12));
      let inside = x;
      for (const [kind, label, field] of SPLIT) {
        if (owner[field]) box(inside, owner[field], 30, 10, kind, owner, [`${owner.name}, ${label}`, said(owner[field])]);
        inside += (width * owner[field]) / whole;
      }
      x += w;
    }
  });
  const list = put(at, "ul", { class: "key", "aria-label": "owners" });
  const buttons = owners.map((owner) => {
    const button = put(put(list, "li"), "button", { type: "button", "aria-pressed": "false", title: "Show only the rows of this owner" });
    swatch(button, owner.kind);
    put(button, "span", {}, owner.name);
    put(button, "span", { class: "value" }, said(owner.ns));
    button.addEventListener("click", () => choose(owner.name));
    return button;
  });
  const excerpts = new Map(ledger.rows.rows.map((row, i) => [row, ledger.excerpts[ledger.excerpt_of_row[i]]]));
  if (ledger.excerpts.length) put(at, "p", { class: "note" }, "A click on an owner shows only its rows; a click on a row shows its line.");
  const rows = put(at, "div");
  let chosen = null;
  // A second click on an owner shows all rows again.
  function choose(name) {
    chosen = chosen === name ? null : name;
    owners.forEach((owner, i) => buttons[i].setAttribute("aria-pressed", String(owner.name === chosen)));
    rows.replaceChildren();
    const kept = ledger.rows.rows.filter((row) => chosen === null || row[1] === chosen);
    table_of(rows, { ...ledger.rows, rows: kept }, { pick: (line, row) => opens(line, excerpts.get(row)) });
  }
  choose(null);
});

// A row that shows the source of its line below itself.
function opens(line, excerpt) {
  if (!excerpt) return;
  const cell = line.querySelector("td.code"), place = cell.textContent;
  const button = document.createElement("button");
  const below = document.createElement("tr");
  below.hidden = true;
  excerpt_of(put(below, "td", { colspan: line.cells.length }), excerpt, fresh("excerpt"));
  for (const [name, value] of [["type", "button"], ["class", "place code"], ["aria-expanded", "false"]]) button.setAttribute(name, value);
  button.textContent = place;
  cell.replaceChildren(button);
  line.classList.add("opens");
  line.addEventListener("click", () => {
    if (!below.isConnected) line.after(below);
    below.hidden = !below.hidden;
    button.setAttribute("aria-expanded", String(!below.hidden));
  });
}
