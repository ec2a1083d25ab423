// The workers as rows of GPUs.

import { h } from "../dom.js";

export function cluster() {
  return { title: () => "Cluster", load: async () => {}, view: () => h("h1", "Cluster") };
}
