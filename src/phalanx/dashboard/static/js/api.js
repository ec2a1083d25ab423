// Requests to the public HTTP API, which docs/reference/http.md describes.

import { early } from "./early.js";
import { visible } from "./visibility.js";

export class ApiError extends Error {
  constructor(status, code, message, details) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details || [];
  }
}

const watchers = new Set(); // called with every ApiError
export const onRefusal = (watcher) => watchers.add(watcher);

// The answer's JSON. Raises ApiError, with the server's own message.
//   query: object; empty values are left out.   body: an object, or a string in `type`.
export async function call(method, path, { query, body, type, signal, key, text } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = type || "application/json";
  if (key) headers["Idempotency-Key"] = key;
  const answer = await reach(method, path + search(query), {
    headers,
    body: typeof body === "string" ? body : body && JSON.stringify(body),
    signal,
  });
  if (answer.ok) return answer.status === 204 ? null : await (text ? answer.text() : answer.json()).catch(unreachable);
  throw refused(await errorOf(answer));
}

async function reach(method, url, options) {
  const begunBefore = begun(method, url);
  if (method === "GET" && !begunBefore && document.hidden) await visible(); // also in the middle of a page that loads
  return await (begunBefore || fetch(url, { method, redirect: "manual", cache: "no-store", ...options })).catch(unreachable);
}

// There is no answer, or it was cut off.
function unreachable(error) {
  if (error.name === "AbortError") throw error;
  throw refused(new ApiError(0, "unreachable", "The server does not answer. Trying again."));
}

// The answer to a request that early.js has begun, once.
function begun(method, url) {
  const answer = method === "GET" && early.get(url);
  early.delete(url);
  return answer;
}

async function errorOf(answer) {
  if (answer.type === "opaqueredirect") {
    return new ApiError(307, "not_leading", "This server is a standby; the leader answers.");
  }
  const { error } = await answer.json().catch(() => ({}));
  if (error) return new ApiError(answer.status, error.code, error.message, error.details);
  return new ApiError(answer.status, "unknown", `The server answered with status ${answer.status}.`);
}

function refused(error) {
  early.clear(); // the others are refused too, and asked again after signing in
  watchers.forEach((watcher) => watcher(error));
  return error;
}

function search(query) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const get = (path, options) => call("GET", path, options);
// A change. The key lets the server recognise a repeated request.
export const post = (path, options) => call("POST", path, { key: newKey(), ...options });
export const put = (path, options) => call("PUT", path, options);
export const remove = (path, options) => call("DELETE", path, { key: newKey(), ...options });

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// A path with its parts escaped: path`/jobs/${id}/why`
export function path(strings, ...values) {
  return strings.reduce((all, part, index) => all + encodeURIComponent(values[index - 1]) + part);
}
