// Cuts a box out of a JPEG with restart markers, without decoding it: docs/design.md, in a browser.
// Clauses are of ITU-T T.81. It shares no code with picstore/jpeg/cut.py; a test compares their bytes.

const SOF0 = 0xc0, SOF1 = 0xc1, RST0 = 0xd0, EOI = 0xd9, SOS = 0xda, DRI = 0xdd;
const NO_FRAME = new Set([0xc4, 0xc8, 0xcc]); // DHT, JPG and DAC lie among the frame markers (table B.1)
const MARGIN = 1; // pixels: a decoder that interpolates chroma reads one sample beside the box
const MIN_WIDTH = 5; // pixels: libjpeg does not interpolate chroma rows of at most two samples

// Parse headers and find the segments (B.1, B.2): size, MCU size, tiles, and where each segment begins and ends.
// Throws an Error that says why a JPEG cannot be cut.
export function parse(jpeg) {
  const view = new DataView(jpeg.buffer, jpeg.byteOffset, jpeg.byteLength);
  if (jpeg.length < 4 || view.getUint16(0) !== 0xffd8) throw new Error("This is no JPEG.");
  let offset = 2, frame = 0, interval = 0, header = 0;
  while (!header) {
    while (jpeg[offset] === 0xff && jpeg[offset + 1] === 0xff) offset++; // fill bytes (B.1.1.2)
    if (offset + 4 > jpeg.length || jpeg[offset] !== 0xff) throw new Error("The headers are damaged or cut off.");
    const marker = jpeg[offset + 1], end = offset + 2 + view.getUint16(offset + 2);
    if (end > jpeg.length || end < offset + 4) throw new Error("The headers are damaged or cut off.");
    if (marker >= 0xc0 && marker < 0xd0 && !NO_FRAME.has(marker)) {
      if (marker !== SOF0 && marker !== SOF1) throw new Error("It is progressive, lossless or arithmetic-coded: picstore encodes such images again.");
      if (end < offset + 10 || end !== offset + 10 + 3 * jpeg[offset + 9]) throw new Error("The frame header is damaged.");
      frame = offset;
    }
    if (marker === DRI && end === offset + 6) interval = view.getUint16(offset + 4);
    if (marker === SOS) header = end;
    offset = end;
  }
  if (!frame) throw new Error("A scan begins before any frame header.");
  const height = view.getUint16(frame + 5), width = view.getUint16(frame + 7), count = jpeg[frame + 9];
  if (!width || !height || !count) throw new Error("The frame header is damaged.");
  const factors = Array.from({ length: count }, (_, k) => jpeg[frame + 11 + 3 * k]);
  const largest = (shift) => (count === 1 ? 1 : Math.max(...factors.map((each) => (each >> shift) & 15))); // A.2.2
  const mcu = [8 * largest(4), 8 * largest(0)];
  const columns = Math.ceil(width / mcu[0]), rows = Math.ceil(height / mcu[1]);
  if (!interval) throw new Error("It has no restart markers: `picstore convert` inserts them and keeps its coefficients.");
  if (columns % interval) throw new Error(`Its ${columns} columns of MCUs are no multiple of the restart interval, ${interval}.`);
  const segments = findSegments(jpeg, header);
  const perRow = columns / interval;
  if (segments.length !== perRow * rows) throw new Error(`It has ${segments.length} segments in place of ${perRow * rows}.`);
  return { jpeg, frame, header, width, height, tile: [interval * mcu[0], mcu[1]], perRow, segments };
}

// Find the bytes between markers. In coded data 0xFF stands before 0x00 or a marker (B.1.1.5).
function findSegments(jpeg, header) {
  const segments = [];
  let start = header;
  for (let k = header; k + 1 < jpeg.length; k++) {
    if (jpeg[k] !== 0xff || jpeg[k + 1] === 0 || jpeg[k + 1] === 0xff) continue;
    segments.push([start, k]);
    if (jpeg[k + 1] === EOI) return segments;
    if (jpeg[k + 1] !== RST0 + ((segments.length - 1) % 8)) throw new Error("Its restart markers are out of order, or it has several scans.");
    start = k + 2;
  }
  throw new Error("It is cut off: its end is missing.");
}

// The tiles that a box {left, top, width, height} touches, as columns and rows {left, top, right, bottom}.
export function touched({ width, height, tile }, box) {
  let left = Math.floor(Math.max(box.left - MARGIN, 0) / tile[0]);
  if (left && width - left * tile[0] < MIN_WIDTH) left--;
  return {
    left,
    top: Math.floor(Math.max(box.top - MARGIN, 0) / tile[1]),
    right: Math.ceil(Math.min(box.left + box.width + MARGIN, width) / tile[0]),
    bottom: Math.ceil(Math.min(box.top + box.height + MARGIN, height) / tile[1]),
  };
}

// Make a JPEG of the tiles that a box touches: the headers with another size, and their segments, numbered anew (E.1.4).
// Returns its bytes, and left and top of the cut in the whole image.
export function cut(image, box) {
  const { jpeg, frame, header, width, height, tile, perRow, segments } = image;
  const tiles = touched(image, box);
  const left = tiles.left * tile[0], top = tiles.top * tile[1];
  const parts = [];
  for (let row = tiles.top; row < tiles.bottom; row++) {
    parts.push(...segments.slice(row * perRow + tiles.left, row * perRow + tiles.right));
  }
  const bytes = new Uint8Array(parts.reduce((sum, [start, end]) => sum + end - start + 2, header));
  bytes.set(jpeg.subarray(0, header));
  const size = new DataView(bytes.buffer);
  size.setUint16(frame + 5, Math.min(tiles.bottom * tile[1], height) - top);
  size.setUint16(frame + 7, Math.min(tiles.right * tile[0], width) - left);
  let offset = header;
  parts.forEach(([start, end], k) => {
    bytes.set(jpeg.subarray(start, end), offset);
    offset += end - start + 2;
    bytes.set([0xff, k + 1 < parts.length ? RST0 + (k % 8) : EOI], offset - 2);
  });
  return { bytes, left, top, tiles: parts.length };
}
