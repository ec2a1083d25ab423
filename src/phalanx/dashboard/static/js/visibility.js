// When this tab is visible. A hidden tab sends nothing.

// Resolves when the tab is visible: at once, or when it is shown.
export async function visible() {
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

// A signal that is aborted when the tab is hidden.
export function untilHidden() {
  const stop = new AbortController();
  document.addEventListener("visibilitychange", () => stop.abort(), { once: true });
  return stop.signal;
}
