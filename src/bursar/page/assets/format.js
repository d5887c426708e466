// Numbers, times and money as people read them.

export const time = (s) => {
  if (s === null || s === undefined || Number.isNaN(s)) return "unknown";
  if (s < 0) return "−" + time(-s);
  if (s < 9.995e-4) return s === 0 ? "0 s" : (s * 1e6).toPrecision(3) + " µs";
  if (s < 0.9995) return (s * 1e3).toPrecision(3) + " ms";
  if (s < 120) return +s.toPrecision(3) + " s";
  const two = (n, unit, rest, small) => rest ? `${n} ${unit} ${rest} ${small}` : `${n} ${unit}`;
  const whole = Math.round(s);
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  const minutes = Math.floor(whole / 60);
  if (minutes < 2880) return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.floor(minutes / 60);
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
};

const grouped = (text) => text.replace(/\B(?=(\d{3})+$)/g, ",");

// A whole number with its thousands apart.
export const whole = (n) => n === null || n === undefined ? "unknown"
  : (n < 0 ? "−" : "") + grouped(String(Math.abs(Math.round(n))));

// A measured number: so many digits, and never fewer than it has before its point.
export const num = (x, digits = 4) => {
  if (x === null || x === undefined) return "unknown";
  const size = Math.abs(+x);
  if (size >= 10 ** digits && size < 1e15) return whole(x);
  const short = +(+x).toPrecision(digits);
  return size >= 1000 && Number.isInteger(short) ? whole(short) : String(short);
};

export const money = (x, currency) => x === null || x === undefined ? "unknown" : `${num(x)} ${currency}`;

export const count = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

export const percent = (share) => share === null || share === undefined ? "unknown"
  : share > 0.995 && share < 1 ? "> 99 %" : share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;

export const bytes = (b) => b === null || b === undefined ? "unknown"
  : b >= 1e9 ? (b / 1e9).toFixed(1) + " GB" : b >= 1e6 ? (b / 1e6).toFixed(0) + " MB" : b >= 1e3 ? Math.round(b / 1e3) + " kB" : `${b} B`;

// Whole micro-units, all their digits: the bill is exact.
export const exact = (micros) => {
  const sign = micros < 0 ? "−" : "", size = Math.abs(micros);
  const rest = String(size % 1000000).padStart(6, "0").replace(/0+$/, "");
  return sign + grouped(String(Math.floor(size / 1000000))) + (rest ? "." + rest : "");
};

const two = (n) => String(n).padStart(2, "0");

// A moment, seconds since the epoch, in the reader's time zone.
export const moment = (seconds) => {
  if (seconds === null || seconds === undefined) return "unknown";
  const d = new Date(seconds * 1000);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}`;
};

export const most = (values, least) => {
  let top = least;
  for (const value of values) if (value > top) top = value;
  return top;
};

// Where a run, or a part of it, is shown.
export const runAddress = (name, ...more) => "#/runs/" + [name, ...more].map(encodeURIComponent).join("/");
