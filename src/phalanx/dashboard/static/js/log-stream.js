// The output of a job, followed while the tab is visible: the latest lines as text. Control characters that terminals would obey
// are removed.

import { untilHidden, visible } from "./visibility.js";

const BLOCK_LINES = 100; // lines are drawn in blocks, of which only the last one changes
const MOST_BLOCKS = 50;
const DRAW_MS = 200; // new lines are drawn at most this often
const RETRY_MS = 2000;
// Escape sequences of terminals, then every other control character but tab.
const CONTROL = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export const plainText = (line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replace(CONTROL, "");

export class LogStream {
  // `onLines()` is called when `blocks` has changed: [{number, lines, text}].
  constructor(url, onLines) {
    this.url = url;
    this.onLines = onLines;
    this.blocks = [];
    this.count = 0; // of blocks so far
    this.drawing = 0;
    this.state = "connecting";
    this.stop = new AbortController();
    this.run();
  }

  close() {
    this.stop.abort();
  }

  async run() {
    let hidden = null;
    for (;;) {
      await visible();
      if (this.stop.signal.aborted) return;
      if (!hidden || hidden.aborted) hidden = untilHidden();
      try {
        await this.read(AbortSignal.any([this.stop.signal, hidden]));
        this.say("ended");
        return;
      } catch (error) {
        if (this.stop.signal.aborted) return;
        this.say("connecting");
        if (!hidden.aborted) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  say(state) {
    this.state = state;
    this.onLines();
  }

  async read(signal) {
    const answer = await fetch(this.url, { signal, redirect: "manual", cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    let isNew = true; // the lines that were read before are replaced by the first new ones
    this.say("following");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (isNew) this.blocks = [];
      isNew = false;
      const parts = (rest + value).split("\n");
      rest = parts.pop().slice(-65_536);
      this.add(parts);
    }
    if (rest) this.add([rest]);
  }

  add(lines) {
    if (!lines.length) return;
    for (const line of lines) {
      let last = this.blocks.at(-1);
      if (!last || last.lines.length === BLOCK_LINES) {
        last = { number: this.count++, lines: [], text: null };
        this.blocks.push(last);
      }
      last.lines.push(plainText(line));
      last.text = null;
    }
    this.blocks.splice(0, this.blocks.length - MOST_BLOCKS);
    this.drawing ||= setTimeout(() => {
      this.drawing = 0;
      if (!this.stop.signal.aborted) this.onLines();
    }, DRAW_MS);
  }

  // The lines that contain a text, as one block; all blocks without a text.
  blocksWith(text) {
    const wanted = text.toLowerCase();
    if (!wanted) return this.blocks;
    const lines = this.blocks.flatMap((block) => block.lines.filter((line) => line.toLowerCase().includes(wanted)));
    return lines.length ? [{ number: "found", lines, text: null }] : [];
  }
}

export const textOf = (block) => (block.text ??= block.lines.join("\n"));
