// The elements of an array: how many are in which phase, and a list of them.

import { h } from "./dom.js";
import { get, path, post } from "./api.js";
import { bar, choice, panel, pill, table } from "./components.js";
import { clock, plural, whole } from "./format.js";
import { actor } from "./job-actions.js";
import { href } from "./router.js";

const PER_PAGE = 100;
// [name in the view, phase, class of the bar]
const COUNTS = [
  ["done", "done", "done"],
  ["running", "running", "run"],
  ["starting", "starting", "res"],
  ["stopping", "stopping", "stop"],
  ["failed", "failed", "fail"],
  ["timed_out", "timed-out", "fail"],
  ["cancelled", "cancelled", "soft"],
];

export const elementsText = (elements) =>
  [...COUNTS, ["pending", "pending"], ["never_ran", "never ran"]]
    .filter(([name]) => elements[name])
    .map(([name, words]) => `${whole(elements[name])} ${words}`)
    .join(", ");

// Part of the page of an array: `load(signal)` and `view(array)`.
export function elementList(context, id) {
  let shown = [];
  let cursor = null;
  let pages = 1;

  async function load(signal) {
    let all = [];
    let next = null;
    for (let page = 0; page < pages; page++) {
      const answer = await get(path`/jobs/${id}/elements`, { query: { phase: context.params.phase, limit: PER_PAGE, cursor: next }, signal });
      all = all.concat(answer.elements);
      next = answer.cursor;
      if (!next) break;
    }
    shown = all;
    cursor = next;
  }

  function progress({ elements }) {
    const parts = COUNTS.filter(([name]) => elements[name]).map(([name, words, kind]) => ({ value: elements[name], class: kind, title: `${elements[name]} ${words}` }));
    return h("div.progress", bar(parts, elements.total, { label: elementsText(elements) }), h("span.num", `${whole(elements.total - elements.pending - elements.running - elements.starting - elements.stopping)} of ${plural(elements.total, "element")} ended`));
  }

  function retryButton(array) {
    const { failed, timed_out: late, cancelled, never_ran: never } = array.elements;
    const count = failed + late + cancelled + never;
    if (!count) return null;
    const question = { title: `Run ${plural(count, "element")} again?`, body: "All elements that ended without success are pending again. Those that are done stay as they are.", action: "Run again" };
    return h("button", { type: "button", onclick: () => actor(context.refresh)(question, () => post(path`/jobs/${id}/retry`, { query: { failed: true } }), `${plural(count, "element")} run again`) }, "Retry what failed …");
  }

  function view(array) {
    const phases = ["pending", ...COUNTS.map(([, phase]) => phase)];
    return [
      progress(array),
      panel(
        "Elements",
        elementsText(array.elements) + (array.elements.parallel ? ` · at most ${array.elements.parallel} run at the same time` : ""),
        h("div.filters", choice("Phase", context.params.phase || "", [["", "all"], ...phases.map((phase) => [phase, phase])], (phase) => { pages = 1; context.setParams({ phase }); }), retryButton(array)),
        table([
          { title: "element", cell: (element) => h("a", { href: href(["job", element.id]) }, element.id) },
          { title: "phase", class: "tight", cell: (element) => pill(element.phase) },
          { title: "parameters", cell: (element) => Object.entries(element.params || {}).map(([name, value]) => `${name}=${value}`).join(", ") },
          { title: "attempt", class: "n", cell: (element) => (element.attempt ? String(element.attempt) : "never ran") },
          { title: "ended", class: "tight", cell: (element) => (element.finished_at ? clock(element.finished_at) : "") },
          { title: "why", cell: (element) => h("span.muted", element.cause || "") },
        ], shown, { keyOf: (element) => element.id, caption: "Elements", empty: "No element is in this phase." }),
        cursor ? h("button", { type: "button", onclick: () => { pages += 1; context.refresh(); } }, `Show ${PER_PAGE} more`) : null,
      ),
    ];
  }

  return { load, view };
}
