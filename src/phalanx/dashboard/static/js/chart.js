// Charts. Lines are SVG that stretches with the page; the labels are HTML, so that they keep their size.

import { h } from "./dom.js";

const WIDTH = 1000;
const HEIGHT = 200;

// A chart of lines over time or steps.
//   series: [{ points: [[x, y], …], class, label, area }]   class: a class of the stylesheet that sets the stroke
//   x, y:   { min, max, format }; without min or max, those of the points. y begins at 0 unless min is given.
//   label:  what the chart shows, for screen readers        A y of null leaves a gap.
export function lineChart({ series, x = {}, y = {}, label, empty = "No data yet." }) {
  const all = series.flatMap((one) => one.points).filter((point) => point[1] !== null);
  if (!all.length) return h("p.muted", empty);
  const xs = extent(all.map((point) => point[0]), x);
  const ys = extent(all.map((point) => point[1]), { min: 0, ...y });
  if (ys.max === ys.min) widen(ys);
  const px = (value) => (xs.max === xs.min ? WIDTH : ((value - xs.min) / (xs.max - xs.min)) * WIDTH);
  const py = (value) => HEIGHT - ((value - ys.min) / (ys.max - ys.min)) * HEIGHT;
  const yFormat = y.format || String;
  const xFormat = x.format || String;
  const lines = [0, 0.5, 1].map((part) => ys.min + part * (ys.max - ys.min));
  return h(
    "figure.lineplot",
    { role: "img", "aria-label": label },
    h("div.y", { "aria-hidden": "true" }, lines.map((value) => h("span", yFormat(value))).reverse()),
    h(
      "div.canvas",
      h(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        lines.map((value) => h("line.axis", { x1: 0, x2: WIDTH, y1: py(value), y2: py(value) })),
        series.map((one) => [
          one.area ? h("path.area", { class: one.class, d: `${path(one.points, px, py)}L${px(one.points.at(-1)[0])},${HEIGHT}L${px(one.points[0][0])},${HEIGHT}Z` }) : null,
          h("path.line", { class: one.class, d: path(one.points, px, py) }),
        ]),
      ),
    ),
    h("div.x", { "aria-hidden": "true" }, ticks(xs).map((value) => h("span", xFormat(value)))),
    series.length > 1
      ? h("figcaption.legend", series.map((one) => h("span", h("span.swatch.line-swatch", { class: one.class }), one.label)))
      : null,
  );
}

function extent(values, given) {
  const min = given.min ?? values.reduce((a, b) => Math.min(a, b), Infinity);
  const max = given.max ?? values.reduce((a, b) => Math.max(a, b), -Infinity);
  return { min, max };
}

// A constant value is drawn in the middle.
function widen(ys) {
  const half = Math.abs(ys.min) / 2 || 0.5;
  ys.min -= half;
  ys.max += half;
}

const ticks = ({ min, max }) => [0, 1, 2, 3, 4].map((part) => min + (part * (max - min)) / 4);

function path(points, px, py) {
  let isGap = true;
  return points
    .map(([x, y]) => {
      const command = isGap ? "M" : "L";
      isGap = y === null;
      return isGap ? "" : `${command}${px(x).toFixed(1)},${py(y).toFixed(1)}`;
    })
    .join("");
}
