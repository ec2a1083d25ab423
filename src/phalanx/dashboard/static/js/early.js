// The requests of the first view, which begin before the modules of the page are loaded. api.js takes their answers: the same
// addresses as in `load` of the pages.
(() => {
  const [path, search] = location.hash.replace(/^#/, "").split("?");
  const [name = "overview", id] = path.split("/").filter(Boolean);
  const params = new URLSearchParams(search);
  const jobs = new URLSearchParams([...params, ["limit", "100"]]);
  const urls = {
    overview: ["/overview", `/usage?window=${params.get("span") === "day" ? "day" : "hour"}`, "/shares", "/servers", "/cost"],
    jobs: [`/jobs?${jobs}`],
    job: [`/jobs/${id}`],
    cluster: ["/map", "/shares", "/overview"],
    queues: ["/shares"],
  };
  window.early = new Map();
  for (const url of ["/whoami", ...(urls[name] || [])]) {
    const answer = fetch(url, { redirect: "manual", cache: "no-store" });
    answer.catch(() => {}); // api.js says it
    window.early.set(url, answer);
  }
})();
