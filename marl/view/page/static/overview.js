// Overview of runs: cards, curves, final metrics, differing settings and costs.
import { figure, go, html, useMemo, useState } from "./words.js";
import { live, useAnswer } from "./store.js";
import { spelled } from "./text.js";
import { Chart } from "./chart.js";
import { AXES, axis, SMOOTHINGS } from "./curves.js";
import { Cards } from "./cards.js";
import { Forecasts } from "./forecasts.js";
import { RoleWorth } from "./role_worth.js";
import { LearnedInstructions } from "./instructions.js";
import { GOALS } from "./run_state.js";
import { Term } from "./meanings.js";

function Look({ query, change }) {
  const choice = (name, label, choices) => html`<label>${label} <select value=${query[name] || ""} onChange=${(event) => change({ [name]: event.target.value })}>${choices.map(([kind, words]) => html`<option value=${kind}>${words}</option>`)}</select></label>`;
  return html`${choice("x", "x axis", Object.entries(AXES))}${choice("smooth", "smoothing", SMOOTHINGS)}${choice("scale", "y axis", [["", "linear"], ["log", "logarithmic"]])}`;
}

function Curves({ runs, query, change, version, theme }) {
  const several = runs.length > 1;
  const by = query.by ?? "", band = query.band ?? (several ? "seeds" : "");
  const asked = { by, band, ...(query.metrics ? { metrics: query.metrics } : {}) };
  const { answer, error } = useAnswer("curves", asked, version);
  const metrics = [...new Set(runs.flatMap((run) => run.metrics))].sort();
  const alarms = useMemo(() => runs.flatMap((run) => run.alarms.map((alarm) => ({ ...alarm, run: run.name }))), [version]);
  const look = useMemo(() => ({ x: axis(query.x || "", Object.fromEntries(runs.map((run) => [run.name, run.clock]))), smoothing: Number(query.smooth || 0), logarithmic: query.scale === "log" }), [version, query.x, query.smooth, query.scale]);
  const add = (event) => { if (metrics.includes(event.target.value)) { change({ metrics: [query.metrics, event.target.value].filter(Boolean).join(",") }); event.target.value = ""; } };
  // A mean over several runs belongs to none of them: its band is first taken apart into their lines.
  const open = (line, step) => (line.runs.length > 1 ? change({ band: "" }) : go("episodes", { run: line.runs[0], first: step, last: step }));
  return html`<section aria-label="curves"><h2>curves</h2><p class="tools">
    <label>panels <select value=${by} onChange=${(event) => change({ by: event.target.value })}><option value="">by metric</option><option value="role">by role</option></select></label>
    ${several ? html`<label>seeds <select value=${band} onChange=${(event) => change({ band: event.target.value })}><option value="seeds">as one band</option><option value="">each a line</option></select></label>` : null}
    <${Look} query=${query} change=${change} />
    ${live ? html`<label>metric <input list="metrics" placeholder="Add a metric …" onChange=${add} /></label><datalist id="metrics">${metrics.map((name) => html`<option value=${name} />`)}</datalist>
    ${query.metrics ? html`<button type="button" onClick=${() => change({ metrics: "" })}>Default metrics</button>` : null}` : null}</p>
    ${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : null}
    ${answer ? html`<div class="charts">${answer.panels.map((panel) => html`<${Chart} key=${panel.metric} panel=${panel} alarms=${alarms} theme=${theme} open=${open} look=${look} />`)}</div>
      ${answer.left_out.length ? html`<details><summary>${answer.left_out.length} more metrics, not drawn by default</summary><p>${answer.left_out.join(", ")}</p></details>` : null}` : html`<p role="status">reading the curves…</p>`}</section>`;
}

const ALL = "-";  // in the address: no two runs, but all

// The two runs that are compared: those of the address, or the only two; null: all runs.
function pairOf(runs, query) {
  const names = runs.filter((run) => !run.problem).map((run) => run.name);
  const [first, second] = [query.first, query.second].map((name) => (names.includes(name) ? name : null));
  if (first && second && first !== second) return { first, second };
  return names.length === 2 && runs.length === 2 && query.first !== ALL ? { first: names[0], second: names[1] } : null;
}

function PairChoice({ runs, pair, query, change }) {
  const names = runs.filter((run) => !run.problem).map((run) => run.name);
  if (names.length < 2 || !live) return null;
  const first = pair?.first ?? (names.includes(query.first) ? query.first : ALL);
  const options = (list) => list.map((name) => html`<option value=${name}>${name}</option>`);
  const others = names.filter((name) => name !== first);
  const choose = (name) => change({ first: name, second: name === ALL ? "" : pair && pair.second !== name ? pair.second : names[(names.indexOf(name) + 1) % names.length] });
  return html`<p class="tools"><label>compare <select aria-label="compare run" value=${first} onChange=${(event) => choose(event.target.value)}><option value=${ALL}>all runs</option>${options(names)}</select></label>
    ${pair ? html`<label>with <select aria-label="with run" value=${pair.second} onChange=${(event) => change({ first: pair.first, second: event.target.value })}>${options(others)}</select></label>` : null}</p>`;
}

const between = (each) => (each.low === null ? "" : ` [${figure(each.low)}, ${figure(each.high)}]`);

function Figures({ compared, names, pair }) {
  const cell = (each, signed = false) => (each === null ? "–" : `${figure(each.value, signed)}${between(each)}`);
  return html`<section aria-label="final figures"><h2>final figures</h2><p class="faint">Mean of the last tenth of the steps, and of counters the total at the end; intervals are 95 %, over seeds where there are several.</p>
    <div class="wide" tabindex="0" role="region" aria-label="table of final figures"><table><thead><tr><th>figure</th>${names.map((name) => html`<th>${name}</th>`)}${pair ? html`<th>${pair.second} − ${pair.first}</th>` : null}</tr></thead>
    <tbody>${compared.figures.map((row) => html`<tr><th scope="row"><${Term} kind="metrics" name=${row.name} />${row.goal ? html` <small>${GOALS[row.goal]}</small>` : null}</th>${row.values.map((each) => html`<td>${cell(each)}</td>`)}${pair ? html`<td>${cell(row.difference, true)}</td>` : null}</tr>`)}</tbody></table></div></section>`;
}

const SEED = "schedule.seed";

function Settings({ compared, names, pair }) {
  const [all, setAll] = useState(false);
  const seeds = compared.settings.filter((row) => pair && row.name === SEED && row.values[0] !== row.values[1]).map((row) => row.name);
  const differing = new Set([...compared.differing, ...seeds]);
  const several = compared.groups.length > 1;
  const rows = compared.settings.filter((row) => all || !several || differing.has(row.name));
  const words = !pair ? `${differing.size} differ, seeds left out` : compared.differing.length ? `${differing.size} differ` : seeds.length ? "The runs differ only in their seed." : "No setting differs, not even the seed.";
  return html`<section aria-label="settings"><h2>settings</h2>${several ? html`<p class="tools"><button type="button" aria-pressed=${all ? "true" : "false"} onClick=${() => setAll(!all)}>all settings</button>
    <span>${words}</span></p>` : null}
    ${rows.length ? html`<div class="wide short settings" tabindex="0" role="region" aria-label="table of settings"><table><thead><tr><th>setting</th>${names.map((name) => html`<th>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr class=${several && differing.has(row.name) ? "differs" : null}><th scope="row">${row.name}</th>${row.values.map((each) => html`<td class="text">${each === null ? "–" : spelled(each)}</td>`)}</tr>`)}</tbody></table></div>` : null}</section>`;
}

function Comparison({ runs, query, change, version }) {
  const pair = pairOf(runs, query);
  const { answer: compared, error } = useAnswer("settings", pair || {}, version);
  const names = pair ? [pair.first, pair.second] : compared?.groups.map((group) => group.name);
  return html`${runs.length > 1 ? html`<h2 id="comparison">comparison</h2>` : null}<${PairChoice} runs=${runs} pair=${pair} query=${query} change=${change} />
    ${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : null}
    ${compared ? html`<${Figures} compared=${compared} names=${names} pair=${pair} /><${Settings} compared=${compared} names=${names} pair=${pair} />` : error ? null : html`<p role="status">comparing the runs…</p>`}`;
}

function Ledger({ runs }) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.ledger)))];
  const facts = [...new Set(runs.flatMap((run) => Object.keys(run.environment)))];
  const unit = (name) => (name.startsWith("time/") ? " s" : "");
  return html`<section aria-label="ledger"><h2>tokens and time</h2>
    <div class="wide" tabindex="0" role="region" aria-label="table of costs"><table><thead><tr><th>sum over the run</th>${runs.map((run) => html`<th>${run.name}</th>`)}</tr></thead>
    <tbody>${names.map((name) => html`<tr><th scope="row"><${Term} kind="metrics" name=${name} /></th>${runs.map((run) => html`<td>${name in run.ledger ? figure(run.ledger[name]) + unit(name) : "–"}</td>`)}</tr>`)}</tbody></table></div>
    <details><summary>machine and versions</summary><div class="wide" tabindex="0" role="region" aria-label="machine and versions"><table><thead><tr><th>fact</th>${runs.map((run) => html`<th>${run.name}</th>`)}</tr></thead>
      <tbody>${facts.map((name) => html`<tr><th scope="row">${name}</th>${runs.map((run) => html`<td class="text">${spelled(String(run.environment[name] ?? "–"))}</td>`)}</tr>`)}</tbody></table></div></details></section>`;
}

export function OverviewPage({ runs, status, query, change, version, theme }) {
  return html`<${Cards} runs=${runs} status=${status} /><${Curves} runs=${runs} query=${query} change=${change} version=${version} theme=${theme} />
    <${Comparison} runs=${runs} query=${query} change=${change} version=${version} /><${RoleWorth} runs=${runs} /><${Forecasts} runs=${runs} /><${LearnedInstructions} runs=${runs} version=${version} /><${Ledger} runs=${runs} />`;
}
