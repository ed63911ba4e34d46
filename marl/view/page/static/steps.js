// Steps of a run: metric rows, newest first, with all metrics of one step on demand.
import { address, figure, go, html, stay, useEffect, useRef } from "./words.js";
import { live, useAnswer } from "./store.js";
import { spelled } from "./text.js";
import { Chart } from "./chart.js";
import { axis } from "./curves.js";
import { Term, useMeanings, written } from "./meanings.js";

const PAGE = 100;

// The rules are compared on one episode: the first that was recorded of the step.
function StepLinks({ run, step, rules }) {
  const { answer } = useAnswer("episodes", { run: run.name, first: step, last: step, order: "oldest", limit: 1 });
  if (!answer) return null;
  if (!answer.episodes.length) return html`<p class="faint">No episode of this step was recorded.</p>`;
  return html`<p class="tools"><a href=${address("episodes", { run: run.name, first: step, last: step })}>its episodes</a><a href=${address("states", { run: run.name, step })}>its information states</a>
    ${rules ? html`<a href=${address("episode", { run: run.name, step, episode: answer.episodes[0].episode })}>compare credit rules</a>` : null}</p>`;
}

function Step({ run, step, rules }) {
  const { answer, error } = useAnswer("row", { run: run.name, step });
  const section = useRef(null), meanings = useMeanings()?.metrics ?? {};
  useEffect(() => { section.current?.scrollIntoView(); }, [step]);
  if (error) return html`<p class="warning" role="alert">${spelled(error)}</p>`;
  return html`<section ref=${section} aria-label="step ${step}"><h3>step ${step}</h3><${StepLinks} run=${run} step=${step} rules=${rules} />
    ${answer ? html`<div class="wide short" tabindex="0" role="region" aria-label="all metrics of step ${step}"><table><tbody>${Object.entries(answer).map(([name, number]) => html`<tr><th scope="row">${name}</th><td>${figure(number)}</td><td class="faint">${meanings[name]?.unit}</td><td class="faint text">${written(meanings[name]?.meaning ?? "")}</td></tr>`)}</tbody></table></div>` : null}</section>`;
}

const LOOK = { x: axis("", {}), smoothing: 0, logarithmic: false };

// Advantages, lengths and entropies in the recorded steps: median, the middle 50 % and the middle 90 % of each role.
function Distributions({ run, version, theme }) {
  const { answer, error } = useAnswer("distributions", { run: run.name }, version, true);
  if (error) return html`<p class="warning" role="alert">${spelled(error)}</p>`;
  if (!answer) return html`<p role="status">reading the recorded steps…</p>`;
  if (!answer.panels.length) return null;
  const open = (_, step) => go("episodes", { run: run.name, first: step, last: step });
  return html`<section aria-label="distributions"><h2>distributions by step</h2><p class="faint">Line: median; bands: the middle 50 % and the middle 90 %${answer.read < answer.recorded ? `; ${answer.read} of ${answer.recorded} recorded steps` : ""}. A click opens the step's episodes.</p>
    <div class="charts">${answer.panels.map((panel) => html`<${Chart} key=${panel.metric} panel=${panel} theme=${theme} open=${open} look=${LOOK} />`)}</div></section>`;
}

export function StepsPage({ run, query, version, theme, rules }) {
  const offset = Number(query.offset || 0);
  const { answer, error } = useAnswer("rows", { run: run.name, ...(live ? { offset, limit: PAGE } : {}) }, version);
  const open = (step) => (live ? go("steps", { ...query, run: run.name, step }) : null);
  const turn = (to) => stay("steps", { ...query, run: run.name, offset: to });
  if (error) return html`<h2>steps of ${run.name}</h2><p class="warning" role="alert">${spelled(error)}</p>`;
  if (!answer) return html`<p role="status">reading the steps…</p>`;
  return html`<section aria-label="steps"><h2>steps of ${run.name}</h2>${query.step && live ? html`<${Step} run=${run} step=${query.step} rules=${rules} />` : null}
    <${Distributions} run=${run} version=${version} theme=${theme} />
    <div class="wide" tabindex="0" role="region" aria-label="steps"><table class="list"><thead><tr><th>step</th>${answer.columns.map((name) => html`<th><${Term} kind="metrics" name=${name} /></th>`)}</tr></thead>
    <tbody>${answer.rows.map((row) => html`<tr class=${`${live ? "opens" : ""} ${String(row.step) === query.step ? "chosen" : ""}`} onClick=${() => open(row.step)}><th scope="row">${live ? html`<a href=${address("steps", { ...query, run: run.name, step: row.step })}>${row.step}</a>` : row.step}</th>
      ${answer.columns.map((name) => html`<td>${figure(row[name])}</td>`)}</tr>`)}</tbody></table></div>
    ${live ? html`<nav class="tools" aria-label="pages">${offset > 0 ? html`<button type="button" onClick=${() => turn(Math.max(0, offset - PAGE))}>newer</button>` : null}
      ${offset + PAGE < answer.count ? html`<button type="button" onClick=${() => turn(offset + PAGE)}>older</button>` : null}</nav>` : null}</section>`;
}
