// One connection to GET /events, kept open: it resumes where it was, backs off while no server answers, and says what it
// is doing. `fetch` instead of EventSource: that one needs the name of every kind of event, and hides status codes.

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
const SILENCE_MS = 45_000; // the server sends at least a comment every 15 s; a host that is gone sends nothing

export class EventStream {
  // `onEvent({id, kind, data})`, `onResync()`: events were missed, load everything again.
  // `onState(state)`: "connecting", "live", "standby" or "signed-out".
  constructor({ onEvent, onResync, onState }) {
    this.on = { event: onEvent, resync: onResync, state: onState };
    this.last = null;
    this.running = null;
    this.state = "connecting";
  }

  open() {
    if (this.running) return;
    const stop = (this.running = new AbortController());
    this.keepReading(stop.signal);
  }

  close() {
    if (this.running) this.running.abort();
    this.running = null;
  }

  tell(state) {
    if (state === this.state) return;
    this.state = state;
    this.on.state(state);
  }

  async keepReading(stopped) {
    let pause = FIRST_PAUSE_MS;
    while (!stopped.aborted) {
      const began = Date.now();
      try {
        await this.read(stopped);
      } catch (error) {
        if (stopped.aborted) return;
      }
      if (stopped.aborted) return;
      if (this.state === "live") this.tell("connecting");
      if (Date.now() - began > 5000) pause = FIRST_PAUSE_MS;
      await new Promise((resume) => setTimeout(resume, pause * (0.5 + Math.random() / 2)));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    }
  }

  async read(stopped) {
    const headers = this.last === null ? {} : { "Last-Event-ID": this.last };
    const silence = new AbortController();
    const signal = AbortSignal.any([stopped, silence.signal]);
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
    };
    try {
      await this.readAll(await fetch("/events", { headers, signal, redirect: "manual", cache: "no-store" }), heard);
    } finally {
      clearTimeout(timer);
    }
  }

  async readAll(answer, heard) {
    if (answer.status === 401) return this.tell("signed-out");
    if (answer.type === "opaqueredirect") return this.tell("standby");
    if (!answer.ok) return this.tell("connecting");
    if (this.last === null) this.on.resync(); // what happened before the stream began is unknown
    this.tell("live");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.take(block);
    }
  }

  take(block) {
    const event = { id: null, kind: "", data: "" };
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) event.id = line.slice(4);
      else if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("data: ")) event.data = line.slice(6);
    }
    if (event.id === null) return; // a comment that keeps the connection alive
    this.last = event.id;
    if (event.kind === "resync") this.on.resync();
    else this.on.event({ id: event.id, kind: event.kind, data: JSON.parse(event.data) });
  }
}
