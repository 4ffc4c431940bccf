// Findings: place, cost, what to change, and the source around the line.

const nothing_found = {
  diagnosis: "No rule found a problem.", comparison: "There are no new findings.", ranks: "No rank, host or stage was found to be late.",
};

section("findings", (data) => (data.about === "comparison" ? "New findings" : "Findings"), (data) => data.about !== "history", (at, data, page) => {
  if (!data.findings.length) put(at, "p", { class: "note" }, nothing_found[data.about]);
  const list = put(at, "ol", { class: "findings" });
  // The most expensive ones are unfolded.
  data.findings.forEach((found, i) => finding_of(list, found, i < 5, data, page));
});

function finding_of(list, found, unfolded, data, page) {
  const severity = ["critical", "warning", "info"].includes(found.severity) ? found.severity : "info";
  const item = put(list, "li", { class: `finding ${severity}` });
  const head = put(item, "h3");
  put(head, "span", { class: "severity" }, severity);
  put(head, "span", { class: "rule" }, found.rule);
  if (found.change && found.place) put(head, "span", { class: "note" }, "spent at");
  const spent_id = place_of(head, found.place, found.excerpt, unfolded, page);
  if (found.cost_ns !== null) {
    const cost = put(head, "span", { class: "cost" }, `${ms(found.cost_ns)}${data.per === "step" ? " per step" : ""}`);
    if (found.cost_share !== null) put(cost, "span", { class: "note" }, ` ${percent(found.cost_share)}`);
    const share = Math.max(0, Math.min(1, found.cost_share || 0));
    const bar = draw_in(item, "svg", { class: "share", width: "100%", height: 4, viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" });
    draw_in(bar, "rect", { width: 100, height: 4, class: "track" });
    draw_in(bar, "rect", { width: 100 * share, height: 4, class: "spent" });
  }
  put(item, "p", {}, found.message);
  if (found.why_unquantified) put(item, "p", { class: "note" }, `Not quantified: ${found.why_unquantified}.`);
  const advice = put(item, "p", { class: "advice" });
  put(advice, "strong", {}, found.change ? "Change " : "Change: ");
  const change_id = place_of(advice, found.change, found.change_excerpt, unfolded, page);
  advice.append(found.change ? `: ${found.advice}` : found.advice);
  if (found.diff && found.diff.length) diff_of(item, found);
  if (found.sure) put(item, "p", { class: "note" }, `${severity}: ${found.sure}`);
  if (found.saving) put(advice, "span", { class: "saving" }, ` Saves ${found.saving}${data.per === "step" ? " per step" : ""}.`);
  if (spent_id) excerpt_of(item, found.excerpt, spent_id).hidden = !unfolded;
  if (change_id) excerpt_of(item, found.change_excerpt, change_id).hidden = !unfolded;
  for (const message of found.explains) put(item, "p", { class: "note" }, `Explains: ${message}`);
  if (found.evidence.length) {
    const more = put(item, "details");
    put(more, "summary", {}, "Evidence");
    const list = put(more, "ul", { class: "evidence" });
    for (const one of found.evidence) put(list, "li", {}, `${one.name}: ${one.value} (${one.source})`);
  }
}

// A place as a button that folds its source; the id of the box for that source, null where there is none.
function place_of(parent, place, excerpt, unfolded, page) {
  if (!place) return null;
  if (!excerpt) {
    put(parent, "span", { class: "place code" }, place);
    return null;
  }
  const id = fresh("excerpt");
  const button = put(parent, "button", { type: "button", class: "place code", "aria-expanded": String(unfolded), "aria-controls": id }, place);
  button.addEventListener("click", () => {
    const box = page.root.querySelector(`#${id}`);
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
  });
  return id;
}

// The edit as a diff; the sign in front tells what the colour does.
function diff_of(parent, found) {
  const box = put(parent, "figure", { class: "diff", "aria-label": `change at ${found.diff_place}` });
  put(box, "figcaption", { class: "code" }, found.diff_place);
  const code = put(put(box, "pre", { tabindex: "0" }), "code");
  for (const line of found.diff) {
    put(code, "span", { class: line.startsWith("+") ? "line added" : "line removed" }, `${line}\n`);
  }
}

function excerpt_of(parent, excerpt, id) {
  if (!excerpt) return null;
  const box = put(parent, "figure", { class: "excerpt", id, "aria-label": `source, line ${excerpt.line}` });
  if (excerpt.lines.length) {
    const code = put(put(box, "pre", { tabindex: "0" }), "code");
    excerpt.lines.forEach((text, i) => {
      const line = excerpt.first_line + i;
      const row = put(code, "span", { class: line === excerpt.line ? "line marked" : "line" });
      put(row, "span", { class: "lineno" }, String(line));
      put(row, "span", { class: "text" }, text);
      row.append("\n");
    });
  }
  if (excerpt.note) put(box, "figcaption", { class: "note" }, excerpt.note);
  return box;
}
