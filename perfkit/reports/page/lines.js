// The times of each line of the user's files, next to its source.

section("lines", "Lines", (data) => data.lines !== null, (at, data) => {
  put(at, "p", { class: "note" }, data.lines.source);
  const columns = [["host_ns", "host", ms], ["total_ns", "with callees", ms], ["device_ns", "device", ms], ["ops", "ops", count], ["syncs", "syncs", count], ["allocated_bytes", "allocated", bytes]];
  data.lines.files.forEach((file, number) => {
    const box = put(at, "details", number < 2 ? { open: "" } : {});
    put(box, "summary", { class: "code" }, file.file);
    if (file.note) put(box, "p", { class: "note" }, file.note);
    const kept = columns.filter(([name]) => file.lines.some((line) => line[name]));
    const frame = put(box, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `lines of ${file.file}` });
    const table = put(frame, "table", { class: "listing" });
    const head = put(put(table, "thead"), "tr");
    for (const [name, label] of kept) put(head, "th", { scope: "col", class: name === "host_ns" ? "number" : "number more" }, label);
    put(head, "th", { scope: "col", class: "number" }, "line");
    put(head, "th", { scope: "col" }, "source");
    const body = put(table, "tbody");
    const maximum = Math.max(1, ...file.lines.map((line) => line.host_ns || 0));
    let last = 0;
    for (const line of file.lines) {
      const row = put(body, "tr", { class: `${line.host_ns === null ? "context" : ""}${last && line.line > last + 1 ? " jump" : ""}` });
      last = line.line;
      for (const [name, , write] of kept) {
        const cell = put(row, "td", { class: name === "host_ns" ? "number" : "number more" });
        if (line[name]) {
          put(cell, "span", {}, write(line[name]));
          if (name === "host_ns") underline(cell, "heat", line.host_ns / maximum);
        }
      }
      put(row, "th", { scope: "row", class: "lineno" }, String(line.line));
      const cell = put(row, "td", { class: "code" }, line.text !== null ? line.text : line.function);
      if (line.is_remainder) put(cell, "span", { class: "note" }, `  all other lines of ${line.function}`);
    }
  });
});
