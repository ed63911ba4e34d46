// An episode as a conversation: who read what, said what, was scored and paid how.
import { figure, html, KINDS, useLayoutEffect, useMemo, useRef, value } from "./words.js";
import { cut, Prompt, spelled, Written } from "./text.js";
import { Markdown } from "./markdown.js";
import { SegmentedText } from "./tokens.js";

const AT_ONCE = 100;  // turns that are drawn at a time

const sign = (number) => (number > 0 ? "plus" : number < 0 ? "minus" : null);

// Turns at which a system message is new to the conversation.
function newSystemMessages(turns) {
  const seen = new Set();
  return turns.map((turn) => {
    const text = turn.messages.filter((message) => message.role === "system").map((message) => message.content).join("\n\n");
    const news = text !== "" && !seen.has(`${turn.role} ${text}`);
    seen.add(`${turn.role} ${text}`);
    return news ? text : null;
  });
}

function Asked({ turn, first }) {
  const last = turn.messages.length - 1;
  if (last < 0) return null;
  const words = turn.messages[last].content;
  return html`<details open=${first}><summary>${first ? "asked" : `asked: ${cut(spelled(words.replace(/\s+/g, " ").trim()), 60)}`}</summary><${Prompt} turn=${turn} message=${last} colours=${KINDS} /></details>`;
}

function Outcome({ turn, rewards }) {
  const scores = turn.scores.map((score) => html`<li><b>${figure(score.value)}</b> ${spelled(score.name)} by ${spelled(score.by)}${score.why ? html` <span class="cause">${spelled(cut(score.why, 200))}</span>` : null}</li>`);
  const paid = rewards.map((reward) => html`<li><b class=${sign(value(reward.value))}>${figure(reward.value, true)}</b> ${spelled(reward.name)} to ${spelled(reward.agent)}</li>`);
  return scores.length + paid.length ? html`<ul class="plain outcome">${scores}${paid}</ul>` : null;
}

function Said({ turn, system, first, chain, rewards, colour, chosen, choose, markdown }) {
  const advantage = chain && !chain.no_credit ? value(chain.advantage) : null;
  const Body = markdown ? Markdown : Written;
  return html`${system ? html`<details class="system"><summary>system message of ${turn.role}</summary><${Written} text=${system} label="system message of ${turn.role}" /></details>` : null}
    <article class=${chosen ? "said chosen" : "said"} style=${{ borderLeftColor: colour }} data-said=${turn.index} aria-label="turn ${turn.index} of ${spelled(turn.agent)}">
    <p class="tools"><button type="button" class="quiet" aria-pressed=${chosen ? "true" : "false"} onClick=${() => choose(turn.index)}>${turn.index}</button><b>${spelled(turn.agent)}</b><span class="faint">${turn.role === turn.agent ? "" : turn.role}</span>
      ${advantage === null ? null : html`<span class=${sign(advantage)}>advantage ${figure(advantage, true)}</span>`}</p>
    <${Asked} turn=${turn} first=${first} />
    ${turn.reason ? html`<details><summary>reason</summary><${Body} text=${turn.reason} label="reason of turn ${turn.index}" /></details>` : null}
    ${turn.tokens.segments.length && !markdown ? html`<${SegmentedText} turn=${turn} chain=${chain} label="answer of turn ${turn.index}, by segments" />` : html`<${Body} text=${turn.text} label="answer of turn ${turn.index}" />`}
    ${turn.action === null ? html`<p class="warning">nothing could be read</p>` : turn.action.trim() === turn.text.trim() ? null : html`<p class="faint">read as <b class="text">${spelled(cut(turn.action, 200))}</b></p>`}
    <${Outcome} turn=${turn} rewards=${rewards} /></article>`;
}

export function Conversation({ episode, chains, chosen, choose, markdown }) {
  const holder = useRef(null);
  const facts = useMemo(() => {
    const agents = new Set(), paid = new Map();
    const first = episode.turns.map((turn) => { const news = !agents.has(turn.agent); agents.add(turn.agent); return news; });
    for (const reward of episode.rewards) paid.set(reward.turn, [...(paid.get(reward.turn) || []), reward]);
    return { first, paid, system: newSystemMessages(episode.turns) };
  }, [episode]);
  useLayoutEffect(() => {
    const turn = holder.current.querySelector(`[data-said="${chosen}"]`), box = holder.current;
    if (!turn) return;
    const [above, below] = [turn.offsetTop, turn.offsetTop + turn.offsetHeight];
    if (above < box.scrollTop || below > box.scrollTop + box.clientHeight) box.scrollTop = above - 8;
  }, [episode, chosen]);
  const begin = Math.floor(chosen / AT_ONCE) * AT_ONCE, end = Math.min(begin + AT_ONCE, episode.turns.length);
  return html`<section aria-label="conversation">${episode.turns.length > AT_ONCE ? html`<p class="tools">turns ${begin} to ${end - 1} of ${episode.turns.length}
      ${begin ? html`<button type="button" onClick=${() => choose(begin - AT_ONCE)}>Previous ${AT_ONCE}</button>` : null}${end < episode.turns.length ? html`<button type="button" onClick=${() => choose(end)}>Next ${AT_ONCE}</button>` : null}</p>` : null}
    <div class="conversation" ref=${holder} tabindex="0" role="region" aria-label="turns">${episode.turns.slice(begin, end).map((turn) => html`<${Said} key=${turn.index} turn=${turn} system=${facts.system[turn.index]} first=${facts.first[turn.index]}
      chain=${chains && chains[turn.index]} rewards=${facts.paid.get(turn.index) || []} colour=${episode.role_colours[turn.role] ?? "transparent"} chosen=${turn.index === chosen} choose=${choose} markdown=${markdown} />`)}</div></section>`;
}

// The conversation as plain text, to be copied.
export const conversationText = (episode) => [episode.question ? `problem: ${episode.question}` : "", ...episode.turns.map((turn) => `[${turn.index}] ${turn.agent} (${turn.role}):\n${turn.text}`)].filter(Boolean).join("\n\n");
