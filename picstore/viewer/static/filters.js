// The panel of filters: text, ids, classes, ranges of numbers under their histograms, and a condition in SQL.

import { className, latest, superseded } from "./api.js";
import { delayed, field, h } from "./dom.js";
import * as format from "./format.js";
import { rangeHistogram } from "./histogram.js";

const SHOWN_CLASSES = 200;
const UNITS = { bytes: format.bytes };

/** A panel; ``changed`` is called with a filter, of which empty members are left out. */
export function filterPanel(dataset, changed) {
  const fetchHistograms = latest();
  let filter = {};
  let listed = null; // the histogram of labels
  const charts = new Map();

  const text = h("input", { type: "search", placeholder: "class, caption or extra", autocomplete: "off", spellcheck: "false" });
  const ids = h("input", { type: "text", placeholder: "7, 100-200", autocomplete: "off", spellcheck: "false" });
  const where = h("textarea", { rows: 2, spellcheck: "false", placeholder: "label = 3 AND width > 512", disabled: !dataset.sql });
  const clear = h("button", { type: "button", class: "quiet", onclick: () => changed({}) }, "Clear all");
  const classSearch = h("input", { type: "search", placeholder: "find a class", "aria-label": "Find a class" });
  const classes = h("div", { class: "values", role: "group", "aria-label": "Classes" });
  const sections = h("div", { class: "sections" });
  const note = h("p", { class: "note" });

  const element = h(
    "form",
    { class: "panel", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    h("div", { class: "panel-head" }, h("h2", null, "Filters"), clear),
    field("Text", text),
    field("Ids", ids),
    sections,
    field("Condition (SQL)", where),
    note,
  );
  const names = new Set(["id", "label", "sampling", ...dataset.numbers, ...dataset.columns]);
  const hint = dataset.sql
    ? `Columns: ${[...names].join(", ")}. Ctrl-Enter applies.`
    : "Conditions need pip install 'picstore[sql]'.";
  note.textContent = hint;

  /** Set a member, or leave it out. */
  function set(name, value) {
    const { [name]: _, ...others } = filter;
    const empty = value === "" || value === null || (Array.isArray(value) && !value.length);
    changed(empty ? others : { ...others, [name]: value });
  }

  function setRange(name, low, high) {
    const { [name]: _, ...others } = filter.ranges ?? {};
    const ranges = low === null && high === null ? others : { ...others, [name]: [low, high] };
    set("ranges", Object.keys(ranges).length ? ranges : null);
  }

  function toggle(member, value, on) {
    const others = (filter[member] ?? []).filter((each) => each !== value);
    set(member, on ? [...others, value] : others);
  }

  const typed = delayed(250, () => set("text", text.value.trim()));
  text.addEventListener("input", typed);
  ids.addEventListener("change", () => set("ids", ids.value.trim()));
  where.addEventListener("change", () => set("where", where.value.trim()));
  where.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) set("where", where.value.trim());
  });
  classSearch.addEventListener("input", () => showClasses());

  function choice(member, value, name, counted, of, most) {
    const box = h("input", { type: "checkbox", onchange: (event) => toggle(member, value, event.target.checked) });
    box.checked = (filter[member] ?? []).includes(value);
    const row = h("label", { class: "value" }, box, h("span", { class: "name", title: name }, name));
    row.append(h("span", { class: "count", title: of === null ? "" : `of ${format.count(of)}` }, counted === null ? "" : format.count(counted)));
    row.style.setProperty("--share", most ? (counted ?? 0) / most : 0);
    return row;
  }

  function showClasses() {
    if (!listed) return;
    const wanted = classSearch.value.trim().toLowerCase();
    const counts = new Map(listed.values.map((value, k) => [value, k]));
    const chosen = new Set(filter.labels ?? []);
    const others = (wanted ? dataset.classes.map((_, label) => label) : [...chosen]).filter((label) => !counts.has(label));
    const found = [...listed.values, ...others]
      .filter((label) => chosen.has(label) || className(dataset, label).toLowerCase().includes(wanted))
      .sort((a, b) => chosen.has(b) - chosen.has(a) || (listed.counts[counts.get(b)] ?? 0) - (listed.counts[counts.get(a)] ?? 0))
      .slice(0, SHOWN_CLASSES);
    const most = Math.max(1, ...listed.counts);
    const rows = found.map((label) => {
      const k = counts.get(label);
      return choice("labels", label, className(dataset, label), k === undefined ? null : listed.counts[k], k === undefined ? null : listed.totals[k], most);
    });
    const left = wanted ? 0 : listed.others;
    classes.replaceChildren(...rows, left ? h("p", { class: "note" }, `and ${format.count(left)} more: find them by name`) : "");
  }

  function section(title, ...children) {
    return h("details", { open: true }, h("summary", null, title), children);
  }

  function makeSections(histograms) {
    for (const each of histograms) {
      if (each.name === "label") {
        if (each.values.length > 1) sections.append(section("Class", each.values.length > 12 ? classSearch : null, classes));
      } else if (each.values.length) {
        const values = h("div", { class: "values", role: "group", "aria-label": each.name });
        charts.set(each.name, { values });
        sections.append(section("Chroma sampling", values));
      } else if (each.edges.length) {
        const chart = rangeHistogram(each, UNITS[each.name] ?? format.number, (low, high) => setRange(each.name, low, high));
        charts.set(each.name, chart);
        sections.append(section(each.name[0].toUpperCase() + each.name.slice(1), chart.element));
      }
    }
    const outcome = Object.entries(dataset.outcome).filter(([name, value]) => !name.endsWith("bytes") && value);
    if (outcome.length) {
      const rows = outcome.map(([name, value]) => [h("dt", null, name), h("dd", null, format.count(value))]);
      sections.append(section("Conversion", h("dl", { class: "facts-list" }, rows)));
    }
  }

  async function loadHistograms() {
    try {
      const histograms = await fetchHistograms("api/histograms", { filter: panelText() });
      note.textContent = hint;
      if (!charts.size && !listed) makeSections(histograms);
      for (const each of histograms) {
        if (each.name === "label") {
          listed = each;
          showClasses();
        } else if (each.values.length) {
          const most = Math.max(1, ...each.counts);
          const rows = each.values.map((value, k) => choice("samplings", value, value || "other", each.counts[k], each.totals[k], most));
          charts.get(each.name).values.replaceChildren(...rows);
        } else {
          charts.get(each.name)?.update(each, filter.ranges?.[each.name] ?? [null, null]);
        }
      }
    } catch (error) {
      if (!superseded(error)) note.textContent = error.message;
    }
  }

  function panelText() {
    return Object.keys(filter).length ? JSON.stringify(filter) : "";
  }

  return {
    element,
    text: panelText,
    focus: () => text.focus(),
    show(given) {
      filter = given;
      if (document.activeElement !== text) text.value = filter.text ?? "";
      ids.value = filter.ids ?? "";
      where.value = filter.where ?? "";
      clear.disabled = !Object.keys(filter).length;
      loadHistograms();
    },
  };
}
