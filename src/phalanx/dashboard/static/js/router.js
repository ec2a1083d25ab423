// Addresses of the dashboard: #/jobs/j-1?tab=logs. Pages and their filters are in the fragment, because the paths of the
// server belong to the HTTP API. A link can be sent to a colleague and shows the same.

export function parse(hash) {
  const [path, search] = hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, params: Object.fromEntries(new URLSearchParams(search || "")) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// href(["jobs", id], {tab: "logs"}) → "#/jobs/j-1?tab=logs"
export function href(parts, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const path = [].concat(parts).map(encodeURIComponent).join("/");
  return `#/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

// Change the parameters of this address without a new entry in the history.
export function setParams(changes) {
  const { parts, params } = parse(location.hash);
  history.replaceState(null, "", href(parts, { ...params, ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
