// The other servers of the cluster, and the move to one of them: to the same page, and only if it answers. A page that moved
// to an address where nothing answers would be lost.

export class OtherServers {
  constructor() {
    this.urls = []; // the leader first
    this.probe = null;
  }

  // The answer of GET /servers. A worker that knows new addresses is loaded while there is a server to load it from.
  know({ leader, standbys }) {
    const urls = [leader, ...standbys].filter((server) => server && server.url).map((server) => new URL(server.url).origin);
    this.urls = [...new Set(urls)].filter((url) => url !== location.origin);
    const policy = [...this.urls].sort().join(" ");
    if (!this.urls.length || (this.probe && this.probe.policy === policy)) return;
    if (this.probe) this.probe.worker.terminate();
    this.probe = { policy, worker: new Worker(new URL("./server-probe.js", import.meta.url)) };
  }

  // Go to the first server that answers. Resolves to false if none does.
  async move() {
    if (!this.urls.length) return false;
    const url = await this.firstThatAnswers();
    if (url) location.replace(new URL(`/${location.hash}`, url));
    return Boolean(url);
  }

  firstThatAnswers() {
    const { worker } = this.probe;
    return new Promise((resolve) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = () => resolve(null);
      worker.postMessage(this.urls);
    });
  }
}
