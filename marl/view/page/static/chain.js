// Derivation of a turn's advantage: rewards with causes, assigned credit, peers and baseline.
import { figure, html, value } from "./words.js";
import { spelled } from "./text.js";
import { EpisodeLink } from "./run_state.js";
import { Term } from "./meanings.js";

// A rule with its settings, such as `flow {"depth": 2}`; its kind is explained.
function Rule({ part, rule }) {
  return html`<h4><${Term} kind="glossary" name=${part} /> <${Term} kind=${part} name=${rule.split(" ")[0]}><code>${spelled(rule)}</code><//></h4>`;
}

const sign = (number) => (value(number) > 0 ? "plus" : value(number) < 0 ? "minus" : null);

function Rewards({ chain }) {
  return html`<li><h4><${Term} kind="glossary" name="reward">rewards<//>${chain.pool.length > 1 ? `, shared by ${chain.pool.join(", ")}` : ""}</h4>
    ${chain.rewards.length === 0 ? html`<p>none was paid</p>` : html`<ul class="plain">${chain.rewards.map((reward) => html`<li>
      <b class=${sign(reward.value)}>${figure(reward.value, true)}</b> ${spelled(reward.name)} to ${spelled(reward.agent)} after turn ${reward.turn}
      ${reward.cause ? html`<span class="cause"> ${spelled(reward.cause)}</span>` : null}</li>`)}</ul>`}
    ${chain.pool.length ? html`<p>in all <b data-figure="pool_reward">${figure(chain.pool_reward, true)}</b>${chain.reward_scale === 1 ? "" : ` (times scale ${figure(chain.reward_scale)})`}</p>` : null}</li>`;
}

function Assigned({ chain }) {
  const penalties = Object.entries(chain.penalties);
  return html`<li><${Rule} part="assign" rule=${chain.assign} />
    <p>gave this turn <b data-figure="assigned">${chain.assigned === null ? "nothing" : figure(chain.assigned, true)}</b></p>
    ${penalties.map(([name, number]) => html`<p><b class="minus">${figure(number, true)}</b> ${name} penalty over its tokens</p>`)}
    <p>earned <b data-figure="earned">${figure(chain.earned, true)}</b></p></li>`;
}

function Peers({ chain, run, step }) {
  if (chain.peers === null) return null;
  const to = (peer) => ({ run, step, episode: peer.episode, turn: peer.turn });
  const included = chain.baseline_words.centre.endsWith("included") ? " (the number subtracted below also counts this turn)" : "";
  return html`<p>${chain.peer_count} ${chain.peer_count === 1 ? "peer" : "peers"}${chain.like ? ` with the same ${chain.like}` : ""}${included}</p>
    <ul class="peers">${chain.peers.map((peer) => html`<li><${EpisodeLink} to=${to(peer)}>${peer.episode}:${peer.turn}<//> ${figure(peer.earned, true)}</li>`)}</ul>
    ${chain.peer_count > chain.peers.length ? html`<p>and ${chain.peer_count - chain.peers.length} more</p>` : null}`;
}

// The formula of the advantage, up to its result, with the name of each part.
function formula(chain) {
  if (chain.baseline === null || chain.scale === null) return "";
  const { centre, divisor, all_equal: allEqual } = chain.baseline_words;
  if (value(chain.scale) === 0) return `${allEqual || "this turn is compared with no other"}, so the advantage is `;
  const difference = `earned ${figure(chain.earned)} − ${centre ? `${centre}:` : "baseline"} ${figure(chain.baseline)}`;
  if (value(chain.scale) === 1) return `${difference} = `;
  return divisor ? `(${difference}) ÷ ${divisor} ${figure(1 / value(chain.scale))} = ` : `(${difference}) × scale ${figure(chain.scale)} = `;
}

// `update`: remark on the update of the turn's policy, for the credit record that training used.
export function Chain({ chain, title, run, step, update }) {
  if (!chain) return html`<section class="chain"><h3>${title}</h3><p>The credit record of this step is missing.</p></section>`;
  if (chain.no_credit) return html`<section class="chain"><h3>${title}</h3><p>no credit: ${spelled(chain.no_credit)}</p></section>`;
  return html`<section class="chain" aria-label=${title}><h3>${title} <small>${spelled(chain.field)}</small></h3><ol>
    <${Rewards} chain=${chain} /><${Assigned} chain=${chain} />
    <li><${Rule} part="baseline" rule=${chain.baseline_rule} /><${Peers} chain=${chain} run=${run} step=${step} /></li>
    <li><h4><${Term} kind="glossary" name="advantage" /></h4><p>${formula(chain)}<b class=${sign(chain.advantage)} data-figure="advantage">${figure(chain.advantage, true)}</b></p>
      <p class="faint">${chain.tokens.length ? "each token has its own, see the shading" : "every token gets this advantage"}${update ? `; ${spelled(update)}` : ""}</p></li>
  </ol></section>`;
}
