// Health: a map of files and containers with what verify finds, and the ledger of the conversion.

import { address, get, pictureOf, whyNotShown } from "./api.js";
import { background } from "./background.js";
import { h } from "./dom.js";
import * as format from "./format.js";

export function health(main, dataset) {
  const panel = h("div", { class: "panel" });
  const map = h("div", { class: "map" });
  const file = h("div", { class: "file" });
  const findings = h("div", { class: "findings" });
  const ledger = h("div", { class: "ledger" }, h("p", { class: "note" }, "Reading the ledger …"));
  const results = h("section", { class: "results health-results", "aria-label": "Health" }, h("h2", null, "Files"), map, file, findings, h("h2", null, "Ledger of the conversion"), ledger);
  main.replaceChildren(panel, results);

  let files = [];
  let report = { state: "idle", findings: [], remarks: [] };
  let hasInputs = false;

  const decode = h("input", { type: "checkbox" });
  const lost = () => report.findings.reduce((sum, each) => sum + each.records_lost, 0);
  const verification = background({
    paths: { start: "api/health/verify", cancel: "api/health/cancel", report: "api/health/verification" },
    text: {
      begin: "Verify",
      progress: "Progress of the verification",
      unit: "records",
      idle: "Not verified yet",
      running: "Verifying …",
      done: ({ findings: found }) => (found.length ? format.counted(found.length, "problem") : "No damage"),
    },
    parameters: () => ({ decode: decode.checked }),
    lines(told) {
      report = told;
      const damage = told.findings.length > 0 && h("p", null, `${format.counted(lost(), "record")} lost`);
      return [damage, ...told.remarks.map((each) => h("p", { class: "note" }, each))];
    },
    changed() {
      showMap();
      showFindings();
    },
  });
  panel.append(
    h("h2", null, "Verification"),
    h("p", { class: "note" }, "Reads every byte, compares all checksums, and names what is damaged."),
    h("label", { class: "inline" }, decode, h("span", null, "decode every image too")),
    ...verification.controls,
  );

  function showMap() {
    const damaged = new Set(report.findings.map((each) => each.file));
    const streams = Map.groupBy ? Map.groupBy(files, (each) => each.stream) : grouped(files);
    const status = (each) => (damaged.has(each.name) ? "damaged" : report.state === "done" ? "sound" : "unknown");
    const rows = [...streams].map(([stream, mine]) =>
      h("div", { class: "stream" }, h("span", { class: "note" }, String(stream).padStart(4, "0")), h("div", { class: "cells" }, mine.map((each) => {
        const text = `${each.name}: ${status(each)}, ${format.counted(each.records, "record")}, ${format.counted(each.containers, "container")}, ${format.bytes(each.bytes)}`;
        return h("button", { type: "button", class: `file-cell ${status(each)}`, title: text, "aria-label": text, onclick: () => showFile(each) });
      }))));
    const key = h("p", { class: "note key" }, ["sound", "damaged", "unknown"].map((each) => [h("span", { class: `file-cell ${each}` }), ` ${each === "unknown" ? "not verified" : each} `]));
    map.replaceChildren(key, ...rows);
  }

  function grouped(list) {
    const groups = new Map();
    for (const each of list) groups.set(each.stream, [...(groups.get(each.stream) ?? []), each]);
    return groups;
  }

  async function showFile(chosen) {
    const containers = await get("api/health/file", { stream: chosen.stream, file: chosen.file });
    const mine = report.findings.filter((each) => each.file === chosen.name);
    const broken = (each) => mine.some((finding) => finding.offset >= each.offset && finding.offset < each.offset + each.size);
    const cells = containers.map((each) => {
      const status = broken(each) ? "damaged" : report.state === "done" ? "sound" : "unknown";
      const text = `container ${each.number}: ${status}, ${format.counted(each.records, "record")}, ${format.bytes(each.size)} at ${format.count(each.offset)}`;
      return h("a", { class: `container-cell ${status}`, style: { flexGrow: String(each.size) }, title: text, "aria-label": text, href: address("#browse", { start: each.position }) });
    });
    file.replaceChildren(h("h3", null, `${chosen.name} · ${format.bytes(chosen.bytes)}`), h("div", { class: "containers" }, cells));
  }

  function showFindings() {
    if (!report.findings.length) return findings.replaceChildren();
    const rows = report.findings.slice(0, 500).map((each) =>
      h("tr", null, h("td", null, each.file), h("td", { class: "number" }, format.count(each.offset)), h("td", null, each.problem), h("td", { class: "number" }, format.count(each.records_lost))));
    findings.replaceChildren(h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, ["File", "Offset", "Problem", "Records lost"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", null, rows))));
  }

  function showLedger({ statuses, reasons }) {
    if (!reasons.length) return ledger.replaceChildren(h("p", { class: "note" }, "There is none: the dataset was not made by convert, or of several datasets."));
    const all = Object.values(statuses).reduce((sum, each) => sum + each, 0);
    const bar = h("div", { class: "statuses", role: "img", "aria-label": Object.entries(statuses).map(([name, value]) => `${name} ${value}`).join(", ") }, Object.entries(statuses).map(([name, value]) => h("span", { class: name, style: { flexGrow: String(value) }, title: `${name}: ${format.count(value)}` })));
    const legend = h("p", { class: "note" }, Object.entries(statuses).map(([name, value]) => `${name} ${format.count(value)} (${format.percent(value / all)})`).join(" · "));
    const examples = h("div", { class: "examples" });
    const rows = reasons.map((each) => {
      const text = `${each.status}${each.reason ? `: ${each.reason}` : ""}`;
      const button = h("button", { type: "button", class: "reason", "aria-pressed": "false", onclick: () => choose(each, button) }, h("span", { class: `dot ${each.status}` }), h("span", { class: "name" }, text), h("span", { class: "note" }, each.bytes ? `${format.bytes(each.source_bytes)} → ${format.bytes(each.bytes)}` : ""), h("b", null, format.count(each.inputs)));
      return button;
    });

    function choose(reason, button) {
      rows.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
      showExamples(examples, reason);
    }

    ledger.replaceChildren(bar, legend, h("div", { class: "reasons" }, rows), examples);
    const failed = reasons.findIndex((each) => each.status === "failed");
    if (failed >= 0) choose(reasons[failed], rows[failed]);
  }

  function showExamples(element, { reason, inputs, examples }) {
    const cells = examples.map((line) => {
      const shown = line.position >= 0 || (line.status === "failed" && hasInputs);
      const source = line.position >= 0 ? pictureOf(line.position, "thumbnail", { size: 256 }) : address("input", { name: line.input });
      const picture = shown && h("img", { src: source, alt: "", loading: "lazy" });
      if (picture) picture.addEventListener("error", async () => picture.replaceWith(h("span", { class: "why" }, `not shown: ${await whyNotShown(source)}`)));
      const inner = [h("span", { class: "frame" }, picture || "no picture"), h("span", { class: "name", title: line.input }, line.input), h("span", { class: "facts" }, h("span", null, `id ${line.id}`), h("span", null, line.of === null ? "" : `same as ${line.of}`))];
      const href = line.position >= 0 ? address("#image", { position: line.position }) : null;
      return h("div", { role: "listitem", class: "cell" }, href ? h("a", { class: "tile", href }, inner) : h("div", { class: "tile" }, inner));
    });
    const more = inputs > examples.length ? h("p", { class: "note" }, `the first ${examples.length} of ${format.count(inputs)}`) : "";
    const hint = !hasInputs && examples[0]?.status === "failed" ? h("p", { class: "note" }, "With --inputs DIR, the folder that was converted, their pictures are shown.") : "";
    element.replaceChildren(h("h3", null, reason || "without a reason"), hint, h("div", { class: "grid", role: "list", "aria-label": `Inputs: ${reason}` }, cells), more);
  }

  async function load() {
    try {
      const told = await get("api/health");
      ({ files } = told);
      hasInputs = told.inputs;
      showMap();
      if (told.left) map.append(h("p", { class: "note" }, `and ${format.count(told.left)} more files`));
      await verification.load();
      showLedger(await get("api/health/ledger"));
    } catch (error) {
      ledger.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  load();
  return { close: verification.close };
}
