// Requests to the server that served the page, at addresses below the page's own, which holds a token.

/** An address with parameters; undefined and empty ones are left out. */
export function address(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

/** Fetch JSON; throws an Error with the server's message. */
export async function get(path, parameters, options) {
  return answered(await fetch(address(path, parameters), options));
}

/** Post, without a body. */
export async function post(path, parameters) {
  return answered(await fetch(address(path, parameters), { method: "POST" }));
}

async function answered(response) {
  if (response.ok) return response.json();
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error ?? text;
  } catch {
    // plain text
  }
  throw new Error(message || `the server answered ${response.status}`);
}

/** Why a picture was not shown: what the server says of it, or its format, which this browser does not know. */
export async function whyNotShown(source) {
  try {
    const response = await fetch(source);
    if (!response.ok) await answered(response);
    return `this browser shows no ${response.headers.get("content-type") ?? "such format"}`;
  } catch (error) {
    return error.message;
  }
}

/** Requests of one kind of which the last one counts: earlier ones are aborted. */
export function latest() {
  let controller = null;
  return async (path, parameters) => {
    controller?.abort();
    controller = new AbortController();
    return get(path, parameters, { signal: controller.signal });
  };
}

/** Whether an error only says that a newer request took its place. */
export function superseded(error) {
  return error.name === "AbortError";
}

/** The address of a record's picture. */
export function pictureOf(position, path = "picture", more = {}) {
  return address(path, { position, ...more });
}

/** The name of a label. */
export function className(dataset, label) {
  if (label < 0) return "no label";
  return dataset.classes[label] || `label ${label}`;
}
