// The life of a gang as a picture: a lane for each task, attempts from left to right, the first failure marked.
//
// `lanesOf` reads the events of a job into segments and marks; `timeline` draws them. Times are milliseconds.

import { h } from "./dom.js";
import { clock, duration, plural, timeOfDay, timeWithSeconds } from "./format.js";

const LANE = 22; // pixels
const HEAD = 26;
const FOOT = 26;
const LEFT = 96;
const RIGHT = 44;
const LETTER = 6.5; // the width of one, at most
const SHORTEST = 2; // of a segment, so that it can be seen
const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800];

const at = (event) => Date.parse(event.at);

// {attempts: [{number, from, startedAt, stoppedAt, why, failed, evictedFor, hasCheckpoint, savedTasks}], lanes: Map(task → [{attempt, kind, from, to, worker}]),
//  marks: [{task, at, kind, text}]}. An open segment has no `to`.
export function lanesOf(events) {
  const attempts = new Map();
  const lanes = new Map();
  const marks = [];
  const open = new Map(); // task → its segment that has not ended
  let firstFailure = null; // of the attempt that is stopping: task number

  const lane = (task) => lanes.get(task) || lanes.set(task, []).get(task);
  const attemptOf = (event) =>
    attempts.get(event.attempt) || attempts.set(event.attempt, { number: event.attempt, from: at(event) }).get(event.attempt);
  function begin(event, kind, worker) {
    finish(event.task, event);
    const segment = { attempt: event.attempt, kind, from: at(event), worker };
    lane(event.task).push(segment);
    open.set(event.task, segment);
  }
  function finish(task, event) {
    const segment = open.get(task);
    if (segment) segment.to = at(event);
    open.delete(task);
    return segment;
  }
  const mark = (event, kind, text) => marks.push({ task: event.task, at: at(event), attempt: event.attempt, kind, text });

  const readers = {
    GangReserved: (event) => {
      const attempt = attemptOf(event);
      attempt.reservedAt ??= at(event);
    },
    GangStarting: (event) => (attemptOf(event).startedAt = at(event)),
    TaskStarted: (event) => {
      const attempt = attemptOf(event);
      const own = lane(event.task);
      if (!own.some((segment) => segment.attempt === event.attempt) && attempt.reservedAt !== undefined) {
        own.push({ attempt: event.attempt, kind: "reserved", from: attempt.reservedAt, to: at(event), worker: event.worker });
      }
      begin(event, "running", event.worker);
    },
    GangStopping: (event) => {
      Object.assign(attemptOf(event), { why: event.why, failed: event.task, evictedFor: event.other_job });
      firstFailure = event.task;
      if (typeof event.task === "number") {
        const failed = marks.findLast((each) => each.task === event.task && each.kind === "failed");
        if (failed) failed.kind = "first-failure";
      }
      for (const [task, segment] of [...open]) {
        if (segment.attempt !== event.attempt) continue;
        finish(task, event);
        begin({ ...event, task }, "stopping", segment.worker);
      }
    },
    TaskFailed: (event) => {
      finish(event.task, event);
      mark(event, event.task === firstFailure ? "first-failure" : "failed", event.why);
    },
    TaskStopped: (event) => finish(event.task, event),
    TaskDone: (event) => {
      finish(event.task, event);
      mark(event, "done", "done");
    },
    TaskCheckpointSaved: (event) => {
      mark(event, "saved", "checkpoint saved");
      attemptOf(event).savedTasks = (attemptOf(event).savedTasks || 0) + 1;
    },
    GangCheckpointSaved: (event) => (attemptOf(event).hasCheckpoint = true),
    AttemptGone: (event) => finish(event.task, event),
    GangStopped: (event) => {
      attemptOf(event).stoppedAt = at(event);
      firstFailure = null;
      for (const [task, segment] of [...open]) if (segment.attempt === event.attempt) finish(task, event);
    },
    ReservationLost: (event) => {
      Object.assign(attemptOf(event), { stoppedAt: at(event), why: event.why });
    },
    JobEnded: (event) => {
      for (const task of [...open.keys()]) finish(task, event);
      for (const attempt of attempts.values()) attempt.stoppedAt ??= at(event);
    },
  };
  for (const event of events) if (event.kind in readers) readers[event.kind](event);
  return { attempts: [...attempts.values()], lanes, marks };
}

// In words, for those who cannot see the picture.
export function timelineText({ attempts, marks }) {
  return attempts
    .map((attempt) => {
      const first = marks.find((mark) => mark.attempt === attempt.number && mark.kind === "first-failure");
      const length = attempt.stoppedAt && attempt.startedAt ? `, ran ${duration((attempt.stoppedAt - attempt.startedAt) / 1000)}` : "";
      return `attempt ${attempt.number}${length}${first ? `, task ${first.task} failed first` : ""}`;
    })
    .join("; ");
}

// `tasks`: those of the job, [{task, role, index}]. `until`: the end of the time axis.
export function timeline(read, tasks, { width, until, attempts: shown }) {
  const numbers = new Set(shown.map((attempt) => attempt.number));
  const from = Math.min(...shown.map((attempt) => attempt.from));
  const span = Math.max(until - from, 1000);
  const scale = (time) => LEFT + ((time - from) / span) * (width - LEFT - RIGHT);
  const rows = new Map(tasks.map((task, row) => [task.task, row]));
  const height = HEAD + LANE * tasks.length + FOOT;
  const inView = (each) => numbers.has(each.attempt);
  return h(
    "svg.timeline",
    { role: "img", "aria-label": `Timeline: ${timelineText({ ...read, attempts: shown })}`, width, height, viewBox: `0 0 ${width} ${height}` },
    axis(from, span, scale, height),
    tasks.map((task, row) => [
      h("text", { x: 0, y: HEAD + LANE * row + 15 }, `${task.role}/${task.index}`),
      (read.lanes.get(task.task) || []).filter(inView).map((segment) => bar(segment, row, scale, until)),
    ]),
    shown.map((attempt, index) => {
      const x = scale(attempt.startedAt ?? attempt.from);
      const next = shown[index + 1];
      const end = next ? scale(next.startedAt ?? next.from) : width;
      return attemptLabel(attemptText(attempt, tasks), x, end - x - LETTER, height);
    }),
    read.marks.filter((each) => inView(each) && rows.has(each.task)).map((each) => markAt(each, rows.get(each.task), scale)),
    h("line.now", { x1: scale(until), x2: scale(until), y1: HEAD - 4, y2: height - FOOT }),
  );
}

function axis(from, span, scale, height) {
  const step = 1000 * (TICKS.find((seconds) => (span / 1000 / seconds) <= 7) || TICKS.at(-1));
  const offset = new Date(from).getTimezoneOffset() * 60_000;
  const ticks = [];
  for (let time = Math.ceil((from - offset) / step) * step + offset; time <= from + span; time += step) ticks.push(time);
  const text = step < 60_000 ? timeWithSeconds : timeOfDay;
  return ticks.map((time) => [
    h("line.axis", { x1: scale(time), x2: scale(time), y1: HEAD - 6, y2: height - FOOT }),
    h("text", { x: scale(time), y: 12, "text-anchor": "middle" }, text(time)),
  ]);
}

function bar(segment, row, scale, until) {
  const x = scale(segment.from);
  const width = Math.max(SHORTEST, scale(segment.to ?? until) - x);
  const y = HEAD + LANE * row + 4;
  const lasted = duration(((segment.to ?? until) - segment.from) / 1000);
  return [
    h("rect.segment", { class: segment.kind, x, y, width, height: LANE - 8, rx: 2 },
      h("title", `${segment.kind} on ${segment.worker} for ${lasted}, from ${clock(segment.from)}`)),
    segment.kind === "running" && width > 9 * String(segment.worker).length
      ? h("text.on-segment", { x: x + 6, y: y + 11 }, segment.worker)
      : null,
  ];
}

// The number of the attempt, how it stopped, and what was saved.
function attemptText(attempt, tasks) {
  const failed = tasks.find((task) => task.task === attempt.failed);
  const stop = failed ? `${failed.role}/${failed.index} failed` : attempt.evictedFor ? `evicted for ${attempt.evictedFor}` : attempt.why;
  const saved = attempt.hasCheckpoint ? "checkpoint complete" : attempt.savedTasks ? `${plural(attempt.savedTasks, "task")} saved` : null;
  return [`attempt ${attempt.number}`, stop, saved].filter(Boolean).join(" · ");
}

// As much of the text as fits; hovering shows all of it.
function attemptLabel(text, x, space, height) {
  const letters = Math.floor(space / LETTER);
  if (letters < 2) return null;
  const number = text.split(" ")[1];
  const fits = text.length <= letters ? text : letters < `attempt ${number}`.length ? number : `${text.slice(0, letters - 1)}…`;
  return h("text", { x, y: height - 8 }, fits, fits === text ? null : h("title", text));
}

function markAt(each, row, scale) {
  const x = scale(each.at);
  const y = HEAD + LANE * row + LANE / 2;
  const title = h("title", `task ${each.task}: ${each.text}, ${clock(each.at)}`);
  if (each.kind === "saved") return h("circle.mark.saved", { cx: x, cy: y, r: 4 }, title);
  if (each.kind === "done") return h("path.mark.done", { d: `M${x - 6} ${y}l4 4l6 -8` }, title);
  return h("g.mark", { class: each.kind }, title, h("circle", { cx: x, cy: y, r: 7 }), h("path", { d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6` }));
}

export const laneText = (count, total) => (count < total ? `${count} of ${plural(total, "task")}` : plural(total, "task"));
