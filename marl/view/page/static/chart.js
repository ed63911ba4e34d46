// Charts: a line with intervals per run or role, the values under the pointer, alarms as shaded backgrounds, files, and
// an accessible table of values.
import { alarmName, GOALS, stepRanges } from "./run_state.js";
import { figure, html, useEffect, useMemo, useRef, useState } from "./words.js";
import { COLUMNS, columns } from "./curves.js";
import { onPaper } from "./paper.js";
import { saveCsv, savePng, saveSvg } from "./chart_files.js";

const HEIGHT = 236;
const FEW = 40;
const NONE = [];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Points that are drawn as dots: all of a short line; of a long one those between two gaps, which would not be seen.
function marked(all) {
  return (plot, series) => {
    const values = plot.data[series].map((size, i) => [size, i]).filter(([size]) => size !== undefined);
    const gap = (near) => near === undefined || near[0] === null;
    return values.filter(([size], at) => size !== null && (all || (gap(values[at - 1]) && gap(values[at + 1])))).map(([, i]) => i);
  };
}

// Value that a line shows at a position: the drawn one, or one that does not count.
const shownAt = (data, line, index) => data[1 + COLUMNS * line]?.[index] ?? data[2 + COLUMNS * line]?.[index] ?? null;

// Index of the line that is drawn nearest to the pointer, at the position under it, or null.
function nearest(plot, count) {
  const { idx, top } = plot.cursor;
  const distances = Array.from({ length: count }, (_, line) => [shownAt(plot.data, line, idx), line]).filter(([size]) => size !== null)
    .map(([size, line]) => [Math.abs(plot.valToPos(size, "y") - top), line]).sort(([a], [b]) => a - b);
  return distances.length ? distances[0][1] : null;
}

function series(line, smoothing) {
  const stroke = line.colour, hidden = { stroke: "transparent", points: { show: false } };
  return [
    { label: line.name, stroke, width: 1.6, dash: line.dash, points: { show: true, size: 5, filter: marked(!smoothing && line.points.length <= FEW) } },
    { label: `${line.name}, does not count`, stroke, width: 0, points: { show: true, size: 5, fill: "transparent" } },
    hidden, hidden, hidden, hidden,
    { stroke: `${stroke}55`, width: 1, points: { show: false } },
  ];
}

function options(panel, look, width, hooks) {
  const bands = panel.lines.flatMap((line, i) => [3, 5].map((low) => ({ series: [COLUMNS * i + low + 1, COLUMNS * i + low], fill: `${line.colour}26` })));
  const axis = { stroke: () => style("--ink"), grid: { stroke: () => style("--rule"), width: 1 }, ticks: { stroke: () => style("--rule"), width: 1 }, font: "11px system-ui", labelFont: "11px system-ui", labelSize: 16 };
  const values = (_, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick)));
  return {
    width, height: HEIGHT, series: [{}, ...panel.lines.flatMap((line) => series(line, look.smoothing))], bands, legend: { show: false }, hooks,
    cursor: { points: { show: false }, drag: { setScale: false, x: false, y: false }, sync: { key: "curves", scales: ["x", null] } },
    scales: { x: { time: false }, y: { distr: look.logarithmic ? 3 : 1 } },
    axes: [{ ...axis, label: look.x.label, size: 34, values }, { ...axis, size: 58, ...(panel.unit ? { label: panel.unit } : {}), values }],
  };
}

// Alarms of the runs that have values in this chart: a line without any is not drawn, so its run's alarms are not either.
export const alarmsOf = (panel, alarms) => alarms.filter(({ run }) => panel.lines.some((line) => line.runs.includes(run) && measured(line).length));

const shadedWords = (alarm) => `shaded: alarm of run ${alarm.run}, ${alarmName(alarm)}, ${stepRanges(alarm)}`;

function shadeAlarms(plot, alarms, x) {
  plot.ctx.fillStyle = "rgba(220, 60, 60, 0.16)";
  for (const { run, ranges } of alarms) {
    for (const [first, last] of ranges) {
      const begin = plot.valToPos(x.at(first - 0.5, [run]), "x", true), end = plot.valToPos(x.at(last + 0.5, [run]), "x", true);
      const left = Math.max(begin, plot.bbox.left), right = Math.min(end, plot.bbox.left + plot.bbox.width);
      if (right > left) plot.ctx.fillRect(left, plot.bbox.top, right - left, plot.bbox.height);
    }
  }
}

const measured = (line) => line.points.filter((point) => point[1] !== null);

const summary = (panel) => panel.lines.filter((line) => measured(line).length).map((line) => {
  const [first, last] = [measured(line)[0], measured(line).at(-1)];
  return `${line.name}: ${figure(first[1])} at step ${first[0]}, ${figure(last[1])} at step ${last[0]}`;
}).join("; ");

function Values({ panel }) {
  return html`<div class="wide short" tabindex="0" role="region" aria-label="values of ${panel.metric}"><table><thead><tr><th>line</th><th>step</th><th>value</th><th>interval</th></tr></thead>
    <tbody>${panel.lines.flatMap((line) => line.points.map(([step, size, low, high, counts]) => html`<tr><td>${line.name}</td><td>${step}</td><td>${figure(size)}${counts ? "" : " (does not count)"}</td>
      <td>${low === null ? "" : `${figure(low)} to ${figure(high)}`}</td></tr>`))}</tbody></table></div>`;
}

// Values under the pointer, or the last ones, as they were measured also where the line is smoothed.
function Legend({ panel, drawn, x, at, alarms }) {
  const entries = panel.lines.map((line, i) => {
    const index = at === null ? drawn.data[0].findLastIndex((_, k) => shownAt(drawn.data, i, k) !== null) : at;
    return { line, size: drawn.data[7 + COLUMNS * i][index] ?? shownAt(drawn.data, i, index), step: drawn.steps[i][index] };
  });
  const steps = [...new Set(entries.map((each) => each.step).filter((step) => step !== undefined))];
  const where = at === null ? "last" : x.kind ? `${figure(Number(drawn.data[0][at]?.toPrecision(4)))} ${x.label}, step ${steps.join(", ")}` : `step ${drawn.data[0][at]}`;
  return html`<p class="legend"><span>${where}</span>${entries.map(({ line, size }) => (at !== null || size !== null ? html`<span><i style=${{ backgroundColor: line.colour }}></i>${line.name} <b>${figure(size)}</b></span>` : null))}
    ${alarms.map((alarm) => html`<span class="alarm-key"><span class="swatch"></span>${shadedWords(alarm)}</span>`)}</p>`;
}

// `look`: {x, smoothing, logarithmic}; `alarms`: alarms of all runs, each with its `run`; `open(line, step)`: what a click on a curve does.
export function Chart({ panel, alarms: all = NONE, theme, open, look }) {
  const holder = useRef(null), plot = useRef(null), [table, setTable] = useState(false), [at, setAt] = useState(null);
  const drawn = useMemo(() => columns(panel.lines, look.x, look.smoothing, look.logarithmic), [panel, look]);
  const alarms = useMemo(() => alarmsOf(panel, all), [panel, all]);
  const label = useMemo(() => [`${panel.metric}${panel.unit ? ` [${panel.unit}]` : ""}. ${summary(panel)}`, ...alarms.map(shadedWords)].join("; "), [panel, alarms]);
  useEffect(() => {
    const width = () => Math.max(240, holder.current.clientWidth);
    const click = () => {
      const { idx } = plot.current.cursor, line = idx === null || idx === undefined ? null : nearest(plot.current, panel.lines.length);
      if (open && line !== null && drawn.steps[line][idx]) open(panel.lines[line], drawn.steps[line][idx]);
    };
    const hooks = {
      drawClear: [(made) => shadeAlarms(made, alarms, look.x)], ready: [(made) => made.over.addEventListener("click", click)],
      setCursor: [(made) => setAt(made.cursor.left < 0 ? null : made.cursor.idx ?? null)],
    };
    holder.current.replaceChildren();
    setAt(null);
    plot.current = new globalThis.uPlot(options(panel, look, width(), hooks), drawn.data, holder.current);
    const resized = new ResizeObserver(() => { if (plot.current.width !== width()) plot.current.setSize({ width: width(), height: HEIGHT }); });
    resized.observe(holder.current);
    const forget = onPaper(() => plot.current.redraw(false));
    return () => { forget(); resized.disconnect(); plot.current.destroy(); };
  }, [drawn, alarms, theme]);
  const button = (words, press, more = {}) => html`<button type="button" class="quiet" onClick=${press} ...${more}>${words}</button>`;
  return html`<figure class="chart"><figcaption title=${panel.meaning || null}>${panel.metric}${panel.goal ? html` <small>${GOALS[panel.goal]}</small>` : null}</figcaption>
    <div ref=${holder} role="img" aria-label=${label}></div>
    <${Legend} panel=${panel} drawn=${drawn} x=${look.x} at=${at} alarms=${alarms} />
    <p class="tools files">${button("values", () => setTable(!table), { "aria-expanded": table ? "true" : "false" })}
      ${button("PNG", () => savePng(panel, plot.current), { "aria-label": `save ${panel.metric} as PNG` })}${button("SVG", () => saveSvg(panel, plot.current, look.x, panel.unit, look.logarithmic), { "aria-label": `save ${panel.metric} as SVG` })}${button("CSV", () => saveCsv(panel, look.x), { "aria-label": `save ${panel.metric} as CSV` })}
      ${panel.meaning ? html`<span class="meaning">${panel.meaning}</span>` : null}</p>
    ${table ? html`<${Values} panel=${panel} />` : null}</figure>`;
}
