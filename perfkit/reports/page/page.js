// The last sections, and the page: perfkit.draw(root, data) draws them all, in the order of the files.

const SCHEMA = 3;

const one_table = (id, title) => section(id, title, (data) => data.tables.some((table) => table.id === id), (at, data) =>
  table_of(at, data.tables.find((table) => table.id === id)));
one_table("worth-opening", "Recordings worth opening");
one_table("syncs", "Syncs");
one_table("ranks", "Ranks");

section("not-asked", "Rules that were not asked", (data) => data.not_asked !== null, (at, data) => {
  const more = put(at, "details");
  put(more, "summary", {}, `${data.not_asked.rows.length} rules need data that was not recorded`);
  table_of(more, data.not_asked);
});

section("missing", (data) => (data.about === "comparison" ? "Notes" : "What is missing"), (data) => data.missing.length > 0, (at, data) => {
  const list = put(at, "ul", { class: "missing" });
  for (const sentence of data.missing) put(list, "li", {}, sentence);
});

// Draws `data` (the content of a figures.json, parsed) into `root`, which is emptied.
// options.only: ids of the sections wanted, in the page's order; options.contents: false for no list of contents.
function draw(root, data, options = {}) {
  root.replaceChildren();
  root.classList.add("perfkit");
  if (!data || data.schema !== SCHEMA) {
    put(root, "p", { class: "note", role: "alert" }, `These figures have schema ${data && data.schema}, this page draws ${SCHEMA}: make them again with this perfkit.`);
    return;
  }
  const page = { root, tip: tooltip(root) };
  const wanted = sections.filter((one) => (!options.only || options.only.includes(one.id)) && one.has(data));
  const contents = options.contents === false ? null : put(put(root, "nav", { "aria-label": "Contents" }), "ul");
  for (const one of wanted) {
    const id = fresh(one.id);
    const at = put(root, "section", { id, "aria-labelledby": `${id}-title`, "data-section": one.id });
    const title = typeof one.title === "string" ? one.title : one.title(data);
    put(at, "h2", { id: `${id}-title` }, title);
    if (contents) put(put(contents, "li"), "a", { href: `#${id}` }, title);
    try {
      one.render(at, data, page);
    } catch (error) {
      // A defect of one figure must not prevent the others.
      put(at, "p", { class: "note", role: "alert" }, `This could not be drawn: ${error.message}`);
    }
  }
  root.onkeydown = (event) => { if (event.key === "Escape") page.tip.hide(); };
}

// A button that switches between the system's colours, light and dark.
function toggle(parent) {
  const button = put(parent, "button", { type: "button", class: "theme" });
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", dark() ? "Light colours" : "Dark colours"); };
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; label(); });
  label();
}

globalThis.perfkit = Object.freeze({ SCHEMA, draw, toggle, table: table_of, ms, bytes });

const block = document.getElementById("perfkit-data");
if (block) {
  const bar = document.getElementById("perfkit-bar");
  if (bar) toggle(bar);
  draw(document.getElementById("perfkit-root"), JSON.parse(block.textContent));
  document.documentElement.dataset.drawn = "yes";
}
