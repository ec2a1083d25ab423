// What is going on in the cluster: GPUs in use, what is pending and why, what was lost, and which workers are not there.

import { h } from "../dom.js";
import { get } from "../api.js";
import { card, choice, panel, table } from "../components.js";
import { lineChart } from "../chart.js";
import { decimal, gpuHours, money, percent, plural, since, timeOfDay, whole } from "../format.js";
import { pendingTable } from "../pending-table.js";
import { queueSummary } from "../queue-bars.js";
import { href } from "../router.js";

const SHORTEST_MS = 600_000; // of the chart

export function overview(context) {
  let now = null;
  let usage = null;
  let shares = null;
  let servers = null;
  let cost = null;
  const span = () => (context.params.span === "day" ? "day" : "hour");

  async function load(signal) {
    [now, usage, shares, servers, cost] = await Promise.all([
      get("/overview", { signal }),
      get("/usage", { query: { window: span() }, signal }),
      get("/shares", { signal }),
      get("/servers", { signal }),
      get("/cost", { signal }),
    ]);
  }

  function view() {
    return [
      h("h1.visually-hidden", "Overview"),
      cards(now),
      h(
        "div.cols",
        h(
          "div",
          h(
            "section.panel",
            h(
              "div.row",
              h("h2", "GPUs in use ", h("span.muted", `· one sample per minute, kept for a day`)),
              h("span.end", choice("Over", span(), [["hour", "the last hour"], ["day", "the last day"]], (value) => context.setParams({ span: value }))),
            ),
            usageChart(usage, now, span()),
          ),
          panel("Pending", "reserved starts first, then by priority and age", pendingTable(now.first_pending), moreLink(now)),
          panel("Lost work", "the jobs that lost the most since the beginning", lostTable(cost)),
        ),
        h(
          "div",
          panel("Queues", "used, striped: borrowed, grey: wanted, mark: fair share", queueSummary(shares)),
          now.closed_workers.length ? panel("Workers that take no tasks", null, closedList(now)) : null,
          panel("Ended in the last day", null, endedList(now)),
          panel("Servers", null, serverList(servers)),
        ),
      ),
    ];
  }

  return { title: () => "Overview", load, view, wants: () => true };
}

export function cards(now) {
  const lost = now.evicted.gpu_s + now.failed.gpu_s;
  const cost = now.evicted.cost + now.failed.cost;
  const mean = now.mean_used_share === null ? "" : ` · 24 h mean ${Math.round(100 * now.mean_used_share)} %`;
  const closed = Object.entries(now.workers).filter(([status, count]) => status !== "active" && count);
  return h(
    "div.cards",
    card("GPUs in use", `${decimal(now.used_gpus)} / ${decimal(now.gpus)}`, `${percent(now.used_gpus, now.gpus)}${mean}`, href("cluster")),
    card("Running gangs", whole(now.running), plural(now.running_tasks, "task"), href("jobs", { phase: "running" })),
    card("Pending gangs", whole(now.pending), now.oldest_pending_at ? `oldest ${since(now.oldest_pending_at)}` : "nothing waits", href("jobs", { phase: "pending" })),
    card(
      "Lost work, last day",
      gpuHours(lost),
      `${cost ? `${money(cost)} · ` : ""}${plural(now.evicted.count, "eviction")}, ${plural(now.failed.count, "failure")}`,
    ),
    card(
      "Workers",
      `${whole(now.workers.active)} ok`,
      closed.map(([status, count]) => `${count} ${status}`).join(" · ") || "none lost or cordoned",
      href("cluster", { view: "table" }),
    ),
  );
}

function usageChart(usage, now, span) {
  const points = usage.points.map((point) => [Date.parse(point.at), point.used_gpus]);
  const total = usage.points.map((point) => [Date.parse(point.at), point.gpus]);
  const at = Date.parse(now.at);
  points.push([at, now.used_gpus]);
  total.push([at, now.gpus]);
  const length = span === "day" ? 86_400_000 : 3_600_000;
  // A server that started a moment ago has no more: its samples fill the chart.
  const from = Math.max(at - length, Math.min(points[0][0], at - SHORTEST_MS));
  return lineChart({
    series: [
      { points: total, class: "capacity", label: "GPUs of the cluster" },
      { points, class: "used", label: "GPUs in use", area: true },
    ],
    x: { min: from, max: at, format: timeOfDay },
    y: { min: 0, max: Math.max(1, now.gpus, ...usage.points.map((point) => point.gpus)), format: (value) => decimal(value, 0) },
    label: `GPUs in use over the last ${span}: now ${decimal(now.used_gpus)} of ${decimal(now.gpus)}`,
  });
}

const moreLink = (now) =>
  now.pending > now.first_pending.length ? h("p", h("a", { href: href("jobs", { phase: "pending" }) }, `All ${whole(now.pending)} pending jobs`)) : null;

function endedList(now) {
  const rows = [["done", "done"], ["failed", "failed"], ["timed-out", "timed out"], ["cancelled", "cancelled"]];
  return h(
    "ul.facts",
    rows.map(([phase, words]) => h("li", h("a", { href: href("jobs", { phase }) }, words), h("span.num", whole(now.ended[phase] || 0)))),
  );
}

const closedList = (now) => {
  const count = now.workers.cordoned + now.workers.leaving + now.workers.lost;
  return h(
    "p.list",
    now.closed_workers.map((name) => h("a", { key: name, href: href("cluster", { view: "table" }) }, name)),
    count > now.closed_workers.length ? h("span.muted", `and ${whole(count - now.closed_workers.length)} more`) : null,
  );
};

function lostTable(cost) {
  const hasPrice = Object.keys(cost.price).length > 0;
  const columns = [
    { title: "job", class: "grow", cell: (each) => h("a", { href: href(["job", each.job]) }, each.name) },
    { title: "queue", class: "named", cell: (each) => each.queue },
    { title: "stops", class: "n named", cell: (each) => whole(each.lost.count) },
    { title: "lost", class: "n named", cell: (each) => gpuHours(each.lost.gpu_s) },
  ];
  if (hasPrice) columns.push({ title: "cost", class: "n named", cell: (each) => money(each.lost.cost) });
  return table(columns, cost.jobs.slice(0, 5), { keyOf: (each) => each.job, caption: "Jobs that lost the most work", empty: "No work was lost to evictions or failures.", stacks: true });
}

function serverList({ leader, standbys }) {
  return h(
    "ul.facts",
    leader
      ? h("li", h("span", leader.name, h("span.muted", ` leader, term ${leader.term}`)), h("code", leader.url))
      : h("li", "No server leads at the moment."),
    standbys.map((each) => h("li", { key: each.name }, h("span", each.name, h("span.muted", each.silent_s === null ? " standby" : ` standby, not heard for ${each.silent_s} s`)), h("a", { href: each.url, rel: "noreferrer" }, h("code", each.url)))),
  );
}
