// The list of jobs, newest first, with filters in the address: #/jobs?phase=pending&queue=ml.

import { h } from "../dom.js";
import { get } from "../api.js";
import { bar, choice, panel, pill, table, textField } from "../components.js";
import { cronTable } from "../cron-table.js";
import { duration, since, whole } from "../format.js";
import { href } from "../router.js";

const PHASES = ["running", "starting", "stopping", "pending", "done", "failed", "cancelled", "timed-out"];
const PAGE_SIZE = 100;

export function jobs(context) {
  let list = { jobs: [], cursor: null };
  let crons = [];
  let pages = 1; // how many pages of the list are shown
  const shown = () => context.params;

  async function load(signal) {
    const filters = { ...shown(), limit: PAGE_SIZE };
    let all = [];
    let cursor = null;
    for (let page = 0; page < pages; page++) {
      const answer = await get("/jobs", { query: { ...filters, cursor }, signal });
      all = all.concat(answer.jobs);
      cursor = answer.cursor;
      if (!cursor) break;
    }
    list = { jobs: all, cursor };
    context.ready();
    crons = await get("/crons", { query: { namespace: shown().namespace }, signal });
  }

  const filter = (name) => (value) => {
    pages = 1;
    context.setParams({ [name]: value });
  };

  const columns = [
    { title: "job", class: "grow", cell: (job) => h("a", { href: href(["job", job.id]) }, `${job.namespace}/${job.name}`) },
    { title: "phase", class: "tight", cell: (job) => [pill(job.phase), job.on_hold ? " on hold" : ""] },
    { title: "queue", class: "named", cell: (job) => job.queue },
    { title: "priority", class: "n named", cell: (job) => String(job.priority) },
    { title: "tasks", class: "n named", cell: (job) => (job.elements ? `${whole(job.elements.total)} elements` : String(job.size)) },
    { title: "attempt", class: "n wide-only", cell: (job) => String(job.attempt) },
    { title: "age", class: "n named", cell: (job) => since(job.created_at) },
    { title: "progress, or why", class: "line", cell: (job) => progressOf(job) || h("span.muted", (job.reason && job.reason.message) || job.cause || (job.elements ? elementsText(job.elements) : "")) },
    { title: "owner", class: "wide-only", cell: (job) => job.owner || "" },
  ];

  // Of a running job: a bar if the last step is known, and the step.
  function progressOf({ progress, phase }) {
    if (!progress || phase !== "running") return null;
    const { step, total, eta_s: eta } = progress;
    const words = `step ${whole(step)}${total ? ` of ${whole(total)}` : ""}${eta ? ` · ${duration(eta)} left` : ""}`;
    return h("div.step", total ? bar([{ value: step, class: "run" }], total, { label: words }) : null, h("span.muted", words));
  }

  function view() {
    const filters = shown();
    return [
      h("div.row.headline", h("h1", "Jobs"), h("span.muted", `${list.jobs.length}${list.cursor ? "+" : ""} shown, newest first`)),
      h(
        "form.filters",
        { role: "search", onsubmit: (event) => event.preventDefault() },
        choice("Phase", filters.phase || "", [["", "all"], ...PHASES.map((phase) => [phase, phase])], filter("phase")),
        choice("State", filters.finished || "", [["", "all"], ["false", "unfinished"], ["true", "finished"]], filter("finished")),
        textField("Queue", filters.queue, filter("queue"), "exact name"),
        textField("Namespace", filters.namespace, filter("namespace"), "exact name"),
        textField("Name", filters.name_contains, filter("name_contains"), "part of a name"),
      ),
      h("div.panel", table(columns, list.jobs, { keyOf: (job) => job.id, caption: "Jobs", empty: "No job matches the filters.", stacks: true })),
      list.cursor
        ? h("button", { type: "button", onclick: () => { pages += 1; context.refresh(); } }, `Show ${PAGE_SIZE} more`)
        : null,
      crons.length ? panel("Crons", "their runs are jobs of the list", cronTable(crons, context.refresh)) : null,
    ];
  }

  return { title: () => "Jobs", load, view, wants: (event) => "job" in event.data || event.kind.startsWith("Cron") };
}
