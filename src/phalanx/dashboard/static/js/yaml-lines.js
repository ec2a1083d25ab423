// The line of a YAML text that an error of the server is about.

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

// `path` is like "roles.worker.replicas", "document 2: spec.tasks[0].name" or empty; `message` may name the line itself.
// Returns a number from 1, or null.
export function lineOf(text, { path = "", message = "" }) {
  const lines = text.split("\n");
  const document = Number((/document (\d+)/.exec(`${path} ${message}`) || [0, 1])[1]);
  const first = startOf(lines, document);
  const named = /line (\d+)/.exec(message);
  if (named) return first + Number(named[1]);
  const keys = path.replace(/^document \d+: ?/, "").replace(/\[\d+\]/g, "").split(".").filter(Boolean);
  let line = null;
  for (const key of keys) {
    const found = findKey(lines, key, line === null ? first : line + 1, line === null ? -1 : indentOf(lines[line]));
    if (found === null) break;
    line = found;
  }
  return line === null ? null : line + 1;
}

// The index of the first line of a document.
function startOf(lines, document) {
  let number = 1;
  for (let index = 0; index < lines.length && number < document; index++) {
    if (/^---(\s|$)/.test(lines[index]) && index > 0 && ++number === document) return index + 1;
  }
  return 0;
}

const indentOf = (line) => line.search(/\S|$/);

// Below the parent: deeper than it, and before the next line that is not.
function findKey(lines, key, from, parentIndent) {
  const pattern = new RegExp(`^[\\s-]*["']?${escaped(key)}["']?\\s*:`);
  const inline = new RegExp(`[{,]\\s*["']?${escaped(key)}["']?\\s*:`);
  if (from > 0 && inline.test(lines[from - 1] || "")) return from - 1;
  for (let index = from; index < lines.length; index++) {
    if (/^---(\s|$)/.test(lines[index])) return null;
    if (lines[index].trim() && indentOf(lines[index]) <= parentIndent) return null;
    if (pattern.test(lines[index])) return index;
    if (inline.test(lines[index])) return index;
  }
  return null;
}
