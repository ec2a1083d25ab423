// The pages by the first part of their address, and those that the head of every page links to.

import { cluster } from "./pages/cluster.js";
import { job } from "./pages/job.js";
import { jobs } from "./pages/jobs.js";
import { overview } from "./pages/overview.js";
import { queues } from "./pages/queues.js";
import { submit } from "./pages/submit.js";

export const PAGES = { overview, jobs, job, cluster, queues, submit };

export const HEAD = [
  ["overview", "Overview"],
  ["jobs", "Jobs"],
  ["cluster", "Cluster"],
  ["queues", "Queues"],
  ["submit", "Submit"],
];
