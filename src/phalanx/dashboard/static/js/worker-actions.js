// What an admin can do to a worker: cordon, uncordon, drain. A dialog says the consequences first.

import { h } from "./dom.js";
import { path, post } from "./api.js";
import { actor, workText } from "./job-actions.js";
import { plural } from "./format.js";

// `jobs`: those that run on the worker, [{name, phase, since, gpus}], with the GPUs of the whole gang.
export function workerActions(worker, jobs, refresh) {
  const act = actor(refresh);
  const button = (title, onclick) => h("button.small", { type: "button", onclick }, title);
  const uncordon = button("Uncordon …", () =>
    act({ title: `Uncordon ${worker.id}?`, body: "New tasks may be placed on it.", action: "Uncordon" }, () => post(path`/workers/${worker.id}/uncordon`), `${worker.id} is not cordoned`));
  const cordon = button("Cordon …", () =>
    act({ title: `Cordon ${worker.id}?`, body: `No new task is placed on it. ${runsText(jobs, "continues", "continue")}`, action: "Cordon" }, () => post(path`/workers/${worker.id}/cordon`), `${worker.id} is cordoned`));
  const drain = button("Drain …", () =>
    act({ title: `Drain ${worker.id}?`, body: drainText(jobs), action: "Drain", danger: true }, () => post(path`/workers/${worker.id}/drain`), `${worker.id} is being drained`));
  if (worker.status === "lost") return null;
  return h("span.buttons", worker.status === "active" ? cordon : uncordon, worker.status === "leaving" ? null : drain);
}

const runsText = (jobs, one, many) => (jobs.length ? `What runs on it ${jobs.length === 1 ? one : many}: ${namesOf(jobs)}.` : "Nothing runs on it.");

function drainText(jobs) {
  if (!jobs.length) return "Nothing runs on it. No new task is placed on it.";
  const atMost = jobs.reduce((sum, job) => sum + (job.since ? job.gpus * Math.max(0, (Date.now() - Date.parse(job.since)) / 1000) : 0), 0);
  const work = atMost ? ` At most ${workText(atMost)} are lost: the work since the last checkpoint.` : "";
  return `It evicts ${plural(jobs.length, "gang")} with all tasks (${namesOf(jobs)}). ${jobs.length === 1 ? "It is" : "They are"} requeued and can start on other workers.${work}`;
}

function namesOf(jobs) {
  const names = jobs.slice(0, 4).map((job) => job.name || "a job of another namespace");
  return names.join(", ") + (jobs.length > 4 ? ` and ${jobs.length - 4} more` : "");
}
