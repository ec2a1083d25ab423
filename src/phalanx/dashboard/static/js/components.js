// What pages are made of: cards, panels, pills, bars, tables, dialogs and toasts.

import { h, render } from "./dom.js";

export const card = (title, value, note, link) =>
  h("div.card", h("div.k", title), h("div.v.num", link ? h("a", { href: link }, value) : value), h("div.s", note || "\u00a0"));

// A section with a heading; `note` follows it in grey.
export const panel = (title, note, ...content) =>
  h("section.panel", h("h2", title, note ? h("span.muted", ` · ${note}`) : null), content);

const PILLS = {
  running: "run", done: "done", pending: "pend", starting: "res", stopping: "stop", failed: "fail",
  "timed-out": "fail", cancelled: "pend", active: "run", cordoned: "stop", leaving: "stop", lost: "fail",
};

// The phase of a job or the status of a worker. The word says it; the colour repeats it.
export const pill = (word) => h("span.pill", { class: PILLS[word] || "pend" }, word);

// A bar of parts: [{value, class, title}], of `total`; `marks`: [{value, class, title}].
export function bar(parts, total, { marks = [], label } = {}) {
  const percent = (value) => `${Math.max(0, Math.min(100, (100 * value) / (total || 1)))}%`;
  return h(
    "div.bar",
    { role: "img", "aria-label": label },
    parts.map((part) => h("span.part", { class: part.class, style: { width: percent(part.value) }, title: part.title })),
    marks.map((mark) => h("span.mark", { class: mark.class, style: { left: percent(mark.value) }, title: mark.title })),
  );
}

// columns: [{title, cell: row => child, class}]; rows have an identity by `keyOf`. On a narrow screen a table that `stacks`
// shows each row as a block: a column of class "line" has a line of its own, "end" is at the right, "named" repeats its title.
export function table(columns, rows, { keyOf, caption, empty, onSort, sort, stacks = false } = {}) {
  const heading = (column) =>
    h(
      "th",
      { scope: "col", class: column.class, "aria-sort": sort && sort === column.sort ? "descending" : undefined },
      column.sort && onSort ? h("button.sort", { type: "button", onclick: () => onSort(column.sort) }, column.title) : column.title,
    );
  return h(
    "div.scroll",
    { role: "region", "aria-label": caption, tabindex: 0 },
    h(
      "table",
      { class: stacks && "stacks" },
      caption ? h("caption.visually-hidden", caption) : null,
      h("thead", h("tr", columns.map(heading))),
      h(
        "tbody",
        rows.length
          ? rows.map((row) => h("tr", { key: keyOf(row) }, columns.map((column) => h("td", { class: column.class, "data-title": stacks ? column.title : undefined }, column.cell(row)))))
          : h("tr", { key: " none" }, h("td.muted", { colspan: columns.length }, empty || "None.")),
      ),
    ),
  );
}

// Properties of a scrolling element that stays at its end while lines are added, until its user scrolls up.
export function keptAtEnd(onchange) {
  const state = { isAtEnd: true };
  const toEnd = (node) => {
    if (state.isAtEnd) node.scrollTop = node.scrollHeight;
  };
  const onscroll = ({ target }) => {
    const isAtEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 8;
    if (isAtEnd === state.isAtEnd) return;
    state.isAtEnd = isAtEnd;
    onchange();
  };
  return Object.assign(state, { properties: { created: toEnd, updated: toEnd, onscroll } });
}

export const choice = (label, value, options, onchange) =>
  h(
    "label.field",
    h("span", label),
    h(
      "select",
      { onchange: (event) => onchange(event.target.value), value },
      options.map(([name, text]) => h("option", { value: name, selected: name === value }, text)),
    ),
  );

export const textField = (label, value, onchange, placeholder) =>
  h(
    "label.field",
    h("span", label),
    h("input", { type: "search", value: value || "", placeholder, onchange: (event) => onchange(event.target.value.trim()) }),
  );

export const problem = (message) => h("div.problem", { role: "alert" }, message);

// Ask before a change. `body` says the consequences; it may be a promise, which is shown when it is known.
// Resolves to true if the user confirmed, false otherwise.
export function confirmed({ title, body, action, danger = false }) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    const before = document.activeElement;
    const finish = (answer) => {
      dialog.close();
      dialog.remove();
      if (before && before.focus) before.focus();
      resolve(answer);
    };
    const draw = (text) =>
      render(
        dialog,
        h("h2", { id: "dialog-title" }, title),
        h("div.consequences", { "aria-live": "polite" }, text),
        h(
          "div.buttons",
          h("button", { type: "button", onclick: () => finish(false) }, "Back"),
          h("button", { type: "button", class: danger ? "danger" : "primary", onclick: () => finish(true) }, action),
        ),
      );
    dialog.setAttribute("aria-labelledby", "dialog-title");
    dialog.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
      event.preventDefault(); // or the button that gets the focus back is pressed
      finish(true);
    });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      finish(false);
    });
    document.body.append(dialog);
    draw("Working out the consequences …");
    dialog.showModal();
    Promise.resolve(body)
      .catch((error) => `The consequences are unknown: ${error.message}`)
      .then((text) => {
        draw(text);
        const field = dialog.querySelector("input");
        if (field) field.select();
      });
  });
}

// A message that goes away; errors stay until they are closed.
export function toast(message, { error = false } = {}) {
  const box = document.createElement("div");
  box.className = error ? "toast error" : "toast";
  render(
    box,
    h("span", message),
    h("button.close", { type: "button", "aria-label": "Close the message", onclick: () => box.remove() }, "×"),
  );
  document.getElementById("toasts").append(box);
  if (!error) setTimeout(() => box.remove(), 6000);
}
