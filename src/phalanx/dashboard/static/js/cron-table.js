// The crons: when each is due next, how its last run went, and what can be done to it.

import { h } from "./dom.js";
import { path, post } from "./api.js";
import { table } from "./components.js";
import { clock } from "./format.js";
import { actor } from "./job-actions.js";
import { href } from "./router.js";

export function cronTable(crons, refresh) {
  const columns = [
    { title: "cron", class: "grow", cell: nameOf },
    { title: "schedule", cell: (cron) => [h("code", cron.cron), h("span.muted", ` ${cron.timezone}`)] },
    { title: "next run", class: "n named", cell: (cron) => (cron.paused ? "paused" : cron.next_at ? clock(cron.next_at) : "") },
    { title: "last run", class: "named", cell: lastOf },
    { title: "queue", class: "named", cell: (cron) => cron.queue },
    { title: "", class: "tight", cell: (cron) => actionsOf(cron, actor(refresh)) },
  ];
  return table(columns, crons, { keyOf: nameOf, caption: "Crons", stacks: true });
}

const nameOf = (cron) => `${cron.namespace}/${cron.name}`;

function lastOf({ last }) {
  if (!last) return "";
  const words = `${clock(last.due_at)}, ${last.outcome}`;
  return last.job ? h("a", { href: href(["job", last.job]) }, words) : words;
}

function actionsOf(cron, act) {
  const name = nameOf(cron);
  const call = (verb) => () => post(`${path`/crons/${cron.namespace}/${cron.name}`}/${verb}`);
  const button = (title, question, verb, done) => h("button.small", { type: "button", onclick: () => act({ title: `${title} ${name}?`, action: title, ...question }, call(verb), done) }, `${title} …`);
  return h(
    "span.buttons",
    cron.paused
      ? button("Resume", { body: "Runs start at their times again. Those that were due during the pause are not made up for." }, "resume", `${name} is resumed`)
      : button("Pause", { body: "No run starts until the cron is resumed. Unfinished runs continue." }, "pause", `${name} is paused`),
    button("Run now", { body: "A run starts now, beside those of the schedule." }, "run", `A run of ${name} is submitted`),
  );
}
