// The queues as a tree of bars, and what would happen if the weight of a queue changed: #/queues?resource=gpu&queue=ml.

import { h } from "../dom.js";
import { get, path, post, put } from "../api.js";
import { choice, confirmed, panel, problem, table, toast } from "../components.js";
import { amount, plural } from "../format.js";
import { borrowText, inWords, resourcesOf, scaleOf, shareBar, treeOf } from "../queue-bars.js";
import { href } from "../router.js";

const UNITS = { gpu: "GPUs", cpu: "CPUs", memory: "of memory" };

export function queues(context) {
  let shares = null;
  let isTrialNew = false; // it is brought into view once
  let trial = null; // {queue, weight, plan, error}: what a weight would do

  async function load(signal) {
    shares = await get("/shares", { signal });
  }

  async function tryWeight(queue, weight) {
    trial = { queue, weight, plan: null, error: null };
    isTrialNew = true;
    context.update();
    try {
      const plan = await post(path`/queues/${queue}/plan`, { body: { weight } });
      if (trial && trial.queue === queue && trial.weight === weight) trial.plan = plan;
    } catch (error) {
      trial.error = error.message;
    }
    context.update();
  }

  async function setWeight() {
    const { queue, weight, plan } = trial;
    const isSure = await confirmed({
      title: `Set the weight of queue ${queue} to ${weight}?`,
      body: `${sentence(plan.message)} Later plans can start and evict more.`,
      action: "Set weight",
      danger: plan.victims.length > 0,
    });
    if (!isSure) return;
    try {
      const { name, ...fields } = await get(path`/queues/${queue}`);
      await put(path`/queues/${name}`, { body: { ...fields, weight } });
      toast(`Queue ${queue} has weight ${weight}.`);
      trial = null;
      context.refresh();
    } catch (error) {
      toast(error.message, { error: true });
    }
  }

  function view() {
    const resources = resourcesOf(shares);
    const resource = resources.includes(context.params.resource) ? context.params.resource : resources[0] || "gpu";
    const scale = scaleOf(shares, resource);
    const of = (queue, field) => amount(queue[field][resource]);
    const number = (field) => (queue) => (resource in queue[field] ? inWords(resource, of(queue, field)) : "");
    const columns = [
      { title: "queue", class: "grow", cell: (queue) => h("span", { class: `depth-${Math.min(queue.depth, 4)}` }, h("a", { href: href("jobs", { queue: queue.queue }) }, queue.queue)) },
      { title: "", class: "bar-cell line", cell: (queue) => shareBar(queue, resource, scale) },
      { title: "used", class: "n named", cell: number("used") },
      { title: "fair share", class: "n named", cell: number("deserved") },
      { title: "wanted", class: "n named", cell: number("requested") },
      { title: "quota", class: "n named", cell: number("quota") },
      { title: "limit", class: "n named", cell: number("limit") },
      { title: "running", class: "n named", cell: (queue) => (queue.running ? String(queue.running) : "") },
      { title: "pending", class: "n named", cell: (queue) => (queue.pending ? String(queue.pending) : "") },
      { title: "", class: "tight muted", cell: (queue) => queue.stopped ? "stopped" : borrowText(queue, resource) },
      { title: "weight", class: "n named", cell: (queue) => weightCell(queue) },
    ];
    return [
      h(
        "div.row.headline",
        h("h1", "Queues"),
        h("span.muted", `the cluster has ${inWords(resource, amount(shares.capacity[resource]))} ${UNITS[resource] || resource}`),
        h("span.end", choice("Resource", resource, resources.map((name) => [name, name]), (value) => context.setParams({ resource: value }))),
      ),
      panel("Shares", "bar: used, striped: borrowed, grey: wanted · marks: fair share, violet quota, red limit", table(columns, treeOf(shares.queues), { keyOf: (queue) => queue.queue, caption: "Queues", empty: "No queues.", stacks: true })),
      trial ? trialPanel(resource) : h("p.muted", "Change a weight to see what the next plan would do. Nothing changes before you confirm it."),
    ];
  }

  function weightCell(queue) {
    const value = trial && trial.queue === queue.queue ? trial.weight : queue.weight;
    return h("input.weight", {
      type: "number",
      min: 0,
      max: 1000,
      value: String(value),
      "aria-label": `Weight of queue ${queue.queue}`,
      onchange: (event) => {
        const weight = Number(event.target.value);
        if (Number.isInteger(weight) && weight >= 0 && weight !== queue.weight) tryWeight(queue.queue, weight);
        else {
          trial = null;
          context.update();
        }
      },
    });
  }

  function trialPanel(resource) {
    const { queue, weight, plan, error } = trial;
    const title = `If queue ${queue} had weight ${weight}`;
    if (error) return panel(title, null, problem(error));
    if (!plan) return panel(title, null, h("p.muted", "Planning …"));
    const before = new Map(plan.before.map((each) => [each.queue, each]));
    const scale = scaleOf({ ...shares, queues: [...plan.before, ...plan.after] }, resource);
    const share = (each) => inWords(resource, amount(each.deserved[resource]));
    const changed = treeOf(plan.after).filter((each) => share(before.get(each.queue) || each) !== share(each) || each.queue === queue);
    const same = plan.after.length - changed.length;
    const columns = [
      { title: "queue", class: "grow", cell: (each) => h("span", { class: `depth-${Math.min(each.depth, 4)}` }, each.queue) },
      { title: "fair share now", class: "n named", cell: (each) => share(before.get(each.queue) || each) },
      { title: "then", class: "n named", cell: (each) => h(share(before.get(each.queue) || each) === share(each) ? "span" : "strong", share(each)) },
      { title: "", class: "bar-cell line", cell: (each) => shareBar(each, resource, scale) },
    ];
    const isAdmin = context.session.role === "admin";
    return panel(
      title,
      null,
      h("div.why", sentence(plan.message)),
      table(columns, changed, { keyOf: (each) => each.queue, caption: "Fair shares before and after", stacks: true }),
      same ? h("p.muted", `${plural(same, "other queue")} would keep ${same === 1 ? "its" : "their"} fair share.`) : null,
      plan.victims.length ? h("p.muted", `${plural(plan.victims.length, "gang")} would be evicted.`) : null,
      h(
        "div.row.actions",
      { created: intoView, updated: intoView },
        isAdmin ? h("button.primary", { type: "button", onclick: setWeight }, `Set weight ${weight} …`) : h("span.muted", "Only an admin can set a weight."),
        h("button", { type: "button", onclick: () => { trial = null; context.update(); } }, "Discard"),
      ),
    );
  }

  function intoView(node) {
    if (isTrialNew) node.scrollIntoView({ block: "nearest" });
    isTrialNew = false;
  }

  return { title: () => "Queues", load, view, wants: () => true };
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
