// Every worker as a row of its GPUs, coloured by job and grouped by a label: #/cluster?group=rack&view=table.

import { h } from "../dom.js";
import { get } from "../api.js";
import { bar, card, choice, panel, pill, table } from "../components.js";
import { atPoint, detailOf, devicesOf, drawMap, isStranded, isWhole, noteOf, sizeOf } from "../cluster-map.js";
import { coloursOf, isDark } from "../colours.js";
import { amount, bytes, clock, decimal, percent, plural, since, whole } from "../format.js";
import { pendingTable } from "../pending-table.js";
import { queueSummary } from "../queue-bars.js";
import { href } from "../router.js";
import { workerActions } from "../worker-actions.js";

const NO_GROUP = "-";
const LEGEND = 10;
const TABLE_ROWS = 100;

export function cluster(context) {
  let map = null;
  let shares = null;
  let now = null;
  let largest = [];
  let labels = []; // that workers have
  let grouped = { label: null, groups: [] }; // by the label, until the map is loaded again
  let facts = null; // for the cards
  let hovered = null; // {worker, device, x, y}
  let highlight = null; // id of a job
  let tableRows = TABLE_ROWS;

  async function load(signal) {
    // The map is shown as soon as it is there.
    const rest = Promise.all([get("/shares", { signal }), get("/overview", { signal })]);
    rest.catch(() => {}); // if the map fails, that is the error to show
    map = await get("/map", { signal });
    arrange();
    if (hovered) hovered.worker = map.workers.find((worker) => worker.id === hovered.worker.id);
    if (hovered && !hovered.worker) hovered = null;
    context.ready();
    [shares, now] = await rest;
  }

  function groupLabel() {
    const wanted = context.params.group;
    if (wanted === NO_GROUP || labels.includes(wanted)) return wanted;
    return labels.includes("rack") ? "rack" : NO_GROUP;
  }

  function groups() {
    const label = groupLabel();
    if (grouped.label === label) return grouped.groups;
    const found = new Map();
    for (const worker of map.workers) {
      const name = label === NO_GROUP ? "" : worker.labels[label] || `no ${label}`;
      if (found.has(name)) found.get(name).push(worker);
      else found.set(name, [worker]);
    }
    grouped = { label, groups: [...found].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })) };
    return grouped.groups;
  }

  function view() {
    const label = groupLabel();
    const isTable = context.params.view === "table";
    return [
      h("h1.visually-hidden", "Cluster"),
      cards(),
      h(
        "div.cols",
        h(
          "section.panel",
          h(
            "div.row",
            h("h2", "Workers ", isTable ? null : h("span.muted", "· one square is one GPU, coloured by job · striped amber: free, but too small for any pending gang")),
            h(
              "span.end",
              choice("Group by", label, [[NO_GROUP, "nothing"], ...labels.map((name) => [name, name])], (value) => context.setParams({ group: value })),
              choice("As", isTable ? "table" : "map", [["map", "map"], ["table", "table"]], (value) => context.setParams({ view: value })),
            ),
          ),
          map.workers.length === 0 ? h("p.muted", "No worker has registered. ", h("code", "phalanx worker --server URL"), " starts one.") : isTable ? workerTable() : mapView(label),
        ),
        h(
          "div",
          panel("Queues", "used, striped: borrowed, grey: wanted, mark: fair share", shares ? queueSummary(shares) : h("p.muted", "Loading …")),
          panel("Pending", "and why", now ? pendingTable(now.first_pending, { withAge: false }) : h("p.muted", "Loading …")),
        ),
      ),
      tooltip(),
    ];
  }

  function cards() {
    const closed = Object.entries(facts.statuses).filter(([status, count]) => status !== "active" && count);
    return h(
      "div.cards",
      card("GPUs in use", `${decimal(facts.used)} / ${decimal(facts.gpus)}`, percent(facts.used, facts.gpus)),
      card("Whole nodes free", whole(facts.wholes), `of ${plural(map.workers.length, "worker")}`),
      card("Largest free block", plural(facts.largestFree, "GPU"), "on one worker"),
      card(
        "Stranded GPUs",
        decimal(facts.stranded),
        map.smallest_request === null ? "no pending gang requests GPUs" : `pending tasks request at least ${decimal(map.smallest_request)}`,
      ),
      card("Workers", `${whole(facts.statuses.active)} ok`, closed.map(([status, count]) => `${count} ${status}`).join(" · ") || "none lost or cordoned"),
    );
  }

  // What is computed once for a map: the jobs by their GPUs, the largest first ([position, GPUs]), which get their colours in
  // this order, the labels, and the facts of the cards.
  function arrange() {
    const sizes = new Map(map.jobs.map((job, position) => [position, 0]));
    for (const worker of map.workers) for (const task of worker.tasks) sizes.set(task.job, sizes.get(task.job) + task.devices.length);
    largest = [...sizes].sort((a, b) => b[1] - a[1]);
    const colours = coloursOf(largest.map(([position]) => nameOf(position)));
    map.jobs.forEach((job, position) => { job.colour = colours.get(nameOf(position)); });
    labels = [...new Set(map.workers.flatMap((worker) => Object.keys(worker.labels)))].sort().slice(0, 30);
    grouped = { label: null, groups: [] };
    const free = (workers) => workers.map((worker) => amount(worker.free.gpu));
    const present = map.workers.filter((worker) => worker.status !== "lost");
    const gpus = present.reduce((sum, worker) => sum + worker.gpus, 0);
    const statuses = { active: 0, cordoned: 0, leaving: 0, lost: 0 };
    for (const worker of map.workers) statuses[worker.status] += 1;
    facts = {
      gpus,
      used: gpus - free(present).reduce((sum, gpus) => sum + gpus, 0),
      statuses,
      wholes: map.workers.filter(isWhole).length,
      stranded: free(map.workers.filter((worker) => isStranded(worker, map.smallest_request))).reduce((sum, gpus) => sum + gpus, 0),
      largestFree: free(map.workers.filter((worker) => worker.status === "active")).reduce((most, gpus) => Math.max(most, gpus), 0),
    };
  }

  const nameOf = (position) => map.jobs[position].name || `a job of queue ${map.jobs[position].queue}`;

  function legend() {
    const first = largest.filter(([, gpus]) => gpus);
    return h(
      "p.legend",
      first.slice(0, LEGEND).map(([position, gpus]) => {
        const job = map.jobs[position];
        return h(
          "span",
          { key: job.id || `hidden ${position}`, onmouseenter: () => lightUp(job.id), onmouseleave: () => lightUp(null) },
          h("span.swatch", { style: { background: job.colour } }),
          job.id ? h("a", { href: href(["job", job.id]) }, nameOf(position)) : nameOf(position),
          h("span.muted", ` ${gpus}`),
        );
      }),
      first.length > LEGEND ? h("span.muted", `and ${plural(first.length - LEGEND, "job")} more`) : null,
    );
  }

  function lightUp(job) {
    highlight = job;
    context.update();
  }

  function mapView(label) {
    const detail = detailOf(map.workers.length);
    const all = groups();
    return [
      legend(),
      h(
        "div.map",
        { class: detail.name ? undefined : "dense" },
        all.map(([name, workers]) => {
          const used = workers.reduce((sum, worker) => sum + worker.gpus - amount(worker.free.gpu), 0);
          const gpus = workers.reduce((sum, worker) => sum + worker.gpus, 0);
          const words = `${plural(workers.length, "worker")}, ${decimal(used)} of ${gpus} GPUs in use`;
          return h(
            "div.group",
            { key: name || " all" },
            name ? h("h3", label === "rack" && /^\d+$/.test(name) ? `rack ${name}` : name, h("span.muted", ` ${decimal(used)} / ${gpus}`)) : null,
            h("canvas", {
              role: "img",
              "aria-label": `${name || "all workers"}: ${words}`,
              created: (canvas) => draw(canvas, workers, detail),
              updated: (canvas) => draw(canvas, workers, detail),
              onmousemove: (event) => hover(event, workers, detail),
              onmouseleave: () => hover(null),
              onclick: (event) => open(event, workers, detail),
            }),
          );
        }),
      ),
      h("p.muted", "The table shows the same to screen readers: choose As table."),
    ];
  }

  function draw(canvas, workers, detail) {
    const { width, height } = sizeOf(workers, detail);
    const state = [map, highlight, width, height, isDark(), devicePixelRatio];
    const before = canvas.drawn;
    if (before && before.every((each, index) => each === state[index])) return;
    canvas.drawn = state;
    drawMap(canvas, workers, map.jobs, detail, map.smallest_request, highlight);
  }

  const found = (event, workers, detail) => {
    const box = event.target.getBoundingClientRect();
    const stretch = sizeOf(workers, detail).width / box.width;
    return atPoint(workers, detail, (event.clientX - box.left) * stretch, (event.clientY - box.top) * stretch);
  };

  function hover(event, workers, detail) {
    const place = event && found(event, workers, detail);
    hovered = place ? { ...place, x: event.clientX, y: event.clientY } : null;
    context.update();
  }

  function open(event, workers, detail) {
    const place = found(event, workers, detail);
    const [task] = (place && place.device !== null && devicesOf(place.worker)[place.device]) || [];
    const job = task && map.jobs[task.job];
    if (job && job.id) location.hash = href(["job", job.id]);
  }

  function tooltip() {
    if (!hovered) return null;
    const { worker, device, x, y } = hovered;
    const tasks = device === null ? [] : devicesOf(worker)[device] || [];
    const lines = tasks.map((task) => {
      const job = map.jobs[task.job];
      return h("div", `${job.name || "a job of another namespace"}, task ${task.task}, ${job.phase}${job.since ? ` ${since(job.since)}` : ""}`);
    });
    const used = (name, words) => {
      const total = amount(worker.resources[name]);
      return total ? `${words(total - amount(worker.free[name]))} of ${words(total)} ${name}` : null;
    };
    return h(
      "div.tooltip",
      { role: "presentation", style: { left: `${Math.min(x + 14, innerWidth - 320)}px`, top: `${y + 16}px` } },
      h("b", `${worker.id}${device === null ? "" : ` GPU ${device}`}`),
      lines.length ? lines : device === null ? null : h("div", isStranded(worker, map.smallest_request) ? "free, but too small for any pending gang" : "free"),
      noteOf(worker) ? h("div", noteOf(worker)) : null,
      h("div.muted", [used("cpu", (value) => decimal(value)), used("memory", bytes)].filter(Boolean).join(" · ")),
    );
  }

  function workerTable() {
    const columns = [
      { title: "worker", class: "grow", cell: (worker) => h("code", worker.id) },
      { title: "status", class: "tight", cell: (worker) => pill(worker.status) },
      { title: "GPUs used", class: "n named", cell: (worker) => `${decimal(worker.gpus - amount(worker.free.gpu))} / ${worker.gpus}` },
      { title: "", class: "bar-cell short line", cell: (worker) => bar([{ value: worker.gpus - amount(worker.free.gpu), class: "run" }], worker.gpus, { label: `${decimal(worker.gpus - amount(worker.free.gpu))} of ${worker.gpus} GPUs in use` }) },
      { title: "jobs", cell: (worker) => jobLinks(worker) },
      { title: "", class: "muted", cell: (worker) => (worker.lost_at ? `lost at ${clock(worker.lost_at)}` : noteOf(worker)) },
    ];
    if (context.session.role === "admin") columns.push({ title: "", class: "tight", cell: (worker) => workerActions(worker, jobsOn(worker), context.refresh) });
    const rows = groups().flatMap(([, workers]) => workers);
    return [
      table(columns, rows.slice(0, tableRows), { keyOf: (worker) => worker.id, caption: "Workers", stacks: true }),
      rows.length > tableRows
        ? h("button", { type: "button", onclick: () => { tableRows += TABLE_ROWS; context.update(); } }, `Show ${Math.min(TABLE_ROWS, rows.length - tableRows)} more of ${rows.length}`)
        : null,
    ];
  }

  // With the GPUs of the whole gang, which is stopped together.
  function jobsOn(worker) {
    const gpus = new Map(largest);
    return [...new Set(worker.tasks.map((task) => task.job))].map((position) => ({ ...map.jobs[position], gpus: gpus.get(position) || 0 }));
  }

  function jobLinks(worker) {
    const jobs = [...new Set(worker.tasks.map((task) => task.job))].map((position) => map.jobs[position]);
    return jobs.slice(0, 4).map((job, index) => [index ? ", " : "", job.id ? h("a", { href: href(["job", job.id]) }, job.name || job.id) : "a job of another namespace"]).concat(jobs.length > 4 ? ` and ${jobs.length - 4} more` : []);
  }

  return { title: () => "Cluster", load, view, wants: () => true };
}
