// A box on an image that is drawn, moved and resized by pointer.

import { s } from "./dom.js";

const CORNERS = [[0, 0], [1, 0], [1, 1], [0, 1]];

/** ``changed`` is called with [left, top, width, height] in whole pixels while the box is dragged. */
export function cropBox(svg, width, height, unit, changed) {
  const shade = s("path", { class: "shade", "fill-rule": "evenodd" });
  const read = s("rect", { class: "read" });
  const rect = s("rect", { class: "crop" });
  const corners = CORNERS.map(() => s("rect", { class: "corner", width: 10 * unit, height: 10 * unit }));
  const element = s("g", { class: "crop-box" }, shade, read, rect, corners);
  let box = [0, 0, width, height];
  let drag = null;

  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  function pointOf(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [clamp(point.x, 0, width), clamp(point.y, 0, height)];
  }

  function show() {
    const [left, top, w, h] = box;
    for (const [name, value] of Object.entries({ x: left, y: top, width: w, height: h })) rect.setAttribute(name, value);
    shade.setAttribute("d", `M0 0H${width}V${height}H0ZM${left} ${top}h${w}v${h}h${-w}Z`);
    corners.forEach((corner, k) => {
      corner.setAttribute("x", left + CORNERS[k][0] * w - 5 * unit);
      corner.setAttribute("y", top + CORNERS[k][1] * h - 5 * unit);
    });
  }

  /** The box between two points, at least a pixel. */
  function between([x0, y0], [x1, y1]) {
    const [left, top] = [Math.floor(Math.min(x0, x1)), Math.floor(Math.min(y0, y1))].map((value, k) => Math.min(value, [width, height][k] - 1));
    return [left, top, Math.max(1, Math.ceil(Math.max(x0, x1)) - left), Math.max(1, Math.ceil(Math.max(y0, y1)) - top)];
  }

  svg.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    const at = pointOf(event);
    const [left, top, w, h] = box;
    const corner = corners.indexOf(event.target);
    const inside = at[0] > left && at[0] < left + w && at[1] > top && at[1] < top + h && w * h < width * height;
    if (corner >= 0) {
      const opposite = CORNERS[(corner + 2) % 4];
      drag = { from: [left + opposite[0] * w, top + opposite[1] * h] };
    } else drag = inside ? { grip: [at[0] - left, at[1] - top] } : { from: at };
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const at = pointOf(event);
    if (drag.from) box = between(drag.from, at);
    else box = [Math.round(clamp(at[0] - drag.grip[0], 0, width - box[2])), Math.round(clamp(at[1] - drag.grip[1], 0, height - box[3])), box[2], box[3]];
    show();
    changed(box);
  });
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, () => (drag = null));

  return {
    element,
    /** Set the box, moved and cut off to lie within the image; returns it. */
    set(wanted) {
      const [w, h] = [clamp(Math.round(wanted[2]) || 1, 1, width), clamp(Math.round(wanted[3]) || 1, 1, height)];
      box = [clamp(Math.round(wanted[0]) || 0, 0, width - w), clamp(Math.round(wanted[1]) || 0, 0, height - h), w, h];
      show();
      return box;
    },
    /** Show which pixels are decoded for the box. */
    setRead([left, top, w, h]) {
      for (const [name, value] of Object.entries({ x: left, y: top, width: w, height: h })) read.setAttribute(name, value);
    },
  };
}
