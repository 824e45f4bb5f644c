// A histogram of numbers over which a range is dragged; two inputs beneath do the same for keyboards.

import { h, s } from "./dom.js";
import * as format from "./format.js";

const HEIGHT = 44;

/** ``chosen`` is called with the least and greatest value, null for no limit. */
export function rangeHistogram(histogram, written, chosen) {
  const { edges, name } = histogram;
  const bins = histogram.counts.length;
  const whole = edges.every(Number.isInteger);
  const background = s("g", { class: "totals" });
  const bars = s("g", { class: "counts" });
  const span = s("rect", { class: "span", y: 0, height: HEIGHT });
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${bins} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, background, bars, span);
  const readout = h("p", { class: "readout" });
  const low = limit("least", edges[0]);
  const high = limit("greatest", edges[bins]);
  const element = h("div", { class: "histogram" }, svg, readout, h("div", { class: "limits" }, low, h("span", null, "to"), high));
  let shown = histogram;
  let drag = null;

  function limit(which, value) {
    const input = h("input", { type: "number", step: whole ? 1 : "any", placeholder: format.number(value).replaceAll(",", ""), "aria-label": `${name}, ${which}` });
    input.addEventListener("change", () => chosen(valueOf(low), valueOf(high)));
    return input;
  }

  const valueOf = (input) => (input.value === "" ? null : Number(input.value));
  const binAt = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(bins - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * bins)));
  };
  // The greatest value of a bin; the last one holds its upper edge.
  const top = (bin) => (whole && bin < bins - 1 ? edges[bin + 1] - 1 : edges[bin + 1]);

  function showRange(first, last) {
    span.setAttribute("x", first);
    span.setAttribute("width", Math.max(0, last - first));
  }

  function describe(bin) {
    const counts = shown.counts[bin] === shown.totals[bin] ? format.count(shown.counts[bin]) : `${format.count(shown.counts[bin])} of ${format.count(shown.totals[bin])}`;
    readout.textContent = `${written(edges[bin])} – ${written(top(bin))}: ${counts}`;
  }

  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    drag = binAt(event);
    showRange(drag, drag + 1);
  });
  svg.addEventListener("pointermove", (event) => {
    const bin = binAt(event);
    describe(bin);
    if (drag !== null) showRange(Math.min(drag, bin), Math.max(drag, bin) + 1);
  });
  svg.addEventListener("pointerup", (event) => {
    const [first, last] = [drag, binAt(event)].sort((a, b) => a - b);
    drag = null;
    chosen(first === 0 ? null : edges[first], last === bins - 1 ? null : top(last));
  });
  svg.addEventListener("pointerleave", () => settle());

  /** Say what the whole chart shows. */
  function settle() {
    readout.textContent = `${written(edges[0])} – ${written(edges[bins])}`;
  }

  function draw(group, counts) {
    const most = Math.max(1, ...counts);
    const rects = counts.map((value, k) => {
      const height = value ? Math.max(1.5, (value / most) * HEIGHT) : 0;
      return s("rect", { x: k + 0.06, width: 0.88, y: HEIGHT - height, height });
    });
    group.replaceChildren(...rects);
  }

  function update(changed, range) {
    shown = changed;
    draw(background, changed.totals);
    draw(bars, changed.counts);
    low.value = range[0] ?? "";
    high.value = range[1] ?? "";
    const at = (value) => {
      const bin = edges.findIndex((edge) => value < edge);
      return bin < 0 ? bins : Math.max(0, bin - 1);
    };
    if (range[0] === null && range[1] === null) showRange(0, 0);
    else showRange(range[0] === null ? 0 : at(range[0]), range[1] === null ? bins : Math.min(bins, at(range[1]) + 1));
    const peak = changed.counts.indexOf(Math.max(...changed.counts));
    svg.setAttribute("aria-label", `${name}: ${written(edges[0])} to ${written(edges[bins])}, most at ${written(edges[peak])}`);
    settle();
  }

  return { element, update };
}
