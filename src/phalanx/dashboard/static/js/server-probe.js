// A worker that asks other servers whether they answer. The policy of the page allows requests to its own server only. This
// worker has a policy of its own, which names the servers of the cluster. It sends no cookie and reads no answer.

const PATIENCE_MS = 3000;

async function answers(url) {
  try {
    await fetch(`${url}/healthz`, { mode: "no-cors", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    return true;
  } catch {
    return false;
  }
}

// Gets a list of addresses, and posts the first of them that answers, or null.
self.onmessage = async ({ data: urls }) => {
  const all = await Promise.all(urls.map(answers));
  self.postMessage(urls[all.indexOf(true)] ?? null);
};

self.postMessage(null); // it is loaded
