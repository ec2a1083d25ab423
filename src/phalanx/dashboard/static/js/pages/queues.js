// The queues as a tree of bars.

import { h } from "../dom.js";

export function queues() {
  return { title: () => "Queues", load: async () => {}, view: () => h("h1", "Queues") };
}
