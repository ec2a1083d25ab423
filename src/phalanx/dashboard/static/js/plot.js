// A value over the steps of a job, as a line.

import { h } from "./dom.js";
import { decimal, whole } from "./format.js";

const WIDTH = 640;
const HEIGHT = 150;

// points: [[step, value]]; a value of null leaves a gap.
export function plot(name, points) {
  const known = points.filter(([, value]) => value !== null);
  const last = known.at(-1);
  if (!last) return h("figure.plot", h("figcaption", h("b", name), " no finite value yet"));
  const steps = points.map(([step]) => step);
  const [first, end] = [Math.min(...steps), Math.max(...steps)];
  const values = known.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (step) => ((step - first) / (end - first || 1)) * WIDTH;
  const y = (value) => HEIGHT - 6 - ((value - low) / (high - low || 1)) * (HEIGHT - 12);
  return h(
    "figure.plot",
    h("figcaption", h("b", name), h("span.num", ` ${short(last[1])}`), h("span.muted", ` at step ${whole(last[0])} · lowest ${short(low)}, highest ${short(high)}`)),
    h(
      "svg.chart",
      { role: "img", "aria-label": `${name} from step ${first} to ${end}: lowest ${short(low)}, highest ${short(high)}, last ${short(last[1])}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none" },
      h("line.axis", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
      h("path.line", { d: pathOf(points, x, y) }),
    ),
    h("div.ends.muted", h("span", `step ${whole(first)}`), h("span", whole(end))),
  );
}

function pathOf(points, x, y) {
  let path = "";
  let command = "M";
  for (const [step, value] of points) {
    if (value === null) command = "M";
    else {
      path += `${command}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      command = "L";
    }
  }
  return path;
}

function short(value) {
  return value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e6) ? value.toExponential(3) : decimal(value, 4);
}
