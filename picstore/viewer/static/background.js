// Work that the page starts, polls and cancels: its buttons, state, progress and notes.

import { get, post } from "./api.js";
import { announce, h } from "./dom.js";
import * as format from "./format.js";

const POLL = 300; // milliseconds

/**
 * Controls of one work in the background.
 *
 * paths: { start, cancel, report }. text: { begin, progress, unit, idle, running }, and done(report). parameters():
 * of a start. lines(report): notes below it, some of them false. changed(report): called where the state is another.
 */
export function background({ paths, text, parameters, lines, changed }) {
  let before = "idle";
  let timer = 0;
  const start = h("button", { type: "button", class: "primary", onclick: () => ask(post(paths.start, parameters())) }, text.begin);
  const cancel = h("button", { type: "button", onclick: () => ask(post(paths.cancel)) }, "Cancel");
  const state = h("p", { class: "big", role: "status" });
  const progress = h("progress", { max: 1, "aria-label": text.progress });
  const notes = h("div", { class: "notes" });

  async function ask(answer) {
    try {
      show(await answer);
    } catch (error) {
      notes.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  function show(report) {
    const running = report.state === "running";
    start.disabled = running;
    cancel.hidden = !running;
    progress.hidden = !running;
    progress.value = report.total ? report.done / report.total : 0;
    const told = {
      idle: text.idle,
      running: report.total ? `${format.count(report.done)} of ${format.count(report.total)} ${text.unit}` : text.running,
      cancelled: "Cancelled",
      failed: "Failed",
    };
    state.replaceChildren(h("b", null, told[report.state] ?? text.done(report)));
    notes.replaceChildren(...[report.problem && h("p", { class: "problem" }, report.problem), ...lines(report)].filter(Boolean));
    if (before !== report.state) {
      before = report.state;
      changed(report);
      announce(state.textContent);
    }
    clearTimeout(timer);
    if (running) timer = setTimeout(() => ask(get(paths.report)), POLL);
  }

  return {
    controls: [h("div", { class: "buttons" }, start, cancel), state, progress, notes],
    load: () => ask(get(paths.report)),
    close: () => clearTimeout(timer),
  };
}
