// TensorBoard's tab "perfkit": picks runs below the log directory and draws them with perfkit.js.
// Everything comes from this TensorBoard, and is inserted as text. Only a click on "Open in Perfetto" opens another site,
// in its own window; this browser passes the trace to it through postMessage.

const PERFETTO = "https://ui.perfetto.dev";
// The most that Perfetto's page can read into a browser's memory.
const PERFETTO_MAX_BYTES = 2e9;
const PERFETTO_TIMEOUT_MS = 60_000;
const RELOAD_EVERY_MS = 15_000;
// More do not fit side by side.
const MAX_COMPARED = 4;
// The sections that are drawn if several runs are compared; a single run is drawn completely.
const COMPARED = ["verdict", "where", "ledger", "findings", "steps", "syncs", "missing"];

const url_of = (path, query = {}) => {
  const url = new URL(path, import.meta.url);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url;
};

// A name with invisible characters, and those that change the text's direction, shown as escapes.
const shown = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
  (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

function put(parent, tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  parent.append(made);
  return made;
}

async function fetch_json(path, query) {
  const response = await fetch(url_of(path, query));
  const content = await response.json();
  if (content.error) throw new Error(content.error);
  if (!response.ok) throw new Error(`TensorBoard answered ${response.status}`);
  return content;
}

// TensorBoard's dark mode is a class of its page, which may change while this one is open.
function follow_dark_mode() {
  let body;
  try {
    body = window.parent.document.body;
  } catch {
    return; // embedded in a page of another site: use the system's colours
  }
  const take = () => { document.documentElement.dataset.theme = body.classList.contains("dark-mode") ? "dark" : "light"; };
  new MutationObserver(take).observe(body, { attributes: true, attributeFilter: ["class"] });
  take();
}

function open_in_perfetto(run, trace, show_status) {
  // Before anything else, or the browser blocks it as a pop-up.
  const other = window.open(PERFETTO);
  if (!other) return show_status("The browser did not open a window: allow pop-ups for this page, or download the trace and open it at ui.perfetto.dev.");
  const name = trace.file.split("/").pop();
  show_status(`Passing ${shown(name)} to Perfetto …`);
  const bytes = fetch(url_of("trace", { run, trace: trace.file })).then((answer) => {
    if (!answer.ok) throw new Error(`TensorBoard answered ${answer.status}`);
    return answer.arrayBuffer();
  });
  const knock = setInterval(() => other.postMessage("PING", PERFETTO), 50);
  const stop = () => { clearInterval(knock); clearTimeout(late); window.removeEventListener("message", on_message); };
  const late = setTimeout(() => {
    stop();
    show_status("ui.perfetto.dev did not answer: is it reachable from here? Otherwise download the trace and open it elsewhere.");
  }, PERFETTO_TIMEOUT_MS);
  function on_message(event) {
    if (event.source !== other || event.origin !== PERFETTO || event.data !== "PONG") return;
    stop();
    bytes.then((buffer) => {
      other.postMessage({ perfetto: { buffer, title: `${name} (${run})`, fileName: name } }, PERFETTO);
      show_status(`${shown(name)} is open in Perfetto. This browser passed it on, without a network request.`);
    }).catch((error) => show_status(`The trace could not be read: ${error.message}`));
  }
  window.addEventListener("message", on_message);
  bytes.catch(stop);
  return undefined;
}

function traces_of(parent, run) {
  if (!run.traces.length) {
    put(parent, "p", { class: "note" }, "This run has no trace of a window.");
    return;
  }
  const box = put(parent, "details", { class: "traces" });
  put(box, "summary", {}, run.traces.length === 1 ? "1 trace" : `${run.traces.length} traces`);
  const list = put(box, "ul");
  const status = put(box, "p", { class: "status", role: "status" });
  for (const trace of run.traces) {
    const entry = put(list, "li");
    put(entry, "bdi", { class: "code" }, shown(trace.file));
    put(entry, "span", { class: "note" }, perfkit.bytes(trace.bytes));
    const open = put(entry, "button", { type: "button", title: "Open ui.perfetto.dev and pass the trace to it in this browser" }, "Open in Perfetto");
    if (trace.bytes > PERFETTO_MAX_BYTES) {
      open.disabled = true;
      open.title = "Too large for a browser: shorten it with `perfkit trim`";
    }
    open.addEventListener("click", () => open_in_perfetto(run.name, trace, (text) => { status.textContent = text; }));
    put(entry, "a", { href: url_of("trace", { run: run.name, trace: trace.file }), download: trace.file.split("/").pop() }, "Download");
  }
}

// The mean of a column over the steps that recording did not slow; rates are weighted by time, counts by steps.
function mean(steps, name, by_time) {
  const values = (steps && steps[name]) || [];
  const has_timed = steps && steps.state.some((state) => state === "");
  let sum = 0, weights = 0;
  values.forEach((value, i) => {
    if (value === null || (has_timed && steps.state[i] !== "")) return;
    const weight = steps.steps[i] * (by_time ? steps.wall_ns[i] : 1);
    sum += value * weight;
    weights += weight;
  });
  return weights ? sum / weights : null;
}
const maximum = (values) => (values || []).reduce((high, value) => (value !== null && (high === null || value > high) ? value : high), null);

// The numbers of several runs, one row each.
function comparison(parent, drawn) {
  const phases = [];
  for (const { data } of drawn) {
    for (const part of data.bars.length ? data.bars[0].parts : []) if (!phases.includes(part.name)) phases.push(part.name);
  }
  const first = drawn[0].data;
  const per = drawn.every(({ data }) => data.per === "step") ? "step" : "step or recording";
  const columns = [
    { label: "run", unit: "text" }, { label: per, unit: "ns" }, { label: "of the first", unit: "share" },
    ...phases.map((label) => ({ label, unit: "ns" })),
    { label: "samples/s", unit: "number" }, { label: "tokens/s", unit: "number" }, { label: "syncs/step", unit: "number" },
    { label: "memory", unit: "bytes" }, { label: "findings", unit: "count" },
  ];
  const rows = drawn.map(({ name, data }) => {
    const part = (label) => (data.bars.length ? data.bars[0].parts : []).find((one) => one.name === label);
    const steps = data.steps;
    return [
      name, data.wall_ns, data.wall_ns && first.wall_ns ? data.wall_ns / first.wall_ns : null,
      ...phases.map((label) => (part(label) ? part(label).ns : null)),
      mean(steps, "samples_per_s", true), mean(steps, "tokens_per_s", true), mean(steps, "syncs", false),
      maximum([steps ? maximum(steps.memory_bytes) : null, ...data.memory.map((one) => one.peak_bytes)]), data.findings.length,
    ];
  });
  const kept = columns.map((_, at) => at === 0 || rows.some((row) => row[at] !== null));
  const pick = (list) => list.filter((_, at) => kept[at]);
  const at = put(parent, "section", { class: "perfkit comparison" });
  perfkit.table(at, { id: "comparison", title: "Side by side", note: "", columns: pick(columns), rows: rows.map(pick) });
}

class Page {
  constructor(root) {
    this.listing = { logdir: "", runs: [], notes: [] };
    this.chosen = [];
    this.turn = 0;
    const side = put(root, "aside", { "aria-label": "Runs" });
    this.filter = put(side, "input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs" });
    this.filter.addEventListener("input", () => this.list());
    this.runs = put(side, "ul", { class: "runs" });
    this.notes = put(side, "div", { class: "notes", role: "status" });
    this.main = put(root, "main");
    // Links to a section stay on this page: TensorBoard's page has a <base> that they would lead to.
    this.main.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#"]');
      if (!link) return;
      event.preventDefault();
      const at = document.getElementById(link.getAttribute("href").slice(1));
      if (at) at.scrollIntoView({ behavior: "smooth" });
    });
  }

  async reload() {
    const before = JSON.stringify(this.listing);
    try {
      this.listing = await fetch_json("runs");
    } catch (error) {
      this.notes.replaceChildren();
      put(this.notes, "p", {}, `TensorBoard cannot be reached (${error.message}).`);
      return;
    }
    if (JSON.stringify(this.listing) === before) return;
    const known = new Set(this.listing.runs.map((run) => run.name));
    const removed = this.chosen.some((name) => !known.has(name));
    this.chosen = this.chosen.filter((name) => known.has(name));
    // A run shows more than the traces next to it, so it comes first.
    const rank = (run) => `${run.kind === "run" ? 1 : 0} ${run.changed}`;
    const newest = [...this.listing.runs].sort((a, b) => (rank(a) < rank(b) ? 1 : -1))[0];
    const begins = !this.chosen.length && newest;
    if (begins) this.chosen = [newest.name];
    this.list();
    if (begins || removed || !this.listing.runs.length) this.draw();
    else this.offer_update();
  }

  list() {
    const wanted = this.filter.value.toLowerCase();
    this.runs.replaceChildren();
    for (const run of this.listing.runs) {
      if (!run.name.toLowerCase().includes(wanted)) continue;
      const label = put(put(this.runs, "li"), "label");
      const box = put(label, "input", { type: "checkbox" });
      box.checked = this.chosen.includes(run.name);
      box.addEventListener("change", () => this.choose(run.name, box));
      put(label, "bdi", {}, shown(run.name === "." ? "(the log directory)" : run.name));
    }
    this.notes.replaceChildren();
    for (const note of this.listing.notes) put(this.notes, "p", {}, shown(note));
  }

  choose(name, box) {
    if (box.checked && this.chosen.length === MAX_COMPARED) {
      box.checked = false;
      this.notes.replaceChildren();
      put(this.notes, "p", {}, `${MAX_COMPARED} runs fit side by side: deselect one first.`);
      return;
    }
    this.chosen = box.checked ? [...this.chosen, name] : this.chosen.filter((other) => other !== name);
    this.draw();
  }

  offer_update() {
    for (const card of this.main.querySelectorAll(".card")) {
      const run = this.listing.runs.find((one) => one.name === card.dataset.run);
      if (!run || run.version === card.dataset.version || card.querySelector(".news")) continue;
      const again = document.createElement("button");
      again.type = "button";
      again.className = "news";
      again.textContent = "New data: show";
      again.addEventListener("click", () => this.draw());
      card.querySelector("header").append(again);
    }
  }

  async draw() {
    const turn = (this.turn += 1);
    this.main.replaceChildren();
    delete this.main.dataset.drawn;
    if (!this.chosen.length) return this.empty();
    const several = this.chosen.length > 1;
    const top = put(this.main, "div");
    const grid = put(this.main, "div", { class: several ? "cards several" : "cards" });
    const drawn = new Map();
    // Called for each run that is drawn, and again when another part of it is chosen.
    const on_drawn = (name, data) => {
      drawn.set(name, data);
      const complete = this.chosen.filter((one) => drawn.get(one)).map((one) => ({ name: shown(one), data: drawn.get(one) }));
      top.replaceChildren();
      if (complete.length > 1) comparison(top, complete);
    };
    for (const name of [...this.chosen]) {
      const run = this.listing.runs.find((one) => one.name === name);
      await this.card(grid, run, several, () => turn === this.turn, on_drawn);
      if (turn !== this.turn) return undefined;
    }
    this.main.dataset.drawn = this.chosen.length;
    return undefined;
  }

  // One run: what it is, its traces, and what is drawn of it. `on_drawn` gets its figures, or null if there are none.
  async card(grid, run, several, wanted, on_drawn) {
    const card = put(grid, "article", { class: "card perfkit" });
    card.dataset.run = run.name;
    card.dataset.version = run.version;
    const head = put(card, "header");
    put(put(head, "h1"), "bdi", {}, shown(run.name === "." ? this.listing.logdir : run.name));
    // A run is diagnosed as a whole; of a folder of traces, the last trace is.
    let trace = run.kind === "run" ? "" : run.traces[run.traces.length - 1].file;
    const root = document.createElement("div");
    const show = async () => {
      root.replaceChildren();
      root.classList.add("perfkit");
      put(root, "p", { class: "note", role: "status" }, "Reading …");
      const requested = trace;
      try {
        const data = await fetch_json("figures", trace ? { run: run.name, trace } : { run: run.name });
        if (!wanted() || requested !== trace) return;
        perfkit.draw(root, data, several ? { only: COMPARED, contents: false } : {});
        on_drawn(run.name, data);
      } catch (error) {
        if (!wanted() || requested !== trace) return;
        root.replaceChildren();
        put(root, "p", { class: "note", role: "alert" }, `This cannot be shown: ${shown(error.message)}`);
        on_drawn(run.name, null);
      }
    };
    if (run.traces.length + (run.kind === "run" ? 1 : 0) > 1) {
      const choice = put(head, "select", { "aria-label": "What is shown" });
      if (run.kind === "run") put(choice, "option", { value: "" }, "the whole run");
      for (const one of run.traces) put(choice, "option", { value: one.file }, shown(one.file));
      choice.value = trace;
      choice.addEventListener("change", () => { trace = choice.value; show(); });
    }
    traces_of(card, run);
    card.append(root);
    await show();
  }

  empty() {
    const box = put(this.main, "div", { class: "empty perfkit" });
    if (this.listing.runs.length) {
      put(box, "p", {}, "Choose a run, or several to compare them.");
      return;
    }
    put(box, "p", {}, "There is no run of perfkit and no trace below ", put(document.createDocumentFragment(), "bdi", { class: "code" }, shown(this.listing.logdir)), " yet. This page reloads by itself.");
    put(box, "p", {}, "To record a run here:");
    put(box, "pre", {}, `with perfkit.profile("${shown(this.listing.logdir)}/first") as prof:\n    for batch in prof.steps(loader):\n        train_step(batch)`);
    put(box, "p", {}, "To write traces of torch's profiler here:");
    put(box, "pre", {}, `from perfkit.integrations.tensorboard import trace_handler\n\ntorch.profiler.profile(on_trace_ready=trace_handler("${shown(this.listing.logdir)}"))`);
  }
}

export async function render() {
  for (const sheet of ["perfkit.css", "tab.css"]) put(document.head, "link", { rel: "stylesheet", href: url_of(sheet) });
  document.documentElement.lang = "en";
  document.title = "perfkit";
  follow_dark_mode();
  await import(url_of("perfkit.js"));
  const page = new Page(put(document.body, "div", { class: "perfkit tab" }));
  await page.reload();
  if (!page.listing.runs.length) page.draw();
  setInterval(() => { if (document.visibilityState === "visible") page.reload(); }, RELOAD_EVERY_MS);
}
