// Submit a job.

import { h } from "../dom.js";

export function submit() {
  return { title: () => "Submit", load: async () => {}, view: () => h("h1", "Submit") };
}
