// The output of a job, followed: the latest lines as text. Control characters that terminals would obey are removed.

const MOST_LINES = 5000;
const RETRY_MS = 2000;
// Escape sequences of terminals, then every other control character but tab.
const CONTROL = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export const plainText = (line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replace(CONTROL, "");

export class LogStream {
  // `onLines()` is called when `lines` has changed.
  constructor(url, onLines) {
    this.url = url;
    this.onLines = onLines;
    this.lines = [];
    this.state = "connecting";
    this.stop = new AbortController();
    this.run();
  }

  close() {
    this.stop.abort();
  }

  async run() {
    while (!this.stop.signal.aborted) {
      try {
        await this.read();
        this.say("ended");
        return;
      } catch (error) {
        if (this.stop.signal.aborted) return;
        this.say("connecting");
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  say(state) {
    this.state = state;
    this.onLines();
  }

  async read() {
    const answer = await fetch(this.url, { signal: this.stop.signal, redirect: "manual", cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    this.lines = [];
    this.say("following");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop().slice(-65_536);
      this.add(parts);
    }
    if (rest) this.add([rest]);
  }

  add(lines) {
    if (!lines.length) return;
    this.lines.push(...lines.map(plainText));
    if (this.lines.length > MOST_LINES) this.lines.splice(0, this.lines.length - MOST_LINES);
    this.onLines();
  }
}
