// A value of JSON as YAML, for people to read and edit.

const PLAIN = /^[A-Za-z_/][A-Za-z0-9_./ @%+=-]*$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"]);

export function yaml(value, indent = "") {
  if (Array.isArray(value)) return value.length ? value.map((each) => `${indent}- ${yaml(each, `${indent}  `).trimStart()}`).join("") : `${indent}[]\n`;
  if (value !== null && typeof value === "object") {
    const keys = Object.keys(value);
    return keys.length ? keys.map((key) => `${indent}${scalar(key)}:${nested(value[key], indent)}`).join("") : `${indent}{}\n`;
  }
  return `${indent}${scalar(value)}\n`;
}

const isEmpty = (value) => Object.keys(value).length === 0;

function nested(value, indent) {
  if (value === null || typeof value !== "object" || isEmpty(value)) return ` ${yaml(value, "").trimStart()}`;
  return `\n${yaml(value, `${indent}  `)}`;
}

function scalar(value) {
  if (typeof value !== "string") return String(value);
  const isPlain = PLAIN.test(value) && !WORDS.has(value.toLowerCase()) && !value.endsWith(" ") && !value.includes(" #");
  return isPlain ? value : JSON.stringify(value);
}
