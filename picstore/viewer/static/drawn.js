// A grid of images that transforms made, with their parameters; pointing at one shows where it was cut out.

import { address, className } from "./api.js";
import { h, s } from "./dom.js";

/** ``sourceOf(image, k)`` is the address of its picture, ``pointed(image)`` is called with null when none is. */
export function drawnGrid(dataset, images, sourceOf, { title, pointed = () => {}, link = null }) {
  const sizes = new Set(images.map((image) => `${image.width} × ${image.height}`));
  const cells = images.map((image, k) => {
    const parameters = sizes.size > 1 ? [...image.parameters, `to ${image.width} × ${image.height}`] : image.parameters;
    const picture = h("img", { src: sourceOf(image, k), alt: "", loading: "lazy", width: image.width, height: image.height });
    const head = title(image, k);
    const inner = [
      h("span", { class: "frame" }, picture),
      h("span", { class: "name" }, head),
      h("span", { class: "parameters" }, parameters.map((text) => h("span", null, text))),
      image.note && h("span", { class: "parameters" }, h("span", { class: "strong" }, image.note)),
    ];
    const label = [head, className(dataset, image.label), ...parameters].join(", ");
    const href = link?.(image);
    const tile = href ? h("a", { class: "tile", href, "aria-label": label }, inner) : h("div", { class: "tile", tabindex: 0, role: "group", "aria-label": label }, inner);
    for (const name of ["pointerenter", "focus"]) tile.addEventListener(name, () => pointed(image));
    for (const name of ["pointerleave", "blur"]) tile.addEventListener(name, () => pointed(null));
    return h("div", { role: "listitem", class: "cell" }, tile);
  });
  return h("div", { class: "grid drawn", role: "list", "aria-label": "Drawn images" }, cells);
}

/** A record's image with the outlines of what was cut out of it; ``mark(image)`` sets one of them off. */
export function framedSource(dataset, position, images) {
  const [width, height] = images[0].source_size;
  const unit = Math.max(width, height) / 340;
  const svg = s("svg", { class: "source", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The stored image and what is cut out of it" });
  svg.style.setProperty("--unit", unit);
  const shapes = images.map((image) => s("polygon", { points: image.frame.map((point) => point.join(",")).join(" ") }));
  svg.append(s("image", { href: address("picture", { position }), width, height }), ...shapes);
  return {
    element: h("div", { class: "source-frame" }, svg),
    mark(image) {
      const chosen = images.indexOf(image);
      svg.classList.toggle("marked", chosen >= 0);
      shapes.forEach((shape, k) => shape.classList.toggle("chosen", k === chosen));
    },
  };
}

/** A field of a form that changes the address: its value in the parameters, or the default. */
export function control(name, text, given, fallback, options = {}) {
  const { choices, ...attributes } = options;
  const value = given[name] ?? String(fallback);
  const element = choices
    ? h("select", { name }, choices.map(([key, label]) => h("option", { value: key, selected: key === value }, label)))
    : h("input", { name, value, autocomplete: "off", ...attributes });
  return h("label", { class: "field" }, h("span", null, text), element);
}

/** The fields of a form as parameters, without fields that have their default. */
export function formValues(form, defaults) {
  const values = Object.fromEntries(new FormData(form));
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== "" && value !== String(defaults[name])));
}
