// Information states of a step: move frequencies, beside the game's reference players.
import { address, html, share, stay, useState } from "./words.js";
import { live, useAnswer } from "./store.js";
import { cut, spelled, Written } from "./text.js";
import { Board, Moves } from "./board.js";

function State({ run, step, each }) {
  const columns = { "played": each.made, "probability": each.sampled, ...each.reference };
  return html`<article class="state"><h3>${each.game ? `${each.game}, ` : ""}${each.role} <small>${each.turns} turns${each.unreadable ? `, ${share(each.unreadable)} unreadable` : ""}</small></h3>
    ${each.drawing ? html`<${Board} drawing=${each.drawing} />` : html`<${Written} text=${cut(each.state, 400)} label="information state" />`}
    <${Moves} moves=${each.moves} columns=${columns} /></article>`;
}

const AT_ONCE = 60;

// Strategies measured by an evaluation: the newest policy, the run's average policy and the reference players.
function Strategy({ each }) {
  const columns = { newest: each.newest, ...(each.average ? { average: each.average } : {}), ...each.reference };
  return html`<article class="state"><h3>${each.game ? `${each.game}, ` : ""}${spelled(each.agent)} <small>${each.attempt ? `attempt ${each.attempt + 1}, ` : ""}${each.distance === null ? "" : `${share(each.distance)} away from ${Object.keys(each.reference)[0]}`}</small></h3>
    ${each.drawing ? html`<${Board} drawing=${each.drawing} />` : html`<${Written} text=${cut(each.state, 400)} label="information state" />`}
    <${Moves} moves=${each.moves} columns=${columns} /></article>`;
}

function Strategies({ run, query, version }) {
  const [shown, show] = useState(AT_ONCE);
  const { answer, error } = useAnswer("strategies", live ? { run: run.name, step: query.step || null } : { run: run.name }, version, true);
  if (error) return html`<p class="warning" role="alert">${spelled(error)}</p>`;
  if (!answer) return html`<p role="status">reading the strategies…</p>`;
  if (!answer.steps.length) return html`<p>No strategy was recorded; evaluations record them with the setting <code>evaluate.average</code>.</p>`;
  const far = query.order === "far";
  const states = far ? [...answer.states].sort((a, b) => (b.distance ?? -1) - (a.distance ?? -1)) : answer.states;
  const change = (changes) => stay("states", { ...query, run: run.name, ...changes });
  return html`<p class="tools"><label>step <select value=${String(answer.step)} disabled=${!live} onChange=${(event) => change({ step: event.target.value })}>${answer.steps.map((each) => html`<option value=${String(each)}>${each}</option>`)}</select></label>
      <label>order <select value=${far ? "far" : ""} onChange=${(event) => change({ order: event.target.value })}><option value="">as in the game</option><option value="far">furthest from the game's player first</option></select></label></p>
    <p class="faint">newest: the policy's own probabilities after step ${answer.step}${answer.averaged ? `; average: of ${answer.averaged} evaluations up to then, weighted by the agent's own probability of getting to the state` : ""}; then the game's reference players. The rest to 100 % are answers that are no legal move.</p>
    ${answer.problem ? html`<p class="warning">no average: ${spelled(answer.problem)}</p>` : null}
    ${answer.states.length < answer.count ? html`<p class="faint">This report holds the first ${answer.states.length} of ${answer.count} states.</p>` : null}
    <div class="states">${states.slice(0, shown).map((each) => html`<${Strategy} each=${each} />`)}</div>
    ${shown < states.length ? html`<p class="tools"><button type="button" onClick=${() => show(shown + AT_ONCE)}>more of ${states.length} states</button></p>` : null}`;
}

export function StatesPage({ run, query, version }) {
  const measured = query.of === "strategies";
  const choose = (event) => stay("states", { run: run.name, of: event.target.value });
  return html`<section aria-label="information states"><h2>information states of ${run.name}</h2>
    <p class="tools"><label>show <select value=${measured ? "strategies" : ""} onChange=${choose}><option value="">moves as they were played</option><option value="strategies">strategies measured by evaluations</option></select></label></p>
    ${measured ? html`<${Strategies} run=${run} query=${query} version=${version} />` : html`<${Played} run=${run} query=${query} version=${version} />`}</section>`;
}

function Played({ run, query, version }) {
  const steps = useAnswer("episodes", { run: run.name, limit: 1, order: "newest" }, version);
  const newest = steps.answer?.episodes[0]?.step;
  const step = query.step || newest;
  const { answer, error } = useAnswer(step ? "states" : null, { run: run.name, step }, 0);
  const choose = (event) => stay("states", { run: run.name, step: event.target.value });
  return html`<div>
    ${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : null}
    <p class="faint">played %: share of these turns; probability: mean probability of the sampled tokens, where the move was played; then the game's reference players.</p>
    ${answer ? html`<p class="tools"><label>step <select value=${String(step)} onChange=${choose}>${answer.steps.map((each) => html`<option value=${String(each)}>${each}</option>`)}</select></label>
      <a href=${address("episodes", { run: run.name, first: step, last: step })}>episodes of this step</a></p>
      ${answer.states.length ? html`<div class="states">${answer.states.map((each) => html`<${State} run=${run} step=${step} each=${each} />`)}</div>`
    : html`<p>No turn of this step had a list of legal moves to choose from.</p>`}` : html`<p role="status">${error ? "" : "reading the step…"}</p>`}</div>`;
}
