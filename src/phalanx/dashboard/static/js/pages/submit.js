// Submit a job: YAML in any dialect, checked while it is written, planned before it is submitted.

import { h } from "../dom.js";
import { call, post } from "../api.js";
import { panel, problem, table, toast } from "../components.js";
import { keepDraft, keptDraft } from "../draft.js";
import { clock } from "../format.js";
import { victimsText } from "../job-actions.js";
import { href } from "../router.js";
import { lineOf } from "../yaml-lines.js";

const PAUSE_MS = 400; // after the last key, before the text is checked
const TYPE = "application/yaml";
const EXAMPLE = `name: hello
roles:
  worker:
    replicas: 2
    command: echo rank $RANK of $WORLD_SIZE
`;

export function submit(context) {
  let text = keptDraft() || EXAMPLE;
  let plan = null;
  let error = null; // the ApiError of the last check
  let isChecking = false;
  let timer = 0;
  let number = 0; // of the check, so that an older answer is dropped

  async function check() {
    const own = ++number;
    isChecking = true;
    context.update();
    try {
      const answer = await call("POST", "/plan", { body: text, type: TYPE });
      if (own === number) [plan, error] = [answer, null];
    } catch (refusal) {
      if (own === number) [plan, error] = [null, refusal];
    }
    if (own !== number) return;
    isChecking = false;
    context.update();
  }

  function edit(value) {
    text = value;
    keepDraft(text);
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE_MS);
  }

  async function send() {
    try {
      const made = await post("/jobs", { body: text, type: TYPE });
      const warnings = (made.warnings || []).map((each) => each.message);
      toast(["Submitted.", ...warnings].join(" "));
      location.hash = made.id ? href(["job", made.id]) : href("jobs");
    } catch (refusal) {
      [plan, error] = [null, refusal];
      context.update();
    }
  }

  const problems = () =>
    !error ? [] : (error.details.length ? error.details : [{ path: "", message: error.message }]).map((each) => ({ line: lineOf(text, each), text: [each.path, each.message].filter(Boolean).join(" ") }));

  function editor() {
    const wrong = new Set(problems().map((each) => each.line));
    const count = text.split("\n").length;
    return h(
      "div.editor",
      h("pre.gutter", { "aria-hidden": "true" }, Array.from({ length: count }, (_, index) => h("span", { class: wrong.has(index + 1) ? "wrong" : undefined }, `${index + 1}\n`))),
      h("textarea", {
        id: "spec", spellcheck: "false", autocapitalize: "off", rows: Math.max(18, count + 1), value: text, "aria-label": "Job, as YAML or JSON",
        "aria-invalid": String(Boolean(error)), "aria-describedby": "verdict", oninput: (event) => edit(event.target.value),
      }),
    );
  }

  function verdict() {
    if (error) return h("div", { id: "verdict" }, problems().map((each) => problem(each.line ? `Line ${each.line}: ${each.text}` : each.text)));
    if (!plan) return h("p.muted", { id: "verdict" }, "Checking …");
    return h(
      "div", { id: "verdict", role: "status" },
      h("div.why", { class: plan.starts ? "good" : undefined }, h("b", plan.message), plan.starts_at ? ` Expected start: ${clock(plan.starts_at)}.` : ""),
      (plan.victims || []).length ? h("p", victimsText(plan.victims)) : null,
      plan.warnings.map((each) => h("p", h("b", "Warning: "), each.message)),
      (plan.alternatives || []).length ? [h("h3", "What would help"), h("ul", plan.alternatives.map((each) => h("li", each.message)))] : null,
      (plan.placements || []).length ? placements() : null,
    );
  }

  function placements() {
    const byWorker = new Map();
    for (const each of plan.placements) byWorker.set(each.worker, [...(byWorker.get(each.worker) || []), each.task]);
    return table([{ title: "worker", cell: ([worker]) => worker }, { title: "tasks", cell: ([, tasks]) => tasks.join(", ") }], [...byWorker], { keyOf: ([worker]) => worker, caption: "Where the tasks would run" });
  }

  return {
    title: () => "Submit",
    load: check,
    view: () => [
      h("div.row.headline", h("h1", "Submit a job"), h("span.muted", "native files, Kubernetes PodGroups, Volcano, Kubeflow and the other dialects")),
      h("div.cols",
        h("section.panel", h("h2", "Specification"), editor(), h("div.row", h("button.primary", { type: "button", disabled: Boolean(error), onclick: send }, "Submit"))),
        panel("What would happen", isChecking ? "checking …" : null, verdict())),
    ],
    close: () => clearTimeout(timer),
  };
}
