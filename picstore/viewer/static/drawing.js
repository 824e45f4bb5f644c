// What is drawn over an image, in its pixels: tiles, the bytes that they take, boxes, outlines, keypoints.

import { s } from "./dom.js";
import * as format from "./format.js";

const HUE = 137.5; // degrees between the colors of two labels

const color = (label) => `hsl(${(((label < 0 ? 0 : label) * HUE) % 360).toFixed(0)} 85% 55%)`;

/** Lines between restart tiles. */
export function tileLines(tiles, width, height) {
  const path = [];
  for (let k = 1; k < tiles.columns; k += 1) path.push(`M${k * tiles.width} 0V${height}`);
  for (let k = 1; k < tiles.rows; k += 1) path.push(`M0 ${k * tiles.height}H${width}`);
  return s("g", { class: "tiles" }, s("path", { class: "under", d: path.join("") }), s("path", { d: path.join("") }));
}

/** Tiles shaded by their bytes. */
export function tileBytes(tiles, width, height) {
  const most = Math.max(1, ...tiles.bytes);
  return s(
    "g",
    { class: "heat" },
    tiles.bytes.map((bytes, k) => {
      const [x, y] = [(k % tiles.columns) * tiles.width, Math.floor(k / tiles.columns) * tiles.height];
      const [w, h] = [Math.min(tiles.width, width - x), Math.min(tiles.height, height - y)];
      const share = bytes / most;
      const shade = `hsl(${(250 - 220 * share).toFixed(0)} 90% 50% / ${(0.15 + 0.5 * share).toFixed(2)})`;
      return s("rect", { x, y, width: w, height: h, fill: shade }, s("title", null, `tile ${k}: ${format.bytes(bytes)}`));
    }),
  );
}

/** Boxes, outlines and keypoints of an image's objects. */
export function objectShapes(objects, name, unit) {
  const labelOf = (k) => objects.labels?.[k] ?? -1;
  const shapes = [];
  (objects.polygons ?? []).forEach((outlines, k) => {
    for (const outline of outlines) {
      shapes.push(s("polygon", { points: outline.map((point) => point.join(",")).join(" "), class: "outline", style: { color: color(labelOf(k)) } }));
    }
  });
  (objects.boxes ?? []).forEach(([left, top, right, bottom], k) => {
    const text = labelOf(k) >= 0 ? name(labelOf(k)) : "";
    shapes.push(
      s(
        "g",
        { class: "object", style: { color: color(labelOf(k)) } },
        s("rect", { x: left, y: top, width: right - left, height: bottom - top }, s("title", null, text || `object ${k}`)),
        text && s("text", { x: left + 3 * unit, y: top + 13 * unit, "font-size": 12 * unit }, text),
      ),
    );
  });
  (objects.keypoints ?? []).forEach((points, k) => {
    for (const [x, y, visibility] of points) {
      if (visibility) shapes.push(s("circle", { cx: x + 0.5, cy: y + 0.5, r: 3.5 * unit, class: visibility === 1 ? "point hidden" : "point", style: { color: color(labelOf(k)) } }));
    }
  });
  return s("g", { class: "objects" }, shapes);
}

/** A stretch of bytes as a bar of parts, the chosen one marked. */
export function stretch(spans, label) {
  const first = spans[0]?.offset ?? 0;
  const end = Math.max(1, ...spans.map((span) => span.offset + span.size)) - first;
  const rect = (span) =>
    s("rect", { x: ((span.offset - first) / end) * 1000, width: Math.max(1.2, (span.size / end) * 1000 - 1), y: 0, height: 14, class: span.chosen ? "chosen" : "" }, s("title", null, `${span.name}: ${format.bytes(span.size)} at ${format.count(span.offset)}`));
  const ordered = [...spans.filter((span) => !span.chosen), ...spans.filter((span) => span.chosen)];
  return s("svg", { class: "stretch", viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img", "aria-label": label }, ordered.map(rect));
}
