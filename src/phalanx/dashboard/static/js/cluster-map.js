// The map of the cluster on canvases, one for each group of workers: one square is one GPU. Squares shrink with the number
// of workers; small clusters have names, bars of CPU and memory, and notes beside them.

import { themeColours } from "./colours.js";
import { amount, since } from "./format.js";

// By number of workers: size of a square, its gap, width of the name and of what follows the squares.
const DETAILS = [
  { upTo: 32, square: 20, gap: 4, name: 104, bar: 96, note: 300, row: 26 },
  { upTo: 80, square: 15, gap: 3, name: 84, bar: 84, note: 250, row: 20 },
  { upTo: 300, square: 11, gap: 2, name: 62, bar: 0, note: 0, row: 14 },
  { upTo: Infinity, square: 7, gap: 1, name: 0, bar: 0, note: 0, row: 9 },
];

// On a phone there is no place beside the squares.
export function detailOf(workers) {
  const detail = DETAILS.find((each) => workers <= each.upTo);
  return innerWidth < 700 ? { ...detail, name: Math.min(detail.name, 84), bar: 0, note: 0 } : detail;
}

// What is on each GPU of a worker: [[{job, task}], …], by index of the device.
export function devicesOf(worker) {
  const devices = Array.from({ length: worker.gpus }, () => []);
  for (const task of worker.tasks) for (const device of task.devices) if (devices[device]) devices[device].push(task);
  return devices;
}

// Free GPUs that no task of a pending gang fits on.
export function isStranded(worker, smallest) {
  const free = amount(worker.free.gpu);
  return smallest !== null && worker.status === "active" && free > 0 && free < smallest;
}

export const isWhole = (worker) => worker.gpus > 0 && worker.status === "active" && amount(worker.free.gpu) === worker.gpus;

export function noteOf(worker) {
  if (worker.status === "lost") {
    const held = worker.tasks.reduce((sum, task) => sum + task.devices.length, 0);
    return `lost ${since(worker.lost_at)} ago${held ? ` · ${held} GPUs still charged` : ""}`;
  }
  if (worker.status === "cordoned") return `cordoned${worker.cordoned ? `: ${worker.cordoned}` : ""}`;
  if (worker.status === "leaving") return "shutting down";
  return isWhole(worker) ? "whole node free" : "";
}

// The largest part in use of CPU and memory.
function load(worker) {
  const part = (name) => {
    const total = amount(worker.resources[name]);
    return total ? 1 - amount(worker.free[name]) / total : 0;
  };
  return Math.max(part("cpu"), part("memory"));
}

export function sizeOf(workers, detail) {
  const gpus = Math.max(1, ...workers.map((worker) => worker.gpus));
  const squares = gpus * (detail.square + detail.gap);
  return {
    width: detail.name + squares + (detail.bar ? detail.bar + 16 : 0) + detail.note,
    height: workers.length * detail.row,
    squares,
  };
}

export function drawMap(canvas, workers, jobs, detail, smallest, highlight) {
  const colours = themeColours();
  const { width, height, squares } = sizeOf(workers, detail);
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `${detail.square > 15 ? 13 : 12}px ${colours.font}`;
  context.textBaseline = "middle";
  workers.forEach((worker, row) => {
    const y = row * detail.row;
    const middle = y + detail.square / 2 + 0.5;
    if (detail.name) {
      context.fillStyle = colours.soft;
      context.fillText(fitted(context, worker.id, detail.name - 6), 0, middle);
    }
    drawDevices(context, worker, jobs, detail, y, colours, smallest, highlight);
    const x = detail.name + squares;
    if (detail.bar) {
      rounded(context, x + 8, middle - 3, detail.bar, 6, 3, colours.track);
      rounded(context, x + 8, middle - 3, detail.bar * load(worker), 6, 3, colours.pend);
    }
    if (detail.note) {
      context.fillStyle = worker.status === "lost" ? colours.fail : colours.soft;
      context.fillText(fitted(context, noteOf(worker), detail.note), x + detail.bar + 18, middle);
    }
  });
}

function drawDevices(context, worker, jobs, detail, y, colours, smallest, highlight) {
  const stranded = isStranded(worker, smallest);
  const radius = detail.square > 8 ? 2 : 1;
  devicesOf(worker).forEach((tasks, device) => {
    const x = detail.name + device * (detail.square + detail.gap);
    const size = detail.square;
    context.globalAlpha = worker.status === "lost" ? 0.35 : 1;
    if (!tasks.length) {
      outline(context, x, y, size, radius, worker.status === "active" ? colours.line : colours.stop);
      if (stranded) hatch(context, x, y, size, colours.stop);
      if (worker.status === "lost") cross(context, x, y, size, colours.fail);
    }
    const part = size / Math.max(1, tasks.length);
    tasks.forEach((task, index) => {
      const job = jobs[task.job];
      if (highlight && job.id !== highlight) context.globalAlpha *= 0.25;
      rounded(context, x + index * part, y, part, size, radius, worker.status === "lost" ? colours.fail : job.colour);
      if (job.phase === "pending" || job.phase === "starting") hatch(context, x + index * part, y, part, colours.panel);
      context.globalAlpha = worker.status === "lost" ? 0.35 : 1;
    });
    context.globalAlpha = 1;
  });
}

function rounded(context, x, y, width, height, radius, fill) {
  context.fillStyle = fill;
  context.beginPath();
  context.roundRect(x, y, Math.max(0, width), height, radius);
  context.fill();
}

function outline(context, x, y, size, radius, stroke) {
  context.strokeStyle = stroke;
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(x + 0.5, y + 0.5, size - 1, size - 1, radius);
  context.stroke();
}

function hatch(context, x, y, size, stroke) {
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.strokeStyle = stroke;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let step = -size; step < size; step += 4) {
    context.moveTo(x + step, y + size);
    context.lineTo(x + step + size, y);
  }
  context.stroke();
  context.restore();
}

function cross(context, x, y, size, stroke) {
  context.strokeStyle = stroke;
  context.beginPath();
  context.moveTo(x + 2, y + 2);
  context.lineTo(x + size - 2, y + size - 2);
  context.moveTo(x + size - 2, y + 2);
  context.lineTo(x + 2, y + size - 2);
  context.stroke();
}

// As much of the text as fits the width.
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length - 1;
  while (end > 0 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

// The worker, and the GPU, at a place of a canvas; null beside them.
export function atPoint(workers, detail, x, y) {
  const worker = workers[Math.floor(y / detail.row)];
  if (!worker) return null;
  const device = Math.floor((x - detail.name) / (detail.square + detail.gap));
  return { worker, device: device >= 0 && device < worker.gpus ? device : null };
}
