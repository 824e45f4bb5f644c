// Elements from values. Text is only ever set as text, so nothing of a dataset is taken for HTML.

import { get } from "./api.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: h("a", { href, onclick }, "text", child, [more]). */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** A label around a control, its text beside or above. */
export function field(text, control, className = "field") {
  return h("label", { class: className }, h("span", null, text), control);
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** Say in an element that something is being drawn: in place of a message, or of nothing; pictures stay, and fade. */
export function showBusy(element) {
  element.setAttribute("aria-busy", "true");
  if (!element.querySelector(".grid")) element.replaceChildren(busyText("Drawing …"));
  announce("drawing");
}

/** A paragraph that says what is being done, or that kernels are being compiled first, until it leaves the page. */
export function busyText(text) {
  const paragraph = h("p", { class: "empty", role: "status" }, text);
  const look = async () => {
    if (!paragraph.isConnected) return;
    try {
      const { compiling } = await get("api/kernels");
      paragraph.textContent = compiling ? "Compiling, once on this machine: about 10 s …" : text;
    } catch {
      return; // The request that the paragraph stands for tells the error.
    }
    setTimeout(look, 500);
  };
  setTimeout(look, 200);
  return paragraph;
}

/** Call a function at most once in so many milliseconds, with its last arguments. */
export function delayed(milliseconds, callback) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...values), milliseconds);
  };
}

/** What this browser remembers by a name; undefined where it keeps nothing for the page, as for some frames. */
export function remembered(name) {
  try {
    return localStorage.getItem(name) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Make the browser remember a value, if it keeps any. */
export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // a frame of another site
  }
}
