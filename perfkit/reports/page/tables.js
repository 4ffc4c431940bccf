// A table that can be sorted, and the tables of the trace behind tabs.

const WRITE = {
  text: String, place: String, ns: ms, bytes, count, share: percent, number: count,
  flops: (value) => scaled(value, "FLOP"),
};
const IS_TEXT = { text: true, place: true };

function table_of(parent, table, options = {}) {
  const caption = put(parent, "p", { class: "caption", id: fresh("caption") });
  put(caption, "strong", {}, table.title);
  if (table.note) caption.append(` ${table.note}`);
  const frame = put(parent, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title });
  const element = put(frame, "table", { "data-table": table.id, "aria-labelledby": caption.id });
  const head = put(put(element, "thead"), "tr");
  const body = put(element, "tbody");
  const order = { column: -1, down: true };
  const buttons = table.columns.map((column, at) => {
    const cell = put(head, "th", { scope: "col", class: IS_TEXT[column.unit] ? "" : "number" });
    const button = put(cell, "button", { type: "button" }, column.label);
    button.addEventListener("click", () => {
      order.down = order.column === at ? !order.down : !IS_TEXT[column.unit];
      order.column = at;
      fill();
    });
    return cell;
  });
  const maximum = table.columns.map((column, at) =>
    column.unit === "ns" ? Math.max(1, ...table.rows.map((row) => row[at] || 0)) : 0);

  function sorted() {
    if (order.column < 0) return table.rows;
    const at = order.column;
    const text = IS_TEXT[table.columns[at].unit];
    const sign = order.down ? -1 : 1;
    return [...table.rows].sort((a, b) => {
      if (a[at] === null || b[at] === null) return (a[at] === null) - (b[at] === null); // unknown is last
      return sign * (text ? String(a[at]).localeCompare(String(b[at])) : a[at] - b[at]);
    });
  }

  function fill() {
    buttons.forEach((cell, at) => {
      if (at === order.column) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted().map((row) => {
      const line = document.createElement("tr");
      row.forEach((value, at) => {
        const unit = table.columns[at].unit;
        const written = value === null ? "–" : (WRITE[unit] || String)(value);
        const cell = put(line, at === 0 ? "th" : "td", {
          scope: at === 0 ? "row" : null, class: IS_TEXT[unit] ? (unit === "place" ? "code" : "words") : "number",
        });
        if (unit === "text" && at === 0) cell.title = written;
        put(cell, "span", {}, at === 0 && unit === "text" ? short(written) : written);
        // A thin line of the value's length.
        if (at > 0 && maximum[at] && value) underline(cell, "spark", value / maximum[at]);
      });
      if (options.pick) options.pick(line, row);
      return line;
    }));
  }
  fill();
  return frame;
}

// Tables that are sections of their own, by their ids.
const own_section = (table) => ["syncs", "ranks", "worth-opening"].includes(table.id) || table.id.startsWith("history-");

section("tables", "Tables", (data) => data.tables.some((table) => !own_section(table)), (at, data) => {
  const tables = data.tables.filter((table) => !own_section(table));
  const tabs = put(at, "div", { class: "tabs", role: "tablist", "aria-label": "Tables" });
  const panels = [];
  const open = (chosen, focus) => panels.forEach(([tab, panel], i) => {
    tab.setAttribute("aria-selected", String(i === chosen));
    tab.tabIndex = i === chosen ? 0 : -1;
    panel.hidden = i !== chosen;
    if (i === chosen && focus) tab.focus();
  });
  tables.forEach((table, i) => {
    const panel_id = fresh("panel"), tab_id = fresh("tab");
    const tab = put(tabs, "button", { type: "button", role: "tab", id: tab_id, "aria-controls": panel_id }, table.title);
    const panel = put(at, "div", { role: "tabpanel", id: panel_id, "aria-labelledby": tab_id });
    table_of(panel, table);
    panels.push([tab, panel]);
    tab.addEventListener("click", () => open(i, false));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: tables.length - 1 }[event.key];
      if (move !== undefined) { event.preventDefault(); open((move + tables.length) % tables.length, true); }
    });
  });
  open(0, false);
});
