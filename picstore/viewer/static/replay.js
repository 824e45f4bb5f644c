// Replay: the batch that a training saw at a step, and the steps at which an image is seen.

import { address, className, get, latest, superseded } from "./api.js";
import { announce, h, showBusy } from "./dom.js";
import { control, drawnGrid, formValues } from "./drawn.js";
import * as format from "./format.js";

const DEFAULTS = { batch_size: 256, global_batch_size: 0, seed: 0, epoch: 0, step: 0, rank: 0, world_size: 1, lanes: 0, aug_repeats: 1, repeat: 1, balance: "", reducing_gap: 0, shuffle: "true", drop_last: "true", first: 0 };
const SHOWN = 64;
const SEEN_EPOCHS = 12;
const YES_NO = [["true", "yes"], ["false", "no"]];

/** A batch size of which an epoch has one at least: the usual one, or the next power of two below the images. */
function fitting(images) {
  return Math.min(DEFAULTS.batch_size, 2 ** Math.floor(Math.log2(Math.max(1, images))));
}

/** A state as JSON, or as Python prints it: with other quotes, True, False and None. */
export function parsedState(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const words = { True: "true", False: "false", None: "null" };
    const tokens = /'((?:[^'\\]|\\.)*)'|"(?:[^"\\]|\\.)*"|\b(True|False|None)\b/g;
    const json = text.replace(tokens, (whole, inner, word) => (word ? words[word] : inner === undefined ? whole : JSON.stringify(inner)));
    try {
      return JSON.parse(json);
    } catch {
      throw error;
    }
  }
}

export function replay(main, dataset, parameters) {
  const fetchBatch = latest();
  let given = parameters;
  let offered = null;
  let length = null;
  let defaults = DEFAULTS;

  const panel = h("div", { class: "panel" });
  const results = h("section", { class: "results", "aria-label": "Batch" });
  main.replaceChildren(panel, results);

  const go = (changed) => (location.hash = address("replay", { ...given, ...changed }));
  const query = () => ({ ...defaults, ...given });

  function showForm() {
    const choices = offered.recipes.map((each) => [each.name, each.name]);
    const { seed, lanes, shuffle, world_size: worldSize, reducing_gap: gap } = offered.state ?? {};
    const givenGap = offered.state ? (gap ?? 0) : offered.options.reducing_gap;
    const known = Object.entries({ seed: seed ?? offered.options.seed, lanes, shuffle, world_size: worldSize, reducing_gap: givenGap });
    defaults = { ...DEFAULTS, batch_size: fitting(dataset.images), recipe: offered.default, ...Object.fromEntries(known.filter(([, value]) => value !== undefined)) };
    const numeric = { type: "number", min: 0, step: 1 };
    const form = h(
      "form",
      { class: "options", "aria-label": "Training" },
      control("recipe", "Recipe", given, defaults.recipe, { choices }),
      h("div", { class: "pair" }, control("batch_size", "Batch size", given, defaults.batch_size, { ...numeric, min: 1 }), control("seed", "Seed", given, defaults.seed, numeric)),
      h("div", { class: "pair" }, control("epoch", "Epoch", given, defaults.epoch, numeric), control("step", "Step", given, defaults.step, numeric)),
      h("details", null, h("summary", null, "Ranks and more"), h("div", { class: "options" },
        h("div", { class: "pair" }, control("rank", "Rank", given, defaults.rank, numeric), control("world_size", "World size", given, defaults.world_size, { ...numeric, min: 1 })),
        h("div", { class: "pair" }, control("lanes", "Lanes (0: default)", given, defaults.lanes, numeric), control("aug_repeats", "aug_repeats", given, defaults.aug_repeats, { ...numeric, min: 1 })),
        h("div", { class: "pair" }, control("shuffle", "shuffle", given, defaults.shuffle, { choices: YES_NO }), control("drop_last", "drop_last", given, defaults.drop_last, { choices: YES_NO })),
        h("div", { class: "pair" }, control("repeat", "repeat", given, defaults.repeat, { type: "number", step: "any" }), control("balance", "balance (column)", given, defaults.balance)),
        h("div", { class: "pair" }, control("reducing_gap", "reducing_gap (0: none)", given, defaults.reducing_gap, { type: "number", min: 0, step: "any" }), control("global_batch_size", "global_batch_size (0: none)", given, defaults.global_batch_size, numeric)))),
    );
    form.addEventListener("change", () => {
      const values = formValues(form, defaults);
      given = Object.fromEntries(Object.entries(given).filter(([name]) => name === "first"));
      go({ ...values, first: "" });
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  /** A field for a loader's state, which sets epoch and step. */
  function stateField() {
    const area = h("textarea", { rows: 4, spellcheck: "false", placeholder: '{"version": 2, "dataset": …, "samples": …}' });
    if (offered.state) area.value = JSON.stringify(offered.state, null, 1);
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const show = h("button", { type: "button", onclick: () => apply() }, "Show the batch before it");

    async function apply() {
      problem.hidden = true;
      try {
        const state = parsedState(area.value);
        const { seed, lanes, shuffle, world_size, reducing_gap = 0 } = state;
        const changed = Object.fromEntries(Object.entries({ seed, lanes, shuffle, world_size, reducing_gap }).filter(([, value]) => value !== undefined));
        const { epoch, step } = await get("api/replay/position", { ...query(), ...changed, state: JSON.stringify(state) });
        go({ ...changed, epoch, step, first: "" });
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    }

    const element = h("details", { open: Boolean(offered.state) }, h("summary", null, "A loader's state"), h("label", { class: "field" }, h("span", null, "loader.state_dict(), as JSON or as Python prints it"), area), h("div", { class: "buttons" }, show), problem);
    return { element, apply };
  }

  /** A field for an image, which lists the steps at which it is seen. */
  function seenField() {
    const id = h("input", { type: "text", inputmode: "numeric", placeholder: "id" });
    const list = h("div", { class: "seen" });
    id.addEventListener("change", async () => {
      try {
        const { position } = await get("api/find", { id: id.value.trim() });
        const seen = await get("api/replay/steps", { ...query(), position, epoch: query().epoch, epochs: SEEN_EPOCHS });
        list.replaceChildren(...seen.map(({ epoch, places }) => h("p", null, h("span", { class: "note" }, `epoch ${epoch}: `), places.length ? places.map((place, k) => [k ? ", " : "", link(epoch, place)]) : "left out")));
      } catch (error) {
        list.replaceChildren(h("p", { class: "problem" }, error.message));
      }
    });

    function link(epoch, { rank, step, slot }) {
      const of = Number(query().world_size) > 1 ? `, rank ${rank}` : "";
      const first = Math.floor(slot / SHOWN) * SHOWN;
      return h("a", { href: address("#replay", { ...given, epoch, step, rank, first: first || "" }) }, `step ${step}, slot ${slot}${of}`);
    }

    return h("details", null, h("summary", null, "When an image is seen"), h("label", { class: "field" }, h("span", null, "Id of the image"), id), list);
  }

  let stateShown = false;

  async function load() {
    try {
      if (!offered) showBusy(results);
      offered ??= await get("api/recipes");
      const seen = seenField();
      const state = stateField();
      panel.replaceChildren(h("h2", null, "Training"), showForm(), state.element, seen);
      if (offered.state && !stateShown && !("step" in given)) {
        stateShown = true;
        await state.apply();
        return;
      }
      showBusy(results);
      const batch = await fetchBatch("api/replay", query());
      length = batch.steps;
      show(batch);
    } catch (error) {
      if (superseded(error)) return;
      results.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
    results.removeAttribute("aria-busy");
  }

  function step(by) {
    const [epoch, at] = [Number(query().epoch), Number(query().step) + by];
    if (at >= 0 && (length === null || at < length)) go({ step: at, first: "" });
    else if (at < 0 && epoch > 0) go({ epoch: epoch - 1, step: length - 1, first: "" });
    else if (at > 0) go({ epoch: epoch + 1, step: 0, first: "" });
  }

  function show(batch) {
    const { epoch, step: at, first, rank, world_size: worldSize } = query();
    const start = Number(first);
    const end = Math.min(start + SHOWN, batch.records);
    const ofRank = Number(worldSize) > 1 ? `, rank ${rank} of ${worldSize}` : "";
    const slots = batch.records > SHOWN && [
      h("button", { type: "button", "aria-label": "Previous slots", disabled: start === 0, onclick: () => go({ first: start - SHOWN || "" }) }, "‹"),
      h("span", { class: "note" }, `slots ${start} – ${end - 1} of ${format.count(batch.records)}`),
      h("button", { type: "button", "aria-label": "Next slots", disabled: end >= batch.records, onclick: () => go({ first: end }) }, "›"),
    ];
    const toolbar = h(
      "div",
      { class: "toolbar" },
      h("button", { type: "button", "aria-label": "Previous step", onclick: () => step(-1) }, "← Step"),
      h("p", { class: "summary" }, "Epoch ", h("b", null, String(epoch)), ", step ", h("b", null, String(at)), ` of ${format.count(batch.steps)}${ofRank}`),
      h("button", { type: "button", "aria-label": "Next step", onclick: () => step(1) }, "Step →"),
      h("div", { class: "pager" }, slots || ""),
    );
    batch.images.forEach((image) => {
      image.parameters.unshift(`id ${image.id}`);
      const mixed = batch.mixed[image.slot - start];
      if (mixed) image.note = mixed.map(([label, share]) => `${className(dataset, label)} ${format.percent(share)}`).join(", ");
    });
    const title = (image) => `${image.slot}: ${className(dataset, image.label)}${image.group ? ` · ${image.group} ${image.view}` : image.view ? ` · ${image.view}` : ""}`;
    const sourceOf = (_, k) => address("replayed", { ...query(), image: k });
    const link = (image) => address("#image", { id: image.id, frame: image.frame.flat().join(",") });
    const state = h("details", { class: "state" }, h("summary", null, "State after this batch"), h("pre", null, JSON.stringify(batch.state, null, 1)));
    const damage = batch.damage.length ? h("div", { class: "problem" }, batch.damage.map((text) => h("p", null, `replaced: ${text}`))) : "";
    results.replaceChildren(toolbar, damage, drawnGrid(dataset, batch.images, sourceOf, { title, link }), state);
    announce(`epoch ${epoch}, step ${at}, ${batch.records} records`);
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
      if (by) step(by);
      return Boolean(by);
    },
  };
}
