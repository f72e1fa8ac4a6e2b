// Numbers as text: with unit and separators, and only significant digits.
//
// An unknown value is a dash, never a zero.

export const UNKNOWN = "–";

// Narrow and unbreakable: between a number and its unit.
const THIN = "\u202f";

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const digits = [0, 1, 2].map((it) => new Intl.NumberFormat("en-GB", { minimumFractionDigits: it, maximumFractionDigits: it }));
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

/** `[number, unit]`, for a unit in smaller type. */
export function parts(value, kind) {
  if (!isKnown(value)) return [UNKNOWN, ""];
  return KINDS[kind](value);
}

function join([number, unit]) {
  return unit === "" ? number : number + THIN + unit;
}

const say = (kind) => (value) => join(parts(value, kind));

const KINDS = {
  count: (value) => [whole.format(value), ""],
  tokens: (value) => large(value, "tok"),
  short: (value) => large(value, ""),
  rate: (value) => [digits[value < 9.95 ? 1 : 0].format(value), "/s"],
  tokenRate: (value) => large(value, "tok/s"),
  percent: (value) => [digits[value > 0 && value < 0.0995 ? 1 : 0].format(value * 100), "%"],
  byteRate: bytesPerSecond,
  ms: milliseconds,
};

export const count = say("count");
export const tokens = say("tokens");
export const short = say("short");
export const rate = say("rate");
export const tokenRate = say("tokenRate");
export const percent = say("percent");
export const byteRate = say("byteRate");
export const ms = say("ms");

/** In full up to a hundred thousand; then thousands, millions, billions with three digits. */
function large(value, unit) {
  const steps = [[1e9, "G"], [1e6, "M"], [1e5, "k"]];
  for (const [from, letter] of steps) {
    if (value < from) continue;
    const scaled = value / (letter === "k" ? 1e3 : from);
    return [digits[scaled < 10 ? 2 : scaled < 100 ? 1 : 0].format(scaled) + THIN + letter, unit];
  }
  return [whole.format(value), unit];
}

function bytesPerSecond(value) {
  const steps = [[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]];
  const [size, unit] = steps.find(([from]) => value >= from * 0.9995) ?? [1, "B/s"];
  return [digits[size > 1 && value / size < 9.95 ? 1 : 0].format(value / size), unit];
}

function milliseconds(value) {
  const size = Math.abs(value);
  if (size >= 99_950) return [whole.format(value / 1000), "s"];
  if (size >= 999.5) return [digits[size < 9995 ? 2 : 1].format(value / 1000), "s"];
  return [digits[size < 9.95 && size > 0 ? 1 : 0].format(value), "ms"];
}

/** Without a unit, and with a decimal only if it has one. */
export function tenths(value) {
  if (!isKnown(value)) return UNKNOWN;
  return Number.isInteger(value) || value >= 100 ? short(value) : digits[1].format(value);
}

/** `3.1×`. */
export function times(ratio) {
  return isKnown(ratio) ? `${digits[ratio < 10 ? 1 : 0].format(ratio)}×` : UNKNOWN;
}

/** A difference with its sign: `+12 %`. */
export function difference(ratio) {
  if (!isKnown(ratio)) return UNKNOWN;
  const sign = Math.round(ratio * 100) > 0 ? "+" : Math.round(ratio * 100) < 0 ? "−" : "±";
  return sign + join([whole.format(Math.abs(Math.round(ratio * 100))), "%"]);
}

export function weight(value) {
  return isKnown(value) ? `×${new Intl.NumberFormat("en-GB", { maximumFractionDigits: 2 }).format(value)}` : UNKNOWN;
}

export function time(at_ms) {
  return isKnown(at_ms) ? clock.format(at_ms) : UNKNOWN;
}

/** A duration in its two largest units. */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const units = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => seconds >= size);
  if (first === -1) return `0${THIN}s`;
  const [size, name] = units[first];
  const text = `${Math.floor(seconds / size)}${THIN}${name}`;
  const next = units[first + 1];
  const rest = next === undefined ? 0 : Math.floor((seconds % size) / next[0]);
  return rest === 0 ? text : `${text} ${rest}${THIN}${next[1]}`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
