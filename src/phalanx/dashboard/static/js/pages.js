// The pages by the first part of their address, and those that the head of every page links to. The module of a page is
// loaded when the page is opened first; those of the others follow when the browser has nothing to do.

export const PAGES = {
  overview: () => import("./pages/overview.js"),
  jobs: () => import("./pages/jobs.js"),
  job: () => import("./pages/job.js"),
  cluster: () => import("./pages/cluster.js"),
  queues: () => import("./pages/queues.js"),
  submit: () => import("./pages/submit.js"),
};

export const HEAD = [
  ["overview", "Overview"],
  ["jobs", "Jobs"],
  ["cluster", "Cluster"],
  ["queues", "Queues"],
  ["submit", "Submit"],
];

// A page that is opened later, perhaps while no server answers, is there at once.
export function loadOthers() {
  const load = () => Object.values(PAGES).forEach((page) => page().catch(() => {}));
  if (window.requestIdleCallback) requestIdleCallback(load, { timeout: 5000 });
  else setTimeout(load, 2000);
}
