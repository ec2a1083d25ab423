// The events of the cluster in this tab: from the worker that all tabs share, or, where browsers have none, from a
// stream of its own while the tab is visible.

import { EventStream } from "./event-stream.js";

const STILL_HERE_MS = 30_000;

// `onEvents(events)`, `onResync()`, `onState(state)`; returns {signedIn(), close()}.
export function follow({ onEvents, onResync, onState }) {
  const link = typeof SharedWorker === "undefined" ? ownStream() : sharedStream();

  function sharedStream() {
    const worker = new SharedWorker(new URL("./stream-worker.js", import.meta.url), { type: "module", name: "phalanx events" });
    worker.port.onmessage = ({ data }) => {
      if (data.type === "events") onEvents(data.events);
      else if (data.type === "resync") onResync();
      else if (data.type === "state") onState(data.state);
    };
    return {
      tell: (type) => worker.port.postMessage({ type }),
      close: () => worker.port.postMessage({ type: "bye" }),
    };
  }

  function ownStream() {
    let wasLive = false;
    const stream = new EventStream({
      onEvent: (event) => onEvents([event]),
      onResync: () => {
        if (wasLive) onResync();
        wasLive = true;
      },
      onState,
    });
    return {
      tell: (type) => {
        if (type === "hidden") stream.close();
        else if (type === "visible") stream.open();
        else if (type === "signed-in") {
          stream.close();
          stream.open();
        }
      },
      close: () => stream.close(),
    };
  }

  const sayVisibility = () => link.tell(document.hidden ? "hidden" : "visible");
  document.addEventListener("visibilitychange", sayVisibility);
  addEventListener("pageshow", sayVisibility);
  addEventListener("pagehide", () => link.close());
  const timer = setInterval(sayVisibility, STILL_HERE_MS);
  sayVisibility();
  return {
    signedIn: () => {
      link.tell("signed-in");
      sayVisibility();
    },
    close: () => {
      clearInterval(timer);
      link.close();
    },
  };
}
