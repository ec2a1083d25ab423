// A SharedWorker: one event stream for all tabs of this browser, because a browser opens at most six connections to a host.
// Events are passed on in batches. A hidden tab gets none, and reloads once when it is shown again. A while after every tab is
// hidden the stream is closed, and at once if no server answers.

import { EventStream } from "./event-stream.js";

const BATCH_MS = 100;
const MOST_IN_BATCH = 500; // a tab that would get more reloads instead
const SLEEP_AFTER_MS = 30_000;
const SILENT_TAB_MS = 90_000; // a tab says every 30 s that it is there

const tabs = new Map(); // port → {visible, behind, seen}
let batch = [];
let overflowed = false;
let sending = null;
let sleeping = null;

const stream = new EventStream({
  onEvent: (event) => {
    if (batch.length < MOST_IN_BATCH) batch.push(event);
    else overflowed = true;
    if (sending === null) sending = setTimeout(send, BATCH_MS);
  },
  onResync: () => {
    overflowed = true;
    if (sending === null) sending = setTimeout(send, 0);
  },
  onState: (state) => {
    tabs.forEach((tab, port) => port.postMessage({ type: "state", state }));
    manage();
  },
});

function send() {
  const events = overflowed ? null : batch;
  sending = null;
  batch = [];
  overflowed = false;
  tabs.forEach((tab, port) => {
    if (!tab.visible) tab.behind = true;
    else port.postMessage(events ? { type: "events", events } : { type: "resync" });
  });
}

function manage() {
  const now = Date.now();
  tabs.forEach((tab, port) => {
    if (now - tab.seen > SILENT_TAB_MS) tabs.delete(port); // it was closed without a word
  });
  const isNeeded = [...tabs.values()].some((tab) => tab.visible);
  if (isNeeded) {
    clearTimeout(sleeping);
    sleeping = null;
    stream.open();
  } else if (stream.state !== "live") {
    stream.close();
  } else if (sleeping === null) {
    sleeping = setTimeout(() => {
      sleeping = null;
      stream.close();
    }, SLEEP_AFTER_MS);
  }
}

function hear(port, message) {
  const tab = tabs.get(port) || { visible: false, behind: false };
  tabs.set(port, tab);
  tab.seen = Date.now();
  if (message.type === "bye") tabs.delete(port);
  if (message.type === "signed-in") {
    stream.close();
    stream.last = null;
  }
  if (message.type === "visible" || message.type === "hidden") {
    const isShown = message.type === "visible" && !tab.visible;
    tab.visible = message.type === "visible";
    if (isShown) {
      port.postMessage({ type: "state", state: stream.state });
      if (tab.behind) port.postMessage({ type: "resync" });
      tab.behind = false;
    }
  }
  manage();
}

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => hear(port, data);
  port.start();
};
setInterval(manage, 30_000);
