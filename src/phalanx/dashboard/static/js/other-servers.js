// The other servers of the cluster, and the move to one of them: to the same page, and only if it answers. A page that moved
// to an address where nothing answers would be lost.

export class OtherServers {
  constructor() {
    this.urls = []; // the leader first
    this.probe = null;
  }

  // The answer of GET /servers. A worker that knows new addresses is loaded while there is a server to load it from. Resolves
  // when it is loaded, or cannot be.
  async know({ leader, standbys }) {
    const urls = [leader, ...standbys].filter((server) => server && server.url).map((server) => new URL(server.url).origin);
    this.urls = [...new Set(urls)].filter((url) => url !== location.origin);
    const policy = [...this.urls].sort().join(" ");
    if (this.urls.length && !(this.probe && this.probe.policy === policy)) {
      if (this.probe) this.probe.worker.terminate();
      this.probe = this.load(policy);
    }
    if (this.probe) await this.probe.isLoaded;
  }

  load(policy) {
    const worker = new Worker(new URL("./server-probe.js", import.meta.url));
    const probe = { policy, worker };
    probe.isLoaded = new Promise((resolve) => {
      worker.onmessage = () => resolve();
      worker.onerror = () => {
        if (this.probe === probe) this.probe = null; // the next answer loads another one
        resolve();
      };
    });
    return probe;
  }

  // Go to the first server that answers. Resolves to false if none does.
  async move() {
    if (this.probe) await this.probe.isLoaded;
    if (!this.urls.length || !this.probe) return false;
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
