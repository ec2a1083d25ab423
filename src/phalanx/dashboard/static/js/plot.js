// A value that the tasks of a job report, over their steps.

import { lineChart } from "./chart.js";
import { h } from "./dom.js";
import { decimal, whole } from "./format.js";

// points: [[step, value]]; a value of null is not a finite number.
export function plot(name, points) {
  const known = points.filter(([, value]) => value !== null);
  const last = known.at(-1);
  const [low, high] = known.reduce(([a, b], [, value]) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const facts = last ? `at step ${whole(last[0])} · lowest ${short(low)}, highest ${short(high)}` : "no finite value yet";
  return h(
    "div.plot",
    h("div", h("b", name), last ? h("span.num", ` ${short(last[1])}`) : null, h("span.muted", ` ${facts}`)),
    lineChart({ series: [{ points }], x: { format: (step) => whole(Math.round(step)) }, y: { min: low, format: short }, label: `${name}: ${facts}`, empty: "" }),
  );
}

function short(value) {
  return value !== 0 && (Math.abs(value) < 0.0001 || Math.abs(value) >= 1e6) ? value.toExponential(3) : decimal(value, 4);
}
