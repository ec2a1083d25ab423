// The first pending jobs and why they are pending, in the words of `phalanx why`.

import { h } from "./dom.js";
import { table } from "./components.js";
import { clock, since } from "./format.js";
import { href } from "./router.js";

export function pendingTable(jobs, { withAge = true } = {}) {
  const columns = [
    { title: "job", class: "grow", cell: (job) => h("a", { href: href(["job", job.job]) }, job.name) },
    { title: "needs", class: "tight", cell: (job) => needs(job) },
    { title: "why", class: "line", cell: (job) => h("span.muted", (job.reason && job.reason.message) || "queued for the next plan") },
    { title: "expected", class: "n named", cell: (job) => (job.starts_at ? clock(job.starts_at) : "") },
    { title: "pending", class: "n named", cell: (job) => since(job.since) },
  ];
  if (!withAge) columns.pop();
  return table(columns, jobs, { keyOf: (job) => job.job, caption: "Pending jobs", empty: "Nothing is pending.", stacks: true });
}

// 8 × 1 GPU
function needs(job) {
  const gpus = job.resources.gpu;
  if (!gpus) return job.size === 1 ? "1 task" : `${job.size} tasks`;
  return `${job.size} × ${gpus} GPU`;
}
