// Two datasets beside each other: sizes, qualities, classes, and images that both have.

import { address, get, pictureOf } from "./api.js";
import { background } from "./background.js";
import { field, h, s } from "./dom.js";
import * as format from "./format.js";

const HEIGHT = 60;
const SHOWN_CLASSES = 100;
const UNITS = { bytes: format.bytes };

/** The last part of a path or URL. */
export function baseName(path) {
  return path.replace(/\/+$/, "").split("/").pop();
}

/** Names of both datasets, with as many parts of their paths as tell them apart. */
function namesOf(dataset) {
  const parts = [dataset.path, dataset.beside].map((path) => path.replace(/\/+$/, "").split("/"));
  const most = Math.max(...parts.map((each) => each.length));
  for (let count = 1; count <= most; count += 1) {
    const names = parts.map((each) => each.slice(-count).join("/"));
    if (names[0] !== names[1]) return names;
  }
  return [`${baseName(dataset.path)} (first)`, `${baseName(dataset.beside)} (second)`];
}

export function compare(main, dataset) {
  if (!dataset.beside) {
    main.replaceChildren(h("p", { class: "empty" }, "One dataset is shown. picstore view DATASET OTHER compares two."));
    return {};
  }
  const names = namesOf(dataset);
  const panel = h("div", { class: "panel" });
  const charts = h("div", { class: "charts" }, h("p", { class: "note" }, "Reading the indexes …"));
  const classes = h("div", { class: "classes" }, h("p", { class: "note" }, "Counting …"));
  const pairs = h("div", { class: "pairs" }, h("p", { class: "note" }, "Start the search for images that both have."));
  const legend = h("p", { class: "legend" }, names.map((name, side) => h("span", { title: side ? dataset.beside : dataset.path }, h("span", { class: `side-mark of-${side}` }), ` ${name}`)));
  const results = h("section", { class: "results compare-results", "aria-label": "Comparison" }, legend, h("h2", null, "Sizes and qualities"), charts, h("h2", null, "Classes"), classes, h("h2", null, "Images in both"), pairs);
  main.replaceChildren(panel, results);

  const distance = h("input", { type: "number", min: 0, max: 11, value: 6 });
  const search = background({
    paths: { start: "api/compare/start", cancel: "api/compare/cancel", report: "api/compare/search" },
    text: {
      begin: "Look for shared images",
      progress: "Progress of the search",
      unit: "images",
      idle: "Not looked for yet",
      running: "Looking …",
      done: (report) => `${format.counted(report.shared, "image")} of ${names[0]} also in ${names[1]}`,
    },
    parameters: () => ({ distance: distance.value }),
    lines(report) {
      if (report.state !== "done") return [];
      const differing = report.differing > 0 && h("p", null, `${format.count(report.differing)} of them in another class`);
      const repeats = [report.repeated, report.other_repeated].map((count, side) => h("p", { class: "note" }, `${format.counted(count, "near-duplicate")} within ${names[side]}`));
      return [differing, ...repeats];
    },
    changed(report) {
      if (report.state === "done") showPairs(report);
    },
  });
  panel.append(
    h("h2", null, "Images in both"),
    h("p", { class: "note" }, "Reads every image of both, and compares perceptual hashes. Copies of another size or quality are found, mirrored ones are not."),
    field("Bits of 64 that may differ", distance),
    ...search.controls,
  );

  function showPairs(report) {
    if (!report.pairs.length) return pairs.replaceChildren(h("p", { class: "note" }, `No image of ${names[0]} is in ${names[1]}.`));
    const cells = report.pairs.map((pair) => {
      const differs = pair.name !== pair.other_name;
      const sides = [[pair.position, pair.name, ""], [pair.other_position, pair.other_name, "other/"]].map(([position, name, root], side) =>
        h("a", { class: "tile", href: `${root}${address("#image", { position })}`, "aria-label": `${name || "no label"}, in ${names[side]}` },
          h("span", { class: "frame" }, h("img", { src: pictureOf(position, `${root}thumbnail`, { size: 200 }), alt: "", loading: "lazy" })),
          h("span", { class: "name" }, h("span", { class: `side-mark of-${side}` }), ` ${name || "no label"}`)));
      return h("div", { role: "listitem", class: `pair-cell${differs ? " differs" : ""}` }, sides, h("p", { class: "note" }, `${format.counted(pair.distance, "bit")} apart${differs ? ", different classes" : ""}`));
    });
    const more = report.shared > report.pairs.length ? [h("p", { class: "note" }, `the first ${format.count(report.pairs.length)} of ${format.count(report.shared)}`)] : [];
    pairs.replaceChildren(h("div", { class: "grid pair-grid", role: "list", "aria-label": "Images in both" }, cells), ...more);
  }

  function showClasses(told) {
    const facts = [`${format.counted(told.both, "class", "classes")} in both`, `${format.count(told.only)} in ${names[0]} alone`, `${format.count(told.other_only)} in ${names[1]} alone`];
    const renumbered = told.renumbered ? h("p", { class: "warning" }, `${format.counted(told.renumbered, "shared class has", "shared classes have")} another label in each: DataMux(…, classes="join") brings them together.`) : null;
    const totals = [0, 1].map((side) => told.rows.reduce((sum, row) => sum + (side ? row.other_images : row.images), 0) || 1);
    const most = Math.max(...told.rows.map((row) => Math.max(row.images / totals[0], row.other_images / totals[1])), 1e-9);
    const body = h("tbody");
    const rows = told.rows.map((row) => h("tr", null,
      h("td", { class: "name" }, row.name),
      [row.label, row.other_label].map((label) => h("td", { class: "number" }, label ?? "–")),
      h("td", { class: "bars" }, [row.images / totals[0], row.other_images / totals[1]].map((share, side) => h("span", { class: `bar of-${side}`, style: { width: `${(100 * share) / most}%` } }))),
      [row.images, row.other_images].map((count) => h("td", { class: "number" }, format.count(count)))));
    body.append(...rows.slice(0, SHOWN_CLASSES));
    const all = rows.length > SHOWN_CLASSES && h("button", { type: "button", onclick: () => { body.append(...rows.slice(SHOWN_CLASSES)); all.remove(); } }, `Show ${format.count(rows.length)}`);
    const heads = [["Class", ""], [`Label in ${names[0]}`, "number"], [`in ${names[1]}`, "number"], ["Share", ""], [`Images in ${names[0]}`, "number"], [`in ${names[1]}`, "number"]];
    const head = h("thead", null, h("tr", null, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text))));
    const left = told.left ? h("p", { class: "note" }, `and ${format.count(told.left)} more classes`) : null;
    classes.replaceChildren(...[h("p", null, facts.join(" · ")), renumbered, h("p", { class: "note" }, "The most different shares come first."), h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Classes" }, h("table", null, head, body)), all, left].filter(Boolean));
  }

  async function load(path, element, show) {
    try {
      show(await get(path));
    } catch (error) {
      element.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  load("api/compare/sizes", charts, (sizes) => {
    charts.replaceChildren(...sizes.map((each) => chart(each, names)));
    const quality = h("figure", null, h("figcaption", null, "Quality"), h("p", { class: "note" }, "Reading quantization tables …"));
    charts.append(quality);
    load("api/compare/quality", quality, (told) => quality.replaceWith(chart(told, names)));
  });
  load("api/compare/classes", classes, showClasses);
  search.load();
  return { close: search.close };
}

/** A distribution of both datasets as shares of each: bars of the first, a line of the second. */
function chart(told, names) {
  const sides = [told.counts, told.other_counts];
  const shares = sides.map((counts) => {
    const total = counts.reduce((sum, each) => sum + each, 0) || 1;
    return counts.map((each) => each / total);
  });
  const bins = told.counts.length;
  const most = Math.max(...shares.flat(), 1e-9);
  const y = (share) => HEIGHT - (share / most) * (HEIGHT - 2);
  const written = UNITS[told.name] ?? format.number;
  const bars = shares[0].map((share, k) => s("rect", { x: k + 0.05, width: 0.9, y: y(share), height: HEIGHT - y(share) }));
  const outline = shares[1].map((share, k) => `${k ? "L" : "M"}${k} ${y(share)}H${k + 1}`).join("");
  const title = told.name[0].toUpperCase() + told.name.slice(1);
  const say = (k) => {
    const value = told.values.length ? told.values[k] : `${written(told.edges[k])} – ${written(told.edges[k + 1])}`;
    return `${value}: ${names.map((name, side) => `${format.percent(shares[side][k])} of ${name}`).join(", ")}`;
  };
  const rest = told.values.length
    ? told.values.join(" · ")
    : bins ? `${written(told.edges[0])} – ${written(told.edges[bins])}` : "no image";
  const readout = h("p", { class: "readout" }, rest);
  const medians = told.median === null && told.other_median === null ? null : h("p", { class: "medians" }, "median ", [told.median, told.other_median].map((value, side) => h("span", null, h("span", { class: `side-mark of-${side}` }), ` ${value === null ? "–" : written(value)} `)));
  const label = `${title}: ${[told.median, told.other_median].map((value, side) => `${names[side]} ${value === null ? rest : `median ${written(value)}`}`).join(", ")}`;
  const svg = s("svg", { class: "pair-chart", viewBox: `0 0 ${Math.max(1, bins)} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, s("g", { class: "of-0" }, bars), s("path", { class: "of-1", d: outline || "M0 0" }));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    if (bins) readout.textContent = say(Math.min(bins - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * bins))));
  });
  svg.addEventListener("pointerleave", () => {
    readout.textContent = rest;
  });
  return h("figure", null, h("figcaption", null, title, medians), svg, readout);
}
