// Queues as a tree of bars: used, wanted, fair share, quota and limit of one resource.

import { h } from "./dom.js";
import { bar, table } from "./components.js";
import { amount, bytes, decimal } from "./format.js";
import { href } from "./router.js";

// Queues below their parents, with their depth.
export function treeOf(queues) {
  const names = new Set(queues.map((queue) => queue.queue));
  const children = new Map();
  for (const queue of queues) {
    const parent = names.has(queue.parent) ? queue.parent : "";
    children.set(parent, [...(children.get(parent) || []), queue]);
  }
  const ordered = [];
  const walk = (parent, depth) => {
    for (const queue of children.get(parent) || []) {
      ordered.push({ ...queue, depth });
      walk(queue.queue, depth + 1);
    }
  };
  walk("", 0);
  return ordered;
}

// The resource that people look at first, and all resources that queues use or the cluster has.
export function resourcesOf(shares) {
  const names = new Set(Object.keys(shares.capacity));
  shares.queues.forEach((queue) => Object.keys(queue.used).forEach((name) => names.add(name)));
  return [...names].sort((a, b) => (b === "gpu") - (a === "gpu") || (a < b ? -1 : 1));
}

export function inWords(resource, value) {
  return resource === "memory" ? bytes(value) : decimal(value, 1);
}

// One bar: what the queue uses within its fair share, what it borrows, and what it wants in addition.
export function shareBar(queue, resource, scale) {
  const of = (field) => amount(queue[field][resource]);
  const used = of("used");
  const borrowed = Math.min(used, of("borrowed"));
  const words = (field) => inWords(resource, of(field));
  const marks = [{ value: of("deserved"), class: "fair", title: `fair share ${words("deserved")}` }];
  if (resource in queue.quota) marks.push({ value: of("quota"), class: "quota", title: `quota ${words("quota")}` });
  if (resource in queue.limit) marks.push({ value: of("limit"), class: "limit", title: `limit ${words("limit")}` });
  return bar(
    [
      { value: used - borrowed, title: `used ${words("used")}` },
      { value: borrowed, class: "borrowed", title: `borrowed ${words("borrowed")}` },
      { value: Math.min(of("requested"), scale - used), class: "soft", title: `wanted ${words("requested")}` },
    ],
    scale,
    {
      marks,
      label: `${queue.queue}: uses ${words("used")}, wants ${words("requested")} more, fair share ${words("deserved")}`,
    },
  );
}

// The length of a whole bar. What queues want is cut off at a third more than any of them uses or deserves: a queue may want a
// hundred times as much, and what it uses would not be seen.
export function scaleOf(shares, resource) {
  const of = (queue, field) => amount(queue[field][resource]);
  const ends = shares.queues.map((queue) => of(queue, "used") + of(queue, "requested"));
  const marks = shares.queues.map((queue) => Math.max(of(queue, "used"), of(queue, "deserved"), of(queue, "quota")));
  const longest = Math.max(1, ...marks);
  return Math.min(Math.max(longest, ...ends), (4 / 3) * longest);
}

const FEW_QUEUES = 8;
const isIdle = (queue) => !queue.running && !queue.pending && !queue.stopped && !Object.keys(queue.used).length;

// A short table for the side of other pages. Of many queues, those without jobs are left out.
export function queueSummary(shares) {
  const [resource = "gpu"] = resourcesOf(shares);
  const scale = scaleOf(shares, resource);
  const of = (queue, field) => amount(queue[field][resource]);
  const columns = [
    { title: "queue", class: "tight grow", cell: (queue) => h("a", { class: `depth-${Math.min(queue.depth, 4)}`, href: href("queues", { queue: queue.queue }) }, queue.queue) },
    { title: "", class: "bar-cell line", cell: (queue) => shareBar(queue, resource, scale) },
    { title: "used", class: "n named", cell: (queue) => inWords(resource, of(queue, "used")) },
    { title: "fair", class: "n named", cell: (queue) => inWords(resource, of(queue, "deserved")) },
    { title: "", class: "note", cell: (queue) => h("span.muted", noteOf(queue, resource)) },
  ];
  const all = treeOf(shares.queues);
  const shown = all.length > FEW_QUEUES ? all.filter((queue) => !isIdle(queue)) : all;
  const rest = all.length - shown.length;
  return [table(columns, shown, { keyOf: (queue) => queue.queue, caption: "Queues", empty: "No queues.", stacks: true }), rest ? h("p.muted.more", h("a", { href: href("queues") }, `${rest} more`), " without jobs") : null];
}

export function noteOf(queue, resource) {
  if (queue.stopped) return "stopped";
  return borrowText(queue, resource) || (queue.pending ? `${queue.pending} pending` : "");
}

export function borrowText(queue, resource) {
  const borrowed = amount(queue.borrowed[resource]);
  return borrowed ? `borrows ${inWords(resource, borrowed)}` : "";
}
