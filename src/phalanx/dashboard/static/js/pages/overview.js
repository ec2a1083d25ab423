// What is going on in the cluster.

import { h } from "../dom.js";

export function overview() {
  return { title: () => "Overview", load: async () => {}, view: () => h("h1", "Overview") };
}
