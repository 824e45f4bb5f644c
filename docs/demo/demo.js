// The page around cut.js: a photograph, a box that one drags, and the JPEG of the tiles under it.
import { cut, parse, touched } from "./cut.js";

const $ = (id) => document.getElementById(id);
const FIELDS = ["left", "top", "width", "height"];
const LEAST = 8; // pixels, the least side of a box
let image, box, drag, addresses = [];

const clamp = (value, low, high) => Math.min(Math.max(Math.round(value), low), high);

// Show the bytes as an image, whose address holds until the next one of the same element.
function show(element, bytes, index) {
  if (addresses[index]) URL.revokeObjectURL(addresses[index]);
  element.src = addresses[index] = URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
}

function open(bytes, name) {
  try {
    image = parse(bytes);
  } catch (error) {
    $("demo-message").textContent = `${name}: ${error.message}`;
    return;
  }
  $("demo-message").textContent = "";
  const { width, height } = image;
  show($("demo-photograph"), bytes, 0);
  $("demo-overlay").setAttribute("viewBox", `0 0 ${width} ${height}`);
  $("demo-stage").style.aspectRatio = `${width} / ${height}`;
  place({ left: width * 0.33, top: height * 0.08, width: width * 0.25, height: height * 0.33 });
}

// Move the box to where it lies within the image, cut it, and show what came of it.
function place(wanted) {
  const width = clamp(wanted.width, Math.min(LEAST, image.width), image.width);
  const height = clamp(wanted.height, Math.min(LEAST, image.height), image.height);
  box = { left: clamp(wanted.left, 0, image.width - width), top: clamp(wanted.top, 0, image.height - height), width, height };
  for (const field of FIELDS) $(`demo-${field}`).value = box[field];
  const begin = performance.now();
  let result, runs = 0;
  do { // clocks of browsers are coarse: as many cuts as take 2 ms
    result = cut(image, box);
    runs++;
  } while (performance.now() - begin < 2);
  const time = (performance.now() - begin) / runs;
  draw();
  show($("demo-cut"), result.bytes, 1);
  const whole = image.jpeg.length, part = result.bytes.length;
  $("demo-result").textContent =
    `${result.tiles} of ${image.segments.length} tiles, ${part.toLocaleString("en")} of ${whole.toLocaleString("en")} bytes ` +
    `(${((100 * part) / whole).toFixed(1)}\u00a0%), cut in ${time.toFixed(time < 0.1 ? 3 : 2)}\u00a0ms. ` +
    `The box lies at (${box.left - result.left}, ${box.top - result.top}) of the cut.`;
  $("demo-save").href = addresses[1];
}

function draw() {
  const { width, height, tile } = image, tiles = touched(image, box), scale = width / 512;
  const grid = [];
  for (let y = tile[1]; y < height; y += tile[1]) grid.push(`M0 ${y}H${width}`);
  for (let x = tile[0]; x < width; x += tile[0]) grid.push(`M${x} 0V${height}`);
  $("demo-grid").setAttribute("d", grid.join(""));
  rectangle($("demo-tiles"), tiles.left * tile[0], tiles.top * tile[1], Math.min(tiles.right * tile[0], width), Math.min(tiles.bottom * tile[1], height));
  const right = box.left + box.width, bottom = box.top + box.height, half = 7 * scale;
  rectangle($("demo-box"), box.left, box.top, right, bottom);
  rectangle($("demo-handle"), right - half, bottom - half, right + half, bottom + half);
}

function rectangle(element, left, top, right, bottom) {
  const values = { x: left, y: top, width: right - left, height: bottom - top };
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
}

// Drag the handle to change the size, the box to move it, any other place to begin another box.
function point(event) {
  const area = $("demo-overlay").getBoundingClientRect();
  return { x: ((event.clientX - area.left) * image.width) / area.width, y: ((event.clientY - area.top) * image.height) / area.height };
}

$("demo-overlay").addEventListener("pointerdown", (event) => {
  const { x, y } = point(event);
  const kind = event.target.id === "demo-handle" ? "size" : event.target.id === "demo-box" ? "move" : "new";
  drag = { kind, x, y, box: kind === "new" ? { left: x, top: y, width: 0, height: 0 } : box };
  $("demo-overlay").setPointerCapture(event.pointerId);
  event.preventDefault();
});
$("demo-overlay").addEventListener("pointermove", (event) => {
  if (!drag) return;
  const { x, y } = point(event), dx = x - drag.x, dy = y - drag.y, from = drag.box;
  if (drag.kind === "move") place({ ...from, left: from.left + dx, top: from.top + dy });
  if (drag.kind === "size") place({ ...from, width: Math.min(from.width + dx, image.width - from.left), height: Math.min(from.height + dy, image.height - from.top) });
  if (drag.kind === "new") place({ left: Math.min(x, drag.x), top: Math.min(y, drag.y), width: Math.abs(dx), height: Math.abs(dy) });
});
for (const end of ["pointerup", "pointercancel"]) $("demo-overlay").addEventListener(end, () => (drag = undefined));
for (const field of FIELDS) $(`demo-${field}`).addEventListener("change", (event) => place({ ...box, [field]: Number(event.target.value) }));
$("demo-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) open(new Uint8Array(await file.arrayBuffer()), file.name);
});

const stored = await fetch(new URL("astronaut.jpg", import.meta.url));
open(new Uint8Array(await stored.arrayBuffer()), "astronaut.jpg");
