// Positions and values of curves: the axis of steps, tokens or time, and smoothing.
import { figure, value } from "./words.js";

export const AXES = { "": "step", tokens: "tokens", time: "time" };
export const SMOOTHINGS = [["", "none"], ["0.5", "0.5"], ["0.8", "0.8"], ["0.9", "0.9"], ["0.97", "0.97"]];
export const COLUMNS = 7;  // per line: drawn value, value that does not count, two bands, raw value below a smoothed one

const UNITS = [[7200, "hours", 3600], [120, "minutes", 60], [0, "seconds", 1]];

// Tokens or seconds at a step, between the points of `clock` ([step, tokens, seconds]).
function interpolated(clock, step, column) {
  const next = clock.findIndex((point) => point[0] >= step);
  if (next < 0) return clock.at(-1)[column];
  if (next === 0 || clock[next][0] === step) return clock[next][column];
  const [before, after] = [clock[next - 1], clock[next]];
  return before[column] + ((after[column] - before[column]) * (step - before[0])) / (after[0] - before[0]);
}

// Returns {label, at(step, runs)}: the title of the x axis, and the position of a step of a line of these runs (a mean
// over seeds has several). `clocks`: name of a run -> its clock.
export function axis(kind, clocks) {
  const known = Object.values(clocks).filter((clock) => clock.length);
  if (!kind || !known.length) return { kind: "", label: "step", at: (step) => step };
  const column = kind === "tokens" ? 1 : 2;
  const most = Math.max(...known.map((clock) => clock.at(-1)[2]));
  const [, unit, size] = UNITS.find(([least]) => most >= least);
  const scale = kind === "tokens" ? 1 : size;
  const at = (step, runs) => {
    const own = runs.map((name) => clocks[name]).filter((clock) => clock?.length);
    const used = own.length ? own : known;
    return used.reduce((sum, clock) => sum + interpolated(clock, step, column), 0) / used.length / scale;
  };
  return { kind, label: kind === "tokens" ? "tokens" : unit, at };
}

const finite = (number) => (number !== null && number !== undefined && Number.isFinite(value(number)) ? value(number) : null);

// Exponential moving average of the values that count, without the bias of its start (as in TensorBoard).
function smoothed(points, weight) {
  let sum = 0, total = 0;
  return points.map(([, size, , , counts]) => {
    const known = finite(size);
    if (known === null || !counts) return null;
    [sum, total] = [weight * sum + (1 - weight) * known, weight * total + (1 - weight)];
    return sum / total;
  });
}

// Returns {data, steps}: uPlot's columns (positions, then COLUMNS for each line), and step of line i at position k as
// steps[i][k]. A position that a line does not have is undefined, and the line goes on; null is a gap, as where a reward
// was not paid, or a value that a logarithmic axis cannot show.
export function columns(lines, x, smoothing, logarithmic) {
  const places = lines.map((line) => line.points.map(([step]) => x.at(step, line.runs)));
  const positions = [...new Set(places.flat())].sort((a, b) => a - b);
  const index = new Map(positions.map((position, i) => [position, i]));
  const shown = (number) => (logarithmic && !(number > 0) ? null : number);
  const data = [positions], steps = [];
  lines.forEach((line, i) => {
    const made = Array.from({ length: COLUMNS }, () => Array(positions.length).fill(undefined));
    const own = Array(positions.length).fill(undefined);
    const means = smoothing ? smoothed(line.points, smoothing) : null;
    line.points.forEach(([step, size, low, high, counts, lower, upper], nth) => {
      const at = index.get(places[i][nth]);
      own[at] = step;
      made[counts ? 0 : 1][at] = shown(means && counts ? means[nth] : finite(size));
      if (means) made[6][at] = shown(finite(size));
      [low, high, lower, upper].forEach((bound, column) => { made[2 + column][at] = shown(finite(bound)); });
    });
    data.push(...made);
    steps.push(own);
  });
  return { data, steps };
}

// Round numbers within [low, high], about `count` of them; powers of ten if the axis is logarithmic.
export function ticks(low, high, count, logarithmic) {
  if (logarithmic && high / low >= 10) {
    const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
    return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
  }
  const rough = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((each) => each * power >= rough) ?? 10);
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, i) => (Math.ceil(low / step) + i) * step);
}

export const tickText = (number) => figure(Number(number.toPrecision(10)));
