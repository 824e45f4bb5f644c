// A recipe: what its transforms make of one image, epoch by epoch.

import { address, className, get, latest, superseded } from "./api.js";
import { announce, h, showBusy } from "./dom.js";
import { control, drawnGrid, formValues, framedSource } from "./drawn.js";

const DEFAULTS = { position: 0, seed: 0, epoch: 0, count: 12 };

export function recipe(main, dataset, parameters) {
  const fetchDraws = latest();
  let given = parameters;
  let offered = null;

  const panel = h("div", { class: "panel" });
  const results = h("section", { class: "results", "aria-label": "Draws" });
  main.replaceChildren(panel, results);

  function showForm() {
    const choices = offered.recipes.map((each) => [each.name, each.name]);
    const defaults = { ...DEFAULTS, recipe: offered.default, seed: offered.options.seed ?? 0 };
    const form = h(
      "form",
      { class: "options", "aria-label": "Options of the recipe" },
      control("recipe", "Recipe", given, defaults.recipe, { choices }),
      control("position", "Position, dataset[…]", given, defaults.position, { type: "number", min: 0, max: dataset.images - 1 }),
      control("seed", "Seed", given, defaults.seed, { type: "number", min: 0 }),
      control("epoch", "First epoch", given, defaults.epoch, { type: "number", min: 0 }),
      control("count", "Epochs", given, defaults.count, { type: "number", min: 1, max: 64 }),
    );
    form.addEventListener("change", () => (location.hash = address("recipe", formValues(form, defaults))));
    form.addEventListener("submit", (event) => event.preventDefault());
    const another = h("button", { type: "button", onclick: () => go(Math.floor(Math.random() * dataset.images)) }, "Another image");
    const go = (position) => (location.hash = address("recipe", { ...given, position }));
    const about = offered.recipes.find((each) => each.name === (given.recipe ?? defaults.recipe))?.about ?? "";
    return { defaults, elements: [h("h2", null, "Recipe"), form, another, h("p", { class: "note" }, about)] };
  }

  async function load() {
    try {
      if (!offered) showBusy(results);
      offered ??= await get("api/recipes");
      const { defaults, elements } = showForm();
      panel.replaceChildren(...elements);
      const query = { ...defaults, ...given };
      showBusy(results);
      const drawn = await fetchDraws("api/draws", query);
      const source = framedSource(dataset, query.position, drawn.images);
      const steps = h("ul", { class: "steps" }, drawn.steps.map((text) => h("li", null, text)));
      const left = drawn.left_out.length ? h("p", { class: "note" }, `${drawn.left_out.join(", ")}: takes whole batches, see Replay`) : null;
      panel.append(h("h3", null, `${className(dataset, drawn.images[0].label)}, id ${drawn.images[0].id}`), source.element, h("h3", null, "Transforms"), left ?? "", steps);
      const several = drawn.images.length > new Set(drawn.images.map((image) => image.slot)).size;
      const title = (image) => `epoch ${Number(query.epoch) + image.slot}${several ? `, ${image.group || "view"} ${image.view}` : ""}`;
      const sourceOf = (_, k) => address("drawn", { ...query, image: k });
      results.replaceChildren(drawnGrid(dataset, drawn.images, sourceOf, { title, pointed: source.mark }));
      announce(`${drawn.images.length} images drawn`);
    } catch (error) {
      if (superseded(error)) return;
      results.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
    results.removeAttribute("aria-busy");
  }

  load();
  return {
    update(changed) {
      given = changed;
      load();
      return true;
    },
    key(event) {
      const by = { n: 1, p: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const position = Number(given.position ?? 0) + by;
      if (!by || position < 0 || position >= dataset.images) return false;
      location.hash = address("recipe", { ...given, position });
      return true;
    },
  };
}
