// One job: #/job/j-7kq2m4xd. Phase and reason in words, the timeline of the gang, progress, logs, events, specification.

import { h } from "../dom.js";
import { get, path } from "../api.js";
import { bar, keptAtEnd, panel, pill, table } from "../components.js";
import { keepDraft } from "../draft.js";
import { elementList } from "../elements.js";
import { amount, clock, duration, gpuHours, money, percent, plural, since, whole } from "../format.js";
import { actionsOf, actor, setPriority, victimsText, workText } from "../job-actions.js";
import { LogStream, textOf } from "../log-stream.js";
import { plot } from "../plot.js";
import { href } from "../router.js";
import { lanesOf, laneText, timeline } from "../timeline.js";
import { yaml } from "../yaml.js";

const EVENTS_PER_PAGE = 1000;
const MOST_EVENTS = 20_000; // of a job with more, the oldest are left out
const FEW_EVENTS = 30;
const FEW_ATTEMPTS = 6;
const FEW_LANES = 64;
const LOG_TAIL = 500;
const ALARMS = new Set(["TaskFailed", "TaskStopTimedOut", "ReservationLost", "TaskValueAbnormal", "WorkerSuspected"]);
// The box of the cause, by phase.
const CAUSES = { done: "why good", failed: "problem", "timed-out": "problem" };
const ENDED = new Set(["done", "failed", "cancelled", "timed-out"]);

export function job(context) {
  const id = context.parts[1];
  let detail = null;
  let why = null;
  let ranks = [];
  let history = {};
  let events = []; // [{event, message}]
  let log = null; // the LogStream
  let logOf = null; // its address
  const elements = elementList(context, id);
  const shown = { allEvents: false, allAttempts: false, allLanes: false, search: "", width: 900 };
  const logEnd = keptAtEnd(context.update);
  const eventsEnd = keptAtEnd(context.update);
  let lanes = null; // of `events`, kept until more arrive: {read, of: number of the last event}

  async function load(signal) {
    detail = await get(path`/jobs/${id}`, { signal });
    if (detail.elements) {
      await Promise.all([elements.load(signal), loadEvents(signal)]);
      return;
    }
    const isPending = detail.phase === "pending";
    const [reasons, progress] = await Promise.all([
      isPending ? get(path`/jobs/${id}/why`, { signal }) : null,
      get(path`/jobs/${id}/progress`, { signal }),
      loadEvents(signal),
    ]);
    why = reasons;
    ({ ranks = [], history = {} } = progress);
    followLog();
  }

  async function loadEvents(signal) {
    for (;;) {
      const after = events.length ? events.at(-1).event.seq : 0;
      const page = await get(path`/jobs/${id}/events`, { query: { after, limit: EVENTS_PER_PAGE }, signal });
      events.push(...page.events.map((event, index) => ({ event, message: page.messages[index] })));
      if (events.length > MOST_EVENTS) events = events.slice(-MOST_EVENTS);
      if (page.next === null) return;
    }
  }

  // Logs

  function followLog() {
    const { task, attempt } = context.params;
    const query = new URLSearchParams({ follow: "true", tail: LOG_TAIL, ...(task ? { task } : {}), ...(attempt ? { attempt } : {}) });
    const url = `${path`/jobs/${id}/logs`}?${query}`;
    if (url === logOf || !detail.attempt) return;
    if (log) log.close();
    logOf = url;
    log = new LogStream(url, context.update);
  }

  function logPanel() {
    const blocks = log ? log.blocksWith(shown.search) : [];
    const option = (value, text, chosen) => h("option", { value, selected: value === (chosen || "") }, text);
    const tasks = detail.tasks.slice(0, 1000).map((task) => `${task.role}/${task.index}`);
    const attempts = Array.from({ length: detail.attempt }, (_, index) => String(index + 1)).reverse();
    return panel(
      "Logs",
      log ? log.state : "connecting",
      h(
        "div.filters",
        h("label.field", h("span", "Task"), h("select", { onchange: (event) => context.setParams({ task: event.target.value }) }, option("", "all", context.params.task), tasks.map((name) => option(name, name, context.params.task)))),
        h("label.field", h("span", "Attempt"), h("select", { onchange: (event) => context.setParams({ attempt: event.target.value }) }, option("", "all", context.params.attempt), attempts.map((name) => option(name, name, context.params.attempt)))),
        h("label.field", h("span", "Search"), h("input", { type: "search", value: shown.search, oninput: (event) => { shown.search = event.target.value; context.update(); } })),
        shown.search ? h("span.muted", { role: "status" }, plural(blocks.reduce((sum, block) => sum + block.lines.length, 0), "line")) : null,
        logEnd.isAtEnd ? null : h("button", { type: "button", onclick: () => { logEnd.isAtEnd = true; context.update(); } }, "Newest lines"),
      ),
      h("pre.log", {
        tabindex: 0, role: "region", "aria-label": "Output of the tasks",
        ...logEnd.properties,
      }, blocks.length ? blocks.map((block) => h("span.block", { key: block.number }, textOf(block))) : (shown.search ? "No line contains the text." : ENDED.has(detail.phase) ? "No output." : "No output yet.")),
    );
  }

  // Head

  // GPU-seconds that no complete checkpoint covers, from the events of the running attempt; null if nothing runs.
  function atRisk() {
    if (detail.phase !== "running") return null;
    const saved = events.findLast(({ event }) => event.kind === "GangCheckpointSaved" && event.attempt === detail.attempt);
    return detail.tasks.reduce((sum, task) => {
      if (task.state !== "running" || !task.started_at) return sum;
      const from = Math.max(Date.parse(task.started_at), saved ? Date.parse(saved.event.at) : 0);
      return sum + (task.devices || []).length * Math.max(0, (Date.now() - from) / 1000);
    }, 0);
  }

  function headline() {
    const gpus = Object.values(detail.spec.roles || {}).reduce((sum, role) => sum + (role.replicas ?? 1) * amount((role.resources || {}).gpu || 0), 0);
    const facts = [
      detail.elements ? plural(detail.elements.total, "element") : detail.attempt ? `attempt ${detail.attempt}` : "not started",
      detail.array ? [h("a", { href: href(["job", detail.array]) }, `element ${detail.index} of an array`)] : null,
      `queue ${detail.queue}`,
      `priority ${detail.priority}`,
      plural(detail.size, "task") + (gpus ? ` · ${plural(gpus, "GPU")}` : ""),
      detail.owner ? `by ${detail.owner}` : null,
      `${since(detail.created_at)} ago`,
    ].filter(Boolean);
    return h(
      "div.row.headline",
      h("h1", `${detail.namespace}/${detail.name}`),
      pill(detail.phase),
      detail.on_hold ? h("span.pill", "on hold") : null,
      h("span.muted", facts.map((fact) => [fact, " · "]), h("code", detail.id)),
      h("span.end", actionsOf(detail, { atRisk: atRisk(), refresh: context.refresh }).map((action) => h("button", { type: "button", class: action.danger ? "quiet-danger" : undefined, onclick: action.run }, action.title))),
    );
  }

  function progressBar() {
    const now = detail.progress;
    if (!now) return null;
    const parts = [
      now.total ? `step ${whole(now.step)} of ${whole(now.total)}` : `step ${whole(now.step)}`,
      detail.phase === "running" && now.rate ? `${now.rate >= 10 ? whole(Math.round(now.rate)) : now.rate.toFixed(2)} steps/s` : null,
      detail.phase === "running" && now.eta_s !== undefined && now.eta_s !== null ? `ETA ${clock(Date.now() + 1000 * now.eta_s)} (${duration(now.eta_s)})` : null,
    ].filter(Boolean);
    return h("div.progress", bar([{ value: now.step, class: "run" }], now.total || now.step, { label: now.total ? percent(now.step, now.total) : parts[0] }), h("span.num", parts.join(" · ")));
  }

  // Why

  function whyPanel() {
    if (!why) return detail.cause ? h("div", { class: CAUSES[detail.phase] || "why" }, detail.cause) : null;
    const act = actor(context.refresh);
    const remedies = why.alternatives.map((each) => remedy(each, act)).filter(Boolean);
    return h(
      "div.why",
      h("div", h("b", why.message)),
      why.rule ? h("div", why.rule) : null,
      why.blocked ? h("div", why.blocked.message) : null,
      why.starts_at ? h("div", `Expected start: ${clock(why.starts_at)}`) : null,
      why.remedy ? h("div.muted", why.remedy) : null,
      why.due.map((each) => h("div.muted", `Due ${clock(each.at)}: queue ${each.queue} ${shareText(each)}`)),
      why.overdue_at ? h("div.muted", overdueText(why.overdue_at)) : null,
      remedies.length ? h("div.row.remedies", remedies) : null,
    );
  }

  function shareText(due) {
    const counted = percent(due.counted_share, 1);
    if (due.used_share === null) return `deserves nothing of a resource that it uses or needs, which counts as ${counted}`;
    const used = percent(due.used_share, 1);
    return `uses ${used} of its share${used === counted ? "" : `, which counts as ${counted}`}`;
  }

  function overdueText(at) {
    return Date.parse(at) <= Date.now() ? `Before all queues since ${clock(at)}` : `Before all queues from ${clock(at)} on`;
  }

  function remedy(each, act) {
    const button = (text, onclick) => h("button", { type: "button", title: each.message, onclick }, text);
    if (each.priority !== undefined && each.priority !== null) {
      const question = { title: `Raise the priority to ${each.priority}?`, body: victimsText(each.victims || []), action: "Raise the priority" };
      return button(`Raise the priority to ${each.priority}`, () => act(question, () => setPriority(detail, each.priority), `The priority is ${each.priority}`));
    }
    const names = Object.keys(detail.spec.roles || {});
    if (each.tasks && names.length === 1) {
      return button(`Submit with ${plural(each.tasks, "task")} …`, () => {
        const role = detail.spec.roles[names[0]];
        submitAgain({ ...detail.spec, roles: { [names[0]]: { ...role, replicas: each.tasks } } });
      });
    }
    if (each.time_limit_s) {
      return button(`Submit with a limit of ${duration(each.time_limit_s)} …`, () => submitAgain({ ...detail.spec, time_limit: `${Math.floor(each.time_limit_s)}s` }));
    }
    return null;
  }

  function submitAgain(spec) {
    keepDraft(yaml(spec));
    location.hash = href("submit");
  }

  // Timeline

  function readLanes() {
    const last = events.length ? events.at(-1).event.seq : 0;
    if (!lanes || lanes.of !== last) lanes = { of: last, read: lanesOf(events.map(({ event }) => event)) };
    return lanes.read;
  }

  function timelinePanel() {
    const read = readLanes();
    const attempts = shown.allAttempts ? read.attempts : read.attempts.slice(-FEW_ATTEMPTS);
    if (!attempts.length) return null;
    const end = ENDED.has(detail.phase) && detail.finished_at ? Date.parse(detail.finished_at) : Date.now();
    const tasks = shown.allLanes ? detail.tasks : detail.tasks.slice(0, FEW_LANES);
    const more = (name, text) => h("button.link", { type: "button", onclick: () => { shown[name] = true; context.update(); } }, text);
    return h(
      "section.panel",
      h("h2", "Timeline", h("span.muted", ` · ${laneText(tasks.length, detail.tasks.length)}`)),
      h("div.legend", ["reserved", "running", "stopping"].map((kind) => h("span", h("span.swatch", { class: kind }), kind)), h("span", h("b.saved", "●"), " checkpoint saved"), h("span", h("b.failed", "✕"), " first failure")),
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Timeline", created: measure, updated: measure }, timeline(read, tasks, { width: shown.width, until: end, attempts })),
      h("div.row", attempts.length < read.attempts.length ? more("allAttempts", `Show all ${read.attempts.length} attempts`) : null,
        tasks.length < detail.tasks.length ? more("allLanes", `Show all ${detail.tasks.length} tasks`) : null),
    );
  }

  function measure(node) {
    const width = Math.max(560, node.clientWidth);
    if (width !== shown.width && node.clientWidth) {
      shown.width = width;
      context.update();
    }
  }

  // Ranks, values, events, specification

  function ranksPanel() {
    const lagging = detail.progress && detail.progress.lagging;
    if (!ranks.some((rank) => rank.step !== undefined)) return tasksPanel();
    return panel("Ranks", null, table([
      { title: "task", cell: (rank) => nameOf(rank.task) },
      { title: "worker", cell: (rank) => rank.worker || "" },
      { title: "step", class: "n", cell: (rank) => (rank.step === undefined || rank.step === null ? "–" : whole(rank.step)) },
      { title: "per step", class: "n", cell: (rank) => (rank.rate ? stepTime(rank.rate) : "–") },
      { title: "", cell: (rank) => (lagging && lagging.task === rank.task ? h("span.pill.stop", `${plural(lagging.behind_steps, "step")} behind`) : null) },
    ], ranks.slice(0, FEW_LANES), { keyOf: (rank) => rank.task, caption: "Progress of the ranks" }));
  }

  const nameOf = (number) => `${detail.tasks[number].role}/${detail.tasks[number].index}`;
  const stepTime = (rate) => (rate > 1 ? `${whole(Math.round(1000 / rate))} ms` : `${(1 / rate).toFixed(1)} s`);

  function tasksPanel() {
    return panel("Tasks", null, table([
      { title: "task", cell: (task) => `${task.role}/${task.index}` },
      { title: "state", cell: (task) => task.state },
      { title: "worker", cell: (task) => task.worker || "" },
      { title: "attempt", class: "n", cell: (task) => String(task.attempt) },
    ], detail.tasks.slice(0, FEW_LANES), { keyOf: (task) => task.task, caption: "Tasks" }));
  }

  function eventsPanel() {
    const rows = shown.allEvents ? events : events.slice(-FEW_EVENTS);
    return h(
      "section.panel",
      h("h2", "Events"),
      events.length > rows.length ? h("button.link", { type: "button", onclick: () => { shown.allEvents = true; context.update(); } }, `Show all ${whole(events.length)} events`) : null,
      h("ol.events", { tabindex: 0, "aria-label": "Events of the job", ...eventsEnd.properties }, rows.map(({ event, message }) => h("li", { key: event.seq, class: ALARMS.has(event.kind) || (event.kind === "JobEnded" && event.phase !== "done" && event.phase !== "cancelled") ? "alarm" : undefined }, h("time", { datetime: event.at }, clock(event.at)), " ", message))),
    );
  }

  function costPanel() {
    const { lost } = detail;
    const count = lost.to_eviction.count + lost.to_failure.count;
    if (!count) return null;
    const row = (title, tally) => h("tr", h("th", { scope: "row" }, title), h("td.n", whole(tally.count)), h("td.n", gpuHours(tally.gpu_s)), h("td.n", tally.cost ? money(tally.cost) : "–"));
    return panel("Lost work", workText(lost.gpu_s, lost.cost), h("table", h("thead", h("tr", h("td"), h("th.n", "stops"), h("th.n", "work"), h("th.n", "cost"))), h("tbody", row("to evictions", lost.to_eviction), row("to failures", lost.to_failure))));
  }

  function relatedPanel() {
    const link = (each) => h("li", h("a", { href: href(["job", each.id]) }, each.name || each.id), " ", each.phase ? pill(each.phase) : null);
    if (!(detail.after || []).length && !(detail.dependants || []).length) return null;
    return panel("Dependencies", null, (detail.after || []).length ? [h("h3", "depends on"), h("ul", detail.after.map(link))] : null,
      (detail.dependants || []).length ? [h("h3", "needed by"), h("ul", detail.dependants.map(link))] : null);
  }

  function specPanel() {
    return h("details.panel", { created: (node) => { node.open = !detail.attempt && !detail.elements; } }, h("summary", "Specification"), h("div.row", h("button", { type: "button", onclick: () => submitAgain(detail.spec) }, "Submit again …")), h("pre", yaml(detail.spec)));
  }

  function view() {
    if (detail.elements) return [headline(), whyPanel(), elements.view(detail), h("div.cols", specPanel(), h("div", costPanel(), relatedPanel(), eventsPanel()))];
    const plots = Object.entries(history);
    return [
      headline(),
      progressBar(),
      whyPanel(),
      timelinePanel(),
      h("div.cols",
        h("div", plots.length ? panel("Values", null, plots.map(([name, points]) => plot(name, points))) : null, detail.attempt ? logPanel() : null, specPanel()),
        h("div", ranksPanel(), costPanel(), relatedPanel(), eventsPanel())),
    ];
  }

  return {
    title: () => (detail ? `${detail.namespace}/${detail.name}` : id),
    load,
    view,
    wants: (event) => event.data.job === id || (event.data.job || "").startsWith(`${id}[`),
    close: () => log && log.close(),
  };
}
