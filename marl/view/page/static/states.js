// Information states of a step: how often each move was made there, beside the players that the game exports.
import { address, html, share, stay } from "./words.js";
import { useAnswer } from "./store.js";
import { cut, spelled, Written } from "./text.js";
import { Board, Moves } from "./board.js";

function State({ run, step, each }) {
  const columns = { made: each.made, policy: each.sampled, ...each.reference };
  return html`<article class="state"><h3>${each.game ? `${each.game}, ` : ""}${each.role} <small>${each.turns} turns${each.unreadable ? `, ${share(each.unreadable)} unreadable` : ""}</small></h3>
    ${each.drawing ? html`<${Board} drawing=${each.drawing} />` : html`<${Written} text=${cut(each.state, 400)} label="information state" />`}
    <${Moves} moves=${each.moves} columns=${columns} /></article>`;
}

export function StatesPage({ run, query, version }) {
  const steps = useAnswer("episodes", { run: run.name, limit: 1, order: "newest" }, version);
  const newest = steps.answer?.episodes[0]?.step;
  const step = query.step || newest;
  const { answer, error } = useAnswer(step ? "states" : null, { run: run.name, step }, 0);
  const choose = (event) => stay("states", { run: run.name, step: event.target.value });
  return html`<section aria-label="information states"><h2>information states of ${run.name}${step ? `, step ${step}` : ""}</h2>
    ${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : null}
    <p class="faint">made: share of these turns; policy: mean probability of the sampled tokens, where the move was made; then the players that the game exports.</p>
    ${answer ? html`<p class="tools"><label>step <select value=${String(step)} onChange=${choose}>${answer.steps.map((each) => html`<option value=${String(each)}>${each}</option>`)}</select></label>
      <a href=${address("episodes", { run: run.name, first: step, last: step })}>episodes of this step</a></p>
      ${answer.states.length ? html`<div class="states">${answer.states.map((each) => html`<${State} run=${run} step=${step} each=${each} />`)}</div>`
    : html`<p>No turn of this step had a list of legal moves to choose from.</p>`}` : html`<p role="status">${error ? "" : "reading the step…"}</p>`}</section>`;
}
