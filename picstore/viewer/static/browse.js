// The grid of images, page by page, with filters beside it.

import { address, className, latest, pictureOf, superseded, whyNotShown } from "./api.js";
import { announce, delayed, field, h, remember, remembered } from "./dom.js";
import * as format from "./format.js";
import { filterPanel } from "./filters.js";

const SIZES = [96, 128, 176, 240, 340];
const PAGE = { 96: 300, 128: 200, 176: 120, 240: 80, 340: 48 };

/** The address of an image in a filtered grid. */
export function imageAddress(position, at, filter) {
  return address("#image", { position, at, filter: filter && Object.keys(filter).length ? JSON.stringify(filter) : "" });
}

export function browse(main, dataset, parameters) {
  const fetchRecords = latest();
  let filter = {};
  let start = 0;
  let total = dataset.images;
  let reading = 0; // the timer of the next look
  let size = Number(remembered("tile-size")) || 176;
  if (!SIZES.includes(size)) size = 176;

  const grid = h("div", { class: "grid", role: "list", "aria-label": "Images" });
  const summary = h("p", { class: "summary" });
  const looked = h("p", { class: "note", role: "status" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const seek = h("input", { type: "range", min: 0, step: 1, value: 0, "aria-label": "Page", class: "seek" });
  const previous = h("button", { type: "button", "aria-label": "Previous page", onclick: () => turn(-1) }, "‹");
  const next = h("button", { type: "button", "aria-label": "Next page", onclick: () => turn(1) }, "›");
  const pageNumber = h("input", { type: "number", min: 1, class: "page-number", "aria-label": "Page number" });
  const pages = h("span", { class: "pages" });
  const slider = h("input", { type: "range", min: 0, max: SIZES.length - 1, value: SIZES.indexOf(size), class: "size" });
  const panel = filterPanel(dataset, (changed) => go(changed, 0));

  const toolbar = h(
    "div",
    { class: "toolbar" },
    h("button", { type: "button", class: "filters-toggle", "aria-expanded": "false", onclick: togglePanel }, "Filters"),
    summary,
    looked,
    h("div", { class: "pager" }, previous, pageNumber, pages, next, field("Page", seek, "inline seek-field")),
    field("Size", slider, "inline"),
  );
  main.replaceChildren(panel.element, h("section", { class: "results", "aria-label": "Images" }, toolbar, problem, grid));

  function togglePanel(event) {
    const open = main.classList.toggle("panel-open");
    event.currentTarget.setAttribute("aria-expanded", String(open));
  }

  const page = () => PAGE[size];
  const lastPage = () => Math.max(0, Math.ceil(total / page()) - 1);

  /** Change the address, which then shows the page. */
  function go(changed, first) {
    const text = Object.keys(changed).length ? JSON.stringify(changed) : "";
    location.hash = address("browse", { filter: text, start: first || "" });
  }

  function turn(by) {
    const target = Math.min(lastPage(), Math.max(0, Math.floor(start / page()) + by));
    if (target * page() !== start) go(filter, target * page());
  }

  /** Tell how far the extras were looked through, and look again until they all were. */
  function showReading(extras) {
    clearTimeout(reading);
    const part = extras && extras.total ? format.percent(extras.done / extras.total) : "";
    const texts = { idle: "looking through extras …", reading: `looking through extras: ${part} …`, full: `extras were looked through in ${part} of the containers` };
    looked.textContent = texts[extras?.state] ?? "";
    if (extras?.state === "reading" || extras?.state === "idle") reading = setTimeout(() => load(true), 500);
  }

  async function load(again = false) {
    const before = total;
    clearTimeout(reading);
    if (!again) grid.setAttribute("aria-busy", "true");
    try {
      const answer = await fetchRecords("api/records", { filter: panel.text(), start, count: page() });
      total = answer.total;
      problem.hidden = true;
      if (!again || answer.total !== before) show(answer.items);
      showReading(answer.extras);
    } catch (error) {
      if (superseded(error)) return;
      problem.textContent = error.message;
      problem.hidden = false;
    }
    grid.removeAttribute("aria-busy");
  }

  function show(items) {
    grid.style.setProperty("--tile", `${size}px`);
    grid.replaceChildren(...items.map((item, k) => tile(dataset, item, start + k, filter, size)));
    if (!items.length) grid.replaceChildren(h("p", { class: "empty" }, "No image fits these filters."));
    const of = total === dataset.images ? "" : ` of ${format.count(dataset.images)}`;
    summary.replaceChildren(h("b", null, format.count(total)), `${of} ${dataset.images === 1 ? "image" : "images"}`);
    const number = Math.floor(start / page());
    pageNumber.value = number + 1;
    pageNumber.max = lastPage() + 1;
    pages.textContent = `of ${format.count(lastPage() + 1)}`;
    seek.max = lastPage();
    seek.value = number;
    previous.disabled = number === 0;
    next.disabled = number >= lastPage();
    grid.closest(".results").scrollTop = 0;
    announce(`${format.counted(total, "image")}, page ${number + 1} of ${lastPage() + 1}`);
  }

  const seekTo = delayed(120, () => go(filter, Number(seek.value) * page()));
  seek.addEventListener("input", () => {
    pageNumber.value = Number(seek.value) + 1;
    seekTo();
  });
  pageNumber.addEventListener("change", () => {
    const number = Math.min(lastPage() + 1, Math.max(1, Number(pageNumber.value) || 1));
    go(filter, (number - 1) * page());
  });
  slider.addEventListener("input", () => {
    size = SIZES[slider.value];
    remember("tile-size", size);
    start -= start % page();
    load();
  });

  function move(event) {
    const tiles = [...grid.querySelectorAll(".tile")];
    const at = tiles.indexOf(document.activeElement);
    const columns = tiles.filter((each) => each.offsetTop === tiles[0]?.offsetTop).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (!tiles.length || !(event.key in steps)) return false;
    tiles[at < 0 ? 0 : Math.min(tiles.length - 1, Math.max(0, at + steps[event.key]))].focus();
    return true;
  }

  function update(given) {
    filter = given.filter ? parsed(given.filter) : {};
    start = Math.max(0, Number(given.start) || 0);
    start -= start % page();
    panel.show(filter);
    load();
    return true;
  }

  update(parameters);
  return {
    update,
    close: () => clearTimeout(reading),
    key(event) {
      if (event.key === "/") panel.focus();
      else if (event.key === "n") turn(1);
      else if (event.key === "p") turn(-1);
      else return move(event);
      return true;
    },
  };
}

/** A filter out of an address, {} where it is none. */
export function parsed(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

/** One image of a grid: a link to it. */
export function tile(dataset, item, at, filter, size) {
  const name = className(dataset, item.label);
  const facts = `${item.width} × ${item.height}, ${format.bytes(item.bytes)}`;
  const source = pictureOf(item.position, "thumbnail", { size: size * Math.min(2, devicePixelRatio || 1) | 0 });
  const frame = item.damage
    ? h("span", { class: "frame damaged", title: item.damage }, "damaged")
    : h("span", { class: "frame" }, picture(source, item));
  const columns = Object.entries(item.columns).map(([key, value]) => `${key}: ${value}`);
  const extra = brief(item.extra);
  return h(
    "div",
    { role: "listitem", class: "cell" },
    h(
      "a",
      { class: "tile", href: imageAddress(item.position, at, filter), "aria-label": `${name}, id ${item.id}, ${facts}` },
      frame,
      h("span", { class: "name" }, name),
      h("span", { class: "facts" }, h("span", null, `id ${item.id}`), h("span", null, `${item.width}×${item.height}`)),
      extra || columns.length
        ? h("span", { class: "extra", title: [...columns, item.extra].join("\n") }, [...columns, extra].filter(Boolean).join(" · "))
        : null,
    ),
  );
}

/** An extra in a line: texts and numbers of an object without its syntax, others as they are. */
function brief(text) {
  const values = parsed(text || "{}");
  if (typeof values !== "object") return text;
  const plain = Object.entries(values).filter(([, value]) => typeof value !== "object");
  if (plain.length === 1) return String(plain[0][1]);
  return plain.length ? plain.map(([key, value]) => `${key}: ${value}`).join(" · ") : Object.keys(values).join(", ");
}

function picture(source, item) {
  const img = h("img", { src: source, alt: "", loading: "lazy", decoding: "async" });
  img.width = item.width;
  img.height = item.height;
  img.addEventListener("error", async () => {
    const frame = img.parentElement;
    const why = await whyNotShown(source);
    frame.title = why;
    frame.replaceChildren(h("span", { class: "why" }, `not decoded: ${why}`));
  });
  return img;
}
