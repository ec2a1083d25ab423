// One job: #/job/j-7kq2m4xd.

import { h } from "../dom.js";
import { get, path } from "../api.js";
import { pill } from "../components.js";

export function job(context) {
  const id = context.parts[1];
  let detail = null;
  return {
    title: () => (detail ? `${detail.namespace}/${detail.name}` : id),
    load: async (signal) => {
      detail = await get(path`/jobs/${id}`, { signal });
    },
    view: () => h("div.row.headline", h("h1", `${detail.namespace}/${detail.name}`), pill(detail.phase), h("code", detail.id)),
    wants: (event) => event.data.job === id,
  };
}
