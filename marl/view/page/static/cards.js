// Cards of runs: whether each is going well, at a glance, with the figures behind that sentence.
import { address, figure, html, value } from "./words.js";
import { spelled } from "./text.js";
import { Term, written } from "./meanings.js";
import { alarmName, alarmSentence, GOALS, State, stepRanges } from "./run_state.js";

const RUNNING = ["training", "silent"];
const SPARK = { width: 150, height: 40 };
const VERDICTS = { // verdict: [sign, words while it trains, words afterwards, class]
  better: ["▲", "getting better", "got better", "good"], worse: ["▼", "getting worse", "got worse", "warning"],
  rose: ["↑", "rising", "rose", ""], fell: ["↓", "falling", "fell", ""], "no clear change": ["=", "no clear change yet", "no clear change", ""],
  "measured once": ["·", "measured once so far", "measured once", ""], "does not count": ["?", "the figure does not count", "the figure does not count", "warning"],
};

// A duration [s] as the terminal writes it (format_duration in marl/runs/liveness.py).
export function duration(seconds) {
  const total = Math.max(0, Math.round(seconds)), minutes = Math.floor(total / 60) % 60, hours = Math.floor(total / 3600) % 24, days = Math.floor(total / 86400);
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${minutes} min ${total % 60} s`;
  return days ? `${days} d ${hours} h` : `${hours} h ${minutes} min`;
}

const active = (run) => run.alarms.filter((alarm) => alarm.ranges.at(-1)[1] === run.step);

// The one sentence on a run: its state if that needs a person, else an alarm that holds, else its main figure.
function headline(run, status) {
  const state = status?.state ?? "", running = RUNNING.includes(state);
  if (run.problem) return ["!", "cannot be read", "warning"];
  if (state && !["training", "ended", "not started"].includes(state)) return ["!", state, "warning"];
  if (active(run).length) return ["!", `alarm: ${alarmSentence(active(run)[0])}`, "warning"];
  if (!run.step) return ["·", "no step yet", ""];
  if (!run.figure) return ["?", "nothing tells whether it learns", ""];
  const [sign, during, after, look] = VERDICTS[run.figure.verdict];
  return [sign, running ? during : after, look];
}

function Spark({ curve, colour }) {
  const points = curve.map(([step, size]) => [step, value(size)]).filter(([, size]) => Number.isFinite(size));
  if (points.length < 2) return null;
  const [least, most] = [Math.min(...points.map(([, size]) => size)), Math.max(...points.map(([, size]) => size))];
  const x = (step) => 2 + ((SPARK.width - 4) * (step - points[0][0])) / (points.at(-1)[0] - points[0][0] || 1);
  const y = (size) => SPARK.height - 3 - ((SPARK.height - 6) * (size - least)) / (most - least || 1);
  const [step, size] = points.at(-1);
  return html`<svg class="spark" width=${SPARK.width} height=${SPARK.height} viewBox="0 0 ${SPARK.width} ${SPARK.height}" aria-hidden="true">
    <polyline points=${points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ")} fill="none" stroke=${colour} stroke-width="1.8" /><circle cx=${x(step)} cy=${y(size)} r="2.6" fill=${colour} /></svg>`;
}

const between = (low, high) => (low === null ? "" : ` [${figure(low)}, ${figure(high)}]`);

function MainFigure({ main, colour }) {
  if (!main) return html`<p class="faint">No evaluation tells whether it learns; <code>evaluate</code> in the scenario adds one.</p>`;
  const once = main.first.step === main.last.step;
  return html`<div class="main-figure"><div><h4><${Term} kind="metrics" name=${main.metric}>${spelled(main.title)}<//>${main.goal && !main.metric.startsWith("episode/return/") ? html` <small>(${GOALS[main.goal]})</small>` : null}</h4>
    <p class="figure">${once ? "" : html`<span class="faint">${figure(main.first.value)} → </span>`}<b>${figure(main.last.value)}</b> <small>${between(main.last.low, main.last.high)}</small></p></div><${Spark} curve=${main.curve} colour=${colour} /></div>
    <p class="faint">${once ? `step ${main.last.step}` : `step ${main.first.step} to ${main.last.step}: ${figure(main.difference, true)}${between(main.difference_low, main.difference_high)}`}${main.basis === "exact" ? ", exact" : main.basis.startsWith("no") ? `, ${main.basis}` : `; 95 % interval ${main.basis}`}</p>`;
}

function Progress({ run, status }) {
  const left = RUNNING.includes(status?.state) && run.planned && run.step_s && run.step < run.planned ? `, about ${duration(run.step_s * (run.planned - run.step))} left` : "";
  return html`<p>${run.planned ? html`<progress max=${run.planned} value=${Math.min(run.step, run.planned)} aria-label="steps of ${run.name}"></progress> ` : null}step ${figure(run.step)}${run.planned ? ` of ${figure(run.planned)}` : ""}${left}</p>
    <p class="faint"><${State} status=${status} whole=${true} /></p>`;
}

// `main`: the main figure, whose name stands above.
function Best({ best, main }) {
  if (!best) return null;
  return html`<p>best: ${figure(best.value)} after step ${best.step}${main?.metric === best.metric ? "" : ` (${spelled(best.metric)})`}${best.kept ? "" : best.step ? ", its checkpoint is not kept" : ", before training"}</p>`;
}

function Links({ run }) {
  const link = (words, view, query = {}) => html`<a href=${address(view, { run: run.name, ...query })} aria-label="${words} of ${run.name}">${words}</a>`;
  return html`<p class="tools">${link("episodes", "episodes")}${link("worst", "episodes", { order: "worst", figure: run.ordering_figure })}${link("steps", "steps")}${link("held-out", "held_out")}<span class="faint">${figure(run.index.episodes)} episodes recorded</span></p>`;
}

function Card({ run, status }) {
  const [sign, words, look] = headline(run, status);
  return html`<li class="run-card" style=${{ borderTopColor: run.colour }}>
    <div class="run-head"><h3><i class="swatch" style=${{ backgroundColor: run.colour }}></i>${run.name}</h3><b class="verdict ${look}"><span aria-hidden="true">${sign}</span> ${spelled(words)}</b></div>
    <${Progress} run=${run} status=${status} />
    ${run.problem ? html`<p class="warning">${spelled(run.problem)}</p>` : html`<${MainFigure} main=${run.figure} colour=${run.colour} />`}
    <${Best} best=${run.best} main=${run.figure} />
    ${run.warnings.map((warning) => html`<p class="warning">WARNING ${written(spelled(warning))}</p>`)}
    ${run.alarms.map((alarm) => html`<p class=${active(run).includes(alarm) ? "warning" : "faint"}>ALARM run ${run.name}, <${Term} kind="metrics" name=${alarm.name}>${alarmName(alarm)}<//>, ${stepRanges(alarm)}${active(run).includes(alarm) ? ", still holds" : ""}
      ${" "}<a href=${address("episodes", { run: run.name, alarm: alarm.name })}>episodes of these steps</a></p>`)}
    <${Links} run=${run} /></li>`;
}

export function Cards({ runs, status }) {
  const compare = () => document.getElementById("comparison").scrollIntoView();
  return html`<h2>runs${runs.length > 1 ? html` <button type="button" class="quiet" onClick=${compare}>compare two runs</button>` : null}</h2><ul class="runs" role="list">${runs.map((run) => html`<${Card} key=${run.name} run=${run} status=${status[run.name]} />`)}</ul>`;
}
