// Colours of jobs. People with any kind of colour blindness can tell neighbours in this list apart (after Okabe and Ito),
// and they are visible in both themes.

const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8f8a00", "#7a6fbe", "#00838f", "#a0522d", "#5d7b3a", "#b0578d"];

// A colour for each name. The first names get different ones; a name keeps its colour as long as no earlier name has it.
export function coloursOf(names) {
  const colours = new Map();
  const taken = new Set();
  for (const name of names) {
    let slot = hash(name) % PALETTE.length;
    while (taken.size < PALETTE.length && taken.has(slot)) slot = (slot + 1) % PALETTE.length;
    taken.add(slot);
    colours.set(name, PALETTE[slot]);
  }
  return colours;
}

function hash(name) {
  let value = 2166136261;
  for (let index = 0; index < name.length; index++) value = Math.imul(value ^ name.charCodeAt(index), 16777619);
  return value >>> 0;
}

// Whether the dark theme is shown: that of the system, until one is chosen.
export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// The colours of the theme, for canvases.
export function themeColours() {
  const style = getComputedStyle(document.body);
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.setProperty("color", `var(--${name})`);
    return getComputedStyle(probe).color;
  };
  const colours = Object.fromEntries(["ink", "soft", "line", "track", "panel", "stop", "fail", "pend", "run"].map((name) => [name, colour(name)]));
  probe.remove();
  return { ...colours, font: style.fontFamily };
}
