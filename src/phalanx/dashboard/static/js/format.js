// Numbers, times and amounts as people read them; the same forms as the command line.

const UNITS = { m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50 };

// Without Intl: browsers take 10 ms for the first format of numbers and as much for that of times.
const grouped = (fixed) => fixed.replace(/^-?\d+/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));

// 1234.5 → "1,234.5", without zeros at the end
export function decimal(value, digits = 1) {
  const fixed = grouped(value.toFixed(digits));
  return fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
}

export const whole = (value) => decimal(value, 0);

export function plural(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// "512Gi" → 549755813888
export function amount(text) {
  if (typeof text === "number") return text;
  const match = /^([0-9.]+)([A-Za-z]*)$/.exec(text || "");
  return match ? Number(match[1]) * (UNITS[match[2]] || 1) : 0;
}

export function bytes(value) {
  for (const unit of ["Ti", "Gi", "Mi", "Ki"]) if (value >= UNITS[unit]) return `${decimal(value / UNITS[unit])} ${unit}B`;
  return `${whole(value)} B`;
}

const two = (value) => String(value).padStart(2, "0");

// 7530 → "2 h 05 m"
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s < 600 ? `${Math.floor(s / 60)} m ${two(s % 60)} s` : `${Math.floor(s / 60)} m`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export const secondsSince = (time) => (Date.now() - Date.parse(time)) / 1000;
export const since = (time) => duration(secondsSince(time));

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Local time: "17:12"
export function timeOfDay(time) {
  const date = new Date(time);
  return `${two(date.getHours())}:${two(date.getMinutes())}`;
}

// Local time: "17:12:04"
export const timeWithSeconds = (time) => `${timeOfDay(time)}:${two(new Date(time).getSeconds())}`;

// Local time: today "17:12:04", else "5 Jan, 17:12".
export function clock(time) {
  const date = new Date(time);
  if (date.toDateString() === new Date().toDateString()) return timeWithSeconds(time);
  return `${date.getDate()} ${MONTHS[date.getMonth()]}, ${timeOfDay(time)}`;
}

export const gpuHours = (gpuSeconds) =>
  gpuSeconds > 0 && gpuSeconds < 360 ? `${decimal(gpuSeconds, 0)} GPU-s` : `${decimal(gpuSeconds / 3600, gpuSeconds < 36_000 ? 2 : 1)} GPU-h`;
export const percent = (part, total) => `${total ? Math.round((100 * part) / total) : 0} %`;
export const money = (value) => `$${grouped(value.toFixed(2))}`;
