// What a user can do to a job. Every change is confirmed in a dialog that says its consequences.

import { h } from "./dom.js";
import { post, remove, path } from "./api.js";
import { confirmed, toast } from "./components.js";
import { decimal, money, plural } from "./format.js";
import { href } from "./router.js";

const ENDED = new Set(["done", "failed", "cancelled", "timed-out"]);
const WITH_PROCESSES = new Set(["running", "starting"]);

export function workText(gpuSeconds, cost = 0) {
  const [count, unit] = gpuSeconds >= 360 ? [decimal(gpuSeconds / 3600), "GPU-hour"] : [decimal(gpuSeconds, 0), "GPU-second"];
  const work = `${count} ${unit}${count === "1" ? "" : "s"}`;
  return cost ? `${work} (${money(cost)})` : work;
}

export function victimsText(victims) {
  if (!victims.length) return "It evicts nothing.";
  const lost = victims.reduce((sum, victim) => sum + victim.gpu_s, 0);
  const cost = victims.reduce((sum, victim) => sum + victim.cost, 0);
  const names = victims.slice(0, 3).map((victim) => victim.name || "a job of another namespace");
  const more = victims.length > 3 ? ` and ${victims.length - 3} more` : "";
  return `It evicts ${plural(victims.length, "gang")} (${names.join(", ")}${more}) and loses about ${workText(lost, cost)} since their last checkpoint.`;
}

// A function that asks, sends a request, says that it is done, and loads the page again.
export const actor = (refresh) => async (question, request, done) => {
  if (!(await confirmed(question))) return;
  try {
    const answer = await request();
    toast(done);
    refresh();
    return answer;
  } catch (error) {
    toast(error.message, { error: true });
  }
};

// The actions that the phase allows: [{title, run, danger}]. `atRisk` is in GPU-seconds, or null if unknown.
export function actionsOf(job, { atRisk, refresh }) {
  const act = actor(refresh);
  const name = `${job.namespace}/${job.name}`;
  const stops = WITH_PROCESSES.has(job.phase)
    ? `Its ${plural(job.size, "task")} are stopped together and may save a checkpoint first.${atRisk ? ` Without one, about ${workText(atRisk)} of work are lost.` : ""}`
    : "It is not running, so no work is lost.";
  const all = {
    hold: { title: "Hold …", run: () => act({ title: `Hold ${name}?`, body: "It does not start until it is released. Running tasks continue.", action: "Hold" }, () => post(path`/jobs/${job.id}/hold`), `${name} is on hold`) },
    release: { title: "Release …", run: () => act({ title: `Release ${name}?`, body: "It may start as soon as there is capacity.", action: "Release" }, () => post(path`/jobs/${job.id}/release`), `${name} is released`) },
    requeue: { title: "Requeue …", run: () => act({ title: `Requeue ${name}?`, body: `${stops} It is pending again afterwards; this does not count as a failure.`, action: "Requeue" }, () => post(path`/jobs/${job.id}/requeue`), `${name} is being requeued`) },
    priority: { title: "Priority …", run: () => changePriority(job, act) },
    cancel: { title: "Cancel …", danger: true, run: () => act({ title: `Cancel ${name}?`, body: `${stops} It cannot be resumed, only submitted again.`, action: "Cancel the job", danger: true }, () => remove(path`/jobs/${job.id}`), `${name} is cancelled`) },
    retry: {
      title: "Retry …",
      run: async () => {
        const made = await act({ title: `Retry ${name}?`, body: "A new job with the same specification is submitted, without its dependencies.", action: "Retry" }, () => post(path`/jobs/${job.id}/retry`), `${name} is submitted again`);
        if (made) location.hash = href(["job", made.id]);
      },
    },
  };
  if (ENDED.has(job.phase)) return [all.retry];
  const held = job.on_hold ? all.release : all.hold;
  return WITH_PROCESSES.has(job.phase) ? [held, all.priority, all.requeue, all.cancel] : [held, all.priority, all.cancel];
}

function changePriority(job, act) {
  let wanted = job.priority;
  const field = h("label.field", h("span", "New priority"), h("input", { type: "number", value: String(job.priority), oninput: (event) => (wanted = Number(event.target.value)) }));
  const body = [h("p", "With a higher priority it is served earlier, and may evict jobs of its queue that have a lower one."), field];
  return act({ title: `Change the priority of ${job.namespace}/${job.name}`, body, action: "Change the priority" }, () => setPriority(job, wanted), "The priority is changed");
}

export const setPriority = (job, priority) => post(path`/jobs/${job.id}/priority`, { body: { priority } });
