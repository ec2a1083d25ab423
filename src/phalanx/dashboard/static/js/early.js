// The requests of the first view, which begin before the page is drawn: by address, the same as in `load` of the pages. api.js
// takes their answers.

export const early = new Map();

function addresses() {
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
  return ["/whoami", ...(urls[name] || [])];
}

for (const url of addresses()) {
  const answer = fetch(url, { redirect: "manual", cache: "no-store" });
  answer.catch(() => {}); // api.js says it
  early.set(url, answer);
}
