// One image: its tiles, annotations and masks drawn over it, a crop box, and where its bytes lie.

import { address, className, get, latest, pictureOf, superseded } from "./api.js";
import { imageAddress, parsed } from "./browse.js";
import { cropBox } from "./crop_box.js";
import { announce, busyText, delayed, field, h, s } from "./dom.js";
import { objectShapes, stretch, tileBytes, tileLines } from "./drawing.js";
import * as format from "./format.js";

const LAYERS = [["tiles", "Tiles", "t"], ["heat", "Bytes", "w"], ["objects", "Objects", "a"], ["masks", "Masks", "m"]];
const shownLayers = new Set(["tiles", "objects", "masks"]);

export function image(main, dataset, parameters) {
  const fetchDetails = latest();
  const fetchCut = latest();
  let given = parameters;

  async function step(by) {
    const filter = given.filter ?? "";
    if (given.at === undefined) {
      const position = Number(given.position) + by;
      if (position >= 0 && position < dataset.images) location.hash = imageAddress(position);
      return;
    }
    const at = Number(given.at) + by;
    if (at < 0) return;
    const { items } = await get("api/records", { filter, start: at, count: 1 });
    if (items.length) location.hash = imageAddress(items[0].position, at, parsed(filter || "{}"));
  }

  /** The grid's page that the image came from. */
  const back = () => address("#browse", { filter: given.filter, start: given.at });

  async function load() {
    try {
      const position = given.position ?? (await get("api/find", { id: given.id })).position;
      given = { ...given, position };
      show(await fetchDetails("api/image", { position }));
    } catch (error) {
      if (superseded(error)) return;
      main.replaceChildren(heading("Image", `position ${given.position}`), h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  function heading(title, subtitle) {
    return h(
      "div",
      { class: "image-head" },
      h("a", { href: back(), class: "button", "aria-label": "Back to the grid" }, "← Grid"),
      h("h2", null, title, " ", h("small", null, subtitle)),
      given.position !== undefined && h("a", { class: "button", href: address("#recipe", { position: given.position }) }, "Recipe"),
      h("button", { type: "button", "aria-label": "Previous image", onclick: () => step(-1) }, "‹"),
      h("button", { type: "button", "aria-label": "Next image", onclick: () => step(1) }, "›"),
    );
  }

  function show(details) {
    const { width, height } = details;
    const unit = Math.max(width, height) / 900; // about a pixel of the screen
    const svg = s("svg", { class: "stage", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${className(dataset, details.label)}, ${width} by ${height} pixels` });
    const layers = {
      tiles: details.tiles && tileLines(details.tiles, width, height),
      heat: details.tiles && tileBytes(details.tiles, width, height),
      objects: details.objects.count ? objectShapes(details.objects, (label) => className(dataset, label), unit) : null,
      masks: maskLayer(details),
    };
    const crop = cropBox(svg, width, height, unit, (box) => cropChanged(box));
    const frame = given.frame && s("polygon", { class: "cut-out", points: given.frame });
    svg.append(s("image", { href: pictureOf(details.position), width, height }), ...[layers.heat, layers.tiles, layers.masks].filter(Boolean), crop.element, ...[layers.objects, frame].filter(Boolean));
    svg.style.setProperty("--unit", unit);
    svg.style.setProperty("--ratio", width / height);

    const inputs = ["left", "top", "width", "height"].map((name) => h("input", { type: "number", min: 0, step: 1, "aria-label": `Crop, ${name}` }));
    const preview = h("img", { class: "preview", alt: "The crop, decoded from its tiles" });
    const measured = h("div", { class: "measured" });
    inputs.forEach((input) => input.addEventListener("change", () => cropChanged(crop.set(inputs.map((each) => Number(each.value))))));

    const previewFrame = h("div", { class: "preview-frame" }, busyText("Decoding …"));
    preview.addEventListener("load", () => previewFrame.replaceChildren(preview));
    preview.addEventListener("error", () => previewFrame.replaceChildren(preview));

    const requestCut = delayed(60, async (box) => {
      const [left, top, w, h_] = box;
      const query = { position: details.position, left, top, width: w, height: h_ };
      preview.src = pictureOf(details.position, "crop", { left, top, width: w, height: h_ });
      if (details.foreign) return;
      try {
        const cut = await fetchCut("api/cut", query);
        crop.setRead(cut.rect);
        measured.replaceChildren(...cutFacts(cut, box));
      } catch (error) {
        if (!superseded(error)) measured.replaceChildren(h("p", { class: "problem" }, error.message));
      }
    });

    function cropChanged(box) {
      inputs.forEach((input, k) => (input.value = box[k]));
      requestCut(box);
    }

    const name = className(dataset, details.label);
    const side = h(
      "aside",
      { class: "side", "aria-label": "Details" },
      section("Crop", h("div", { class: "crop-fields" }, ["x", "y", "w", "h"].map((text, k) => field(text, inputs[k], "inline"))), measured, previewFrame),
      details.problem && h("p", { class: "problem" }, details.problem),
      section("Record", recordFacts(details)),
      section("On disk", placeFacts(details)),
      Object.keys(details.columns).length ? section("Columns", facts(Object.entries(details.columns).map(([key, value]) => [key, String(value)]))) : null,
      details.extra ? section("Extra", h("pre", null, pretty(details.extra))) : null,
    );
    main.replaceChildren(heading(name, `id ${details.id}`), h("div", { class: "image-body" }, h("div", { class: "stage-column" }, layerButtons(layers), h("div", { class: "stage-frame" }, svg)), side));
    const [w, h_] = [Math.round(width / 2), Math.round(height / 2)];
    const start = given.frame ? boundsOf(given.frame.split(",").map(Number)) : [Math.round(width / 4), Math.round(height / 4), w, h_];
    cropChanged(crop.set(start));
    announce(`${name}, id ${details.id}, ${width} by ${height} pixels`);
  }

  function maskLayer(details) {
    const names = Object.keys(details.attachments);
    if (!names.length) return null;
    return s("g", { class: "masks" }, names.map((name) => {
      const shown = s("image", { href: pictureOf(details.position, "attachment", { name }), width: details.width, height: details.height, preserveAspectRatio: "none" });
      shown.addEventListener("error", () => shown.remove()); // an attachment that is no picture
      return shown;
    }));
  }

  function layerButtons(layers) {
    const present = LAYERS.filter(([layer]) => layers[layer]);
    const apply = (layer) => layers[layer].classList.toggle("off", !shownLayers.has(layer));
    present.forEach(([layer]) => apply(layer));
    return h("div", { class: "layers", role: "group", "aria-label": "Drawn over the image" }, present.map(([layer, text, key]) =>
      h("button", {
        type: "button",
        "data-key": key,
        "aria-pressed": String(shownLayers.has(layer)),
        title: `${text} (${key})`,
        onclick: (event) => {
          shownLayers[shownLayers.has(layer) ? "delete" : "add"](layer);
          event.currentTarget.setAttribute("aria-pressed", String(shownLayers.has(layer)));
          apply(layer);
        },
      }, text)));
  }

  load();
  return {
    update(changed) {
      given = changed;
      load();
      return true;
    },
    key(event) {
      if (event.key === "Escape") location.hash = back();
      else if (event.key === "n" || event.key === "ArrowRight") step(1);
      else if (event.key === "p" || event.key === "ArrowLeft") step(-1);
      else {
        const button = main.querySelector(`.layers button[data-key="${CSS.escape(event.key)}"]`);
        button?.click();
        return Boolean(button);
      }
      return true;
    },
  };
}

/** The upright box around x0, y0, x1, y1, …: left, top, width, height. */
function boundsOf(points) {
  const [x, y] = [0, 1].map((axis) => points.filter((_, k) => k % 2 === axis));
  const [left, top] = [Math.min(...x), Math.min(...y)];
  return [left, top, Math.max(...x) - left, Math.max(...y) - top];
}

function section(title, ...children) {
  return h("section", null, h("h3", null, title), children);
}

function facts(rows) {
  return h("dl", { class: "facts-list" }, rows.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

function cutFacts(cut, [, , width, height]) {
  const [, , w, h_] = cut.rect;
  const share = cut.bytes / cut.of;
  return [
    h("p", { class: "big" }, h("b", null, format.bytes(cut.bytes)), ` of ${format.bytes(cut.of)}`),
    h("meter", { min: 0, max: 1, value: share, "aria-label": "Share of the image's bytes" }, format.percent(share)),
    facts([
      ["reads", `${format.percent(share)} of the bytes, ${format.count(cut.tiles)} of ${format.counted(cut.of_tiles, "tile")}`],
      ["decodes", `${w} × ${h_} pixels for ${width} × ${height}`],
    ]),
  ];
}

function recordFacts(details) {
  const { tiles } = details;
  return facts([
    ["id", details.id],
    ["position", `dataset[${details.position}]`],
    ["label", String(details.label)],
    ["size", `${details.width} × ${details.height}`],
    ["bytes", format.bytes(details.place.size)],
    ["sampling", details.foreign ? "not stored" : details.sampling || "other"],
    tiles && ["tiles", `${tiles.columns} × ${tiles.rows} of ${tiles.width} × ${tiles.height}`],
    details.header_bytes ? ["headers", format.bytes(details.header_bytes)] : null,
    details.objects.count ? ["objects", format.count(details.objects.count)] : null,
    ...Object.entries(details.attachments).map(([name, size]) => [name, format.bytes(size)]),
  ]);
}

function placeFacts(details) {
  const { place } = details;
  return [
    stretch(place.containers, "Containers of the file"),
    stretch(place.records, "Images of the container"),
    facts([
      ["file", place.file],
      ["offset", format.count(place.offset)],
      ["container", `${format.count(place.container)}, one of ${place.containers.length} in its file`],
      ["record", `${place.record}, one of ${place.records.length} in its container`],
      ["CRC-32C", place.crc],
    ]),
  ];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}
