// The frame of the page: its bar, which view the address names, and keys that work everywhere.

import { get } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { browse } from "./browse.js";
import { baseName, compare } from "./compare.js";
import { health } from "./health.js";
import { image } from "./image.js";
import { recipe } from "./recipe.js";
import { replay } from "./replay.js";

const VIEWS = { browse, image, recipe, replay, health, compare };
const TABS = [["browse", "Browse"], ["recipe", "Recipe"], ["replay", "Replay"], ["health", "Health"]];
const KEYS = [
  ["/", "look for a text"],
  ["← → ↑ ↓", "move between images of the grid"],
  ["Enter", "open an image"],
  ["n, p", "next and previous page, image or step"],
  ["t, w", "tiles; bytes of tiles"],
  ["a, m", "annotations; masks"],
  ["Esc", "back to the grid"],
  ["?", "this help"],
];

const main = document.getElementById("main");
const help = document.getElementById("help");
let current = null;
let home = "browse"; // the view of an address without one

/** The view that the address names, with its parameters: "#image?position=3". */
function route() {
  const [name, query] = location.hash.slice(1).split("?", 2);
  return { name: name in VIEWS ? name : home, parameters: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** A link to the other one of two datasets, whose page lies below this one's. */
function linkBeside(dataset) {
  const path = dataset.first ?? dataset.beside;
  if (!path) return [];
  return [h("a", { class: "beside", href: dataset.first ? "../" : "other/", title: path }, `${dataset.first ? "‹ " : ""}${baseName(path)}${dataset.first ? "" : " ›"}`)];
}

function showBar(dataset) {
  const name = baseName(dataset.path);
  const tabs = dataset.beside ? [...TABS, ["compare", "Compare"]] : TABS;
  const facts = [format.counted(dataset.images, "image"), format.bytes(dataset.bytes)];
  if (dataset.classes.length) facts.splice(1, 0, format.counted(dataset.classes.length, "class", "classes"));
  document.title = `${name} · picstore view`;
  document.getElementById("bar").replaceChildren(
    h("img", { src: "static/icon.svg", alt: "", width: 20, height: 20 }),
    h("h1", { title: dataset.path }, name),
    ...linkBeside(dataset),
    h("nav", { "aria-label": "Views" }, tabs.map(([view, text]) => h("a", { href: `#${view}`, "data-view": view }, text))),
    h("span", { class: "facts" }, facts.join(" · ")),
    h("button", { type: "button", class: "quiet", "aria-label": "Keyboard help", onclick: () => help.showModal() }, "?"),
  );
  help.replaceChildren(
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", null, KEYS.map(([key, text]) => [h("dt", null, key), h("dd", null, text)])),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
  );
}

function showView(dataset) {
  const { name, parameters } = route();
  for (const link of document.querySelectorAll("#bar nav a")) {
    const shown = link.dataset.view === name || (name === "image" && link.dataset.view === "browse");
    link.toggleAttribute("aria-current", shown);
    if (shown) link.setAttribute("aria-current", "page");
  }
  if (current?.name === name && current.view.update?.(parameters)) return;
  current?.view.close?.();
  current = { name, view: VIEWS[name](main, dataset, parameters) };
  main.className = name;
}

function onKey(event) {
  const editing = event.target.closest("input, textarea, select, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (editing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "?") help.showModal();
  else if (!current?.view.key?.(event)) return;
  event.preventDefault();
}

async function start() {
  try {
    const dataset = await get("api/dataset");
    if (location.pathname.endsWith("/other/")) dataset.first = (await get("../api/dataset")).path;
    if (dataset.beside) home = "compare";
    showBar(dataset);
    addEventListener("hashchange", () => showView(dataset));
    document.addEventListener("keydown", onKey);
    showView(dataset);
  } catch (error) {
    main.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
  }
}

start();
