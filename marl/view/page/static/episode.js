// One episode: its graph, its turns, and every recorded detail of the selected turn.
import { address, figure, greatestSize, html, KINDS, share, stay, typing, useEffect, useKeys, useMemo, useState, value } from "./words.js";
import { ask, atHand, episodeQuery, live, useAnswer } from "./store.js";
import { Copy, cut, Prompt, spelled, Written } from "./text.js";
import { Markdown } from "./markdown.js";
import { Conversation, conversationText } from "./conversation.js";
import { Chosen, Compare, comparisonAddress, useComparison } from "./comparison.js";
import { Neighbours } from "./neighbours.js";
import { advantages, greatestMismatch, SegmentedText, SHADES, Tokens, TokenTable } from "./tokens.js";
import { Graph } from "./graph.js";
import { Board, Moves } from "./board.js";
import { Chain } from "./chain.js";
import { EpisodeLink } from "./run_state.js";
import { RuleChoice, RuleComparison, ruleName } from "./credit_rules.js";

const CUT_OFF = { length: "cut off at max_tokens", overflow: "no answer: the prompt is too long", aborted: "no answer" };

function Scores({ turn }) {
  if (!turn.scores.length) return null;
  return html`<h4>scores</h4><ul class="plain">${turn.scores.map((score) => html`<li><b>${figure(score.value)}</b> ${spelled(score.name)} by ${spelled(score.by)}, turn ${score.turn}
    ${score.why ? html`<${Written} text=${score.why} label="reason of ${score.name}" />` : null}</li>`)}</ul>`;
}

const identity = (run, episode) => episodeQuery({ ...episode, run });

// The prompt as messages, or as the exact text of the model's input with its chat template.
function Messages({ run, episode, turn }) {
  const [whole, setWhole] = useState(false);
  const [exact, setExact] = useState(null);
  useEffect(() => { setExact(null); setWhole(false); }, [episode.episode, turn.index]);
  const query = { ...identity(run, episode), turn: turn.index };
  const show = () => (exact === null ? ask("prompt", query).then(setExact).catch((error) => setExact({ text: error.message, ids: [] })) : setExact(null));
  const last = turn.messages.length - 1;
  const shown = turn.messages.map((_, i) => i).filter((i) => whole || i === last);
  return html`<h4>asked</h4>
    <p class="tools">${last > 0 ? html`<button type="button" aria-pressed=${whole ? "true" : "false"} onClick=${() => setWhole(!whole)}>all ${last + 1} messages</button>` : null}
      ${turn.prompt_tokens ? html`<button type="button" aria-pressed=${exact ? "true" : "false"} onClick=${show}>chat template, as the model read it (${turn.prompt_tokens} tokens)</button>` : null}
      ${turn.continues ? html`<span class="faint">continues ${turn.continues} tokens of its earlier turn, byte for byte</span>` : null}</p>
    ${exact ? html`<${Written} text=${exact.text ?? `no tokenizer at hand; the ids: ${exact.ids.join(" ")}`} label="exact prompt" />`
      : shown.map((i) => html`<div class="message"><span class="speaker">${turn.messages[i].role}</span><${Prompt} turn=${turn} message=${i} colours=${KINDS} /></div>`)}`;
}

function Answer({ turn, chain, learnt, shade, setShade, scale, mismatch }) {
  const [table, setTable] = useState(false);
  const sampled = turn.tokens.ids.length > 0;
  return html`<h4>answered${CUT_OFF[turn.finish] ? html` <span class="warning">${CUT_OFF[turn.finish]}</span>` : null}</h4>
    ${sampled ? html`<p class="tools"><label>shade by <select value=${shade} onChange=${(event) => setShade(event.target.value)}>
      ${Object.entries(SHADES).filter(([name]) => name !== "segments" || turn.tokens.segments.length).map(([name, words]) => html`<option value=${name}>${words}</option>`)}</select></label>
      <button type="button" aria-pressed=${table ? "true" : "false"} onClick=${() => setTable(!table)}>token table</button></p>` : null}
    ${shade === "markdown" ? html`<${Markdown} text=${turn.text} label="completion" />` : shade === "segments" && turn.tokens.segments.length ? html`<${SegmentedText} turn=${turn} chain=${chain} label="completion, by segments" />` : sampled && shade in SHADES && !["plain", "segments"].includes(shade) ? html`<${Tokens} turn=${turn} chain=${chain} learnt=${learnt} shade=${shade} scale=${scale} mismatch=${mismatch} />` : html`<${Written} text=${turn.text} label="completion" />`}
    ${turn.reason ? html`<${Written} text=${turn.reason} label="reason" />` : null}
    ${sampled && table ? html`<${TokenTable} turn=${turn} chain=${chain} learnt=${learnt} />` : null}
    <p>read as ${turn.action === null ? html`<b class="warning">nothing: no legal move could be read</b>` : html`<b class="said">${spelled(cut(turn.action, 400))}</b>`}
      ${turn.probability === null ? null : html`, sampled with probability ${share(turn.probability)}`}</p>`;
}

function Knowledge({ turn }) {
  const players = Object.keys(turn.reference);
  if (!turn.drawing && !players.length && !turn.state) return null;
  const sampled = turn.action === null || turn.probability === null ? {} : { "sampled here": { [turn.action]: turn.probability } };
  return html`<h4>information state</h4><${Board} drawing=${turn.drawing} />
    ${turn.drawing ? null : html`<details><summary>as text</summary><${Written} text=${turn.state} label="information state" /></details>`}
    ${turn.moves && players.length ? html`<${Moves} moves=${turn.moves} action=${turn.action} columns=${{ ...sampled, ...turn.reference }} />` : null}`;
}

const version = ([first, last]) => (first === last ? `version ${first}` : `versions ${first} to ${last}`);

// `shaded`: credit of the turn under the selected rule; its advantages shade the tokens.
function Turn({ run, episode, turn, chain, shaded, other, shade, setShade, scale, mismatch }) {
  const sampled = turn.tokens.ids.length > 0;
  return html`<article class="turn" aria-label="turn ${turn.index}">
    <h3 tabindex="-1" id="turn-title">turn ${turn.index}: ${spelled(turn.agent)} <small>role ${turn.role}, policy ${turn.policy}${sampled ? `, ${version(turn.versions)}` : ""}${turn.attempt ? `, attempt ${turn.attempt + 1}` : ""}</small></h3>
    <${Messages} run=${run} episode=${episode} turn=${turn} />
    <${Answer} turn=${turn} chain=${shaded} learnt=${chain} shade=${shade} setShade=${setShade} scale=${scale} mismatch=${mismatch} />
    <${Scores} turn=${turn} /><${Knowledge} turn=${turn} />
    ${episode.held_out ? html`<p class="faint">Held-out episodes are played to measure: no credit is assigned, and nothing is learned from them.</p>` : html`<div class="chains"><${Chain} chain=${chain} title="Credit used in training" update=${chain && episode.updates[turn.index]} run=${run} step=${episode.step} />
      ${other ? html`<${Chain} chain=${other.chains[turn.index]} title="Credit by ${ruleName(other.rule)}" run=${run} step=${episode.step} />` : null}</div>`}
    ${sampled && !episode.held_out ? html`<${StepFigures} episode=${episode} policy=${turn.policy} />` : null}</article>`;
}

function StepFigures({ episode, policy }) {
  const known = Object.entries(episode.metrics).filter(([name]) => name.startsWith(`policy/${policy.split("@")[0]}/`));
  return html`<p class="faint">Figures of the step: ${known.length
    ? known.map(([name, number]) => `${name.split("/").at(-1)} ${figure(number)}`).join(", ") : "nothing for this policy"}.</p>`;
}

function Facts({ episode, run }) {
  const figures = [...Object.entries(episode.returns).map(([agent, paid]) => [`return of ${agent}`, figure(paid, true)]),
    ...Object.entries(episode.measures).map(([name, measured]) => [name, figure(measured)])];
  return html`<dl class="facts">${figures.map(([name, text]) => html`<div><dt>${spelled(name)}</dt><dd>${text}</dd></div>`)}</dl>
    ${episode.question ? html`<details open><summary>problem${episode.answer ? html`, answer <b>${spelled(cut(episode.answer, 80))}</b>` : ""}</summary><${Written} text=${episode.question} label="problem" /></details>` : null}
    ${episode.parent ? html`<p>branched from episode <${EpisodeLink} to=${{ run, step: episode.step, episode: episode.parent[0] }}>${episode.parent[0]}<//> before its turn ${episode.parent[1]}</p>` : null}`;
}

function Rewards({ episode }) {
  return html`<details><summary>all ${episode.rewards.length} rewards</summary><ul class="plain">${episode.rewards.map((reward) => html`<li>
    <b>${figure(reward.value, true)}</b> ${spelled(reward.name)} to ${spelled(reward.agent)} after turn ${reward.turn}${reward.cause ? html`<span class="cause"> ${spelled(reward.cause)}</span>` : ""}</li>`)}</ul></details>`;
}

const FEW = 24;

function Siblings({ episode, run, compare }) {
  const elsewhere = episode.same_start.filter(([step]) => step !== episode.step);
  const other = (step, name) => identity(run, { ...episode, step, episode: name });
  const row = (step, name, text, advantage) => html`<li><${EpisodeLink} to=${other(step, name)} current=${name === episode.episode && step === episode.step}>${name}<//> ${text} ${advantage}
    ${compare && (name !== episode.episode || step !== episode.step) && atHand(other(step, name)) ? html` <a class="compare" href=${comparisonAddress(identity(run, episode), other(step, name))} aria-label="compare with ${name}, ${text}">compare</a>` : null}</li>`;
  const of = (name) => {
    const known = episode.advantages[name] || [];
    return `${known.slice(0, FEW).map((each) => figure(each, true)).join(" ")}${known.length > FEW ? ` and ${known.length - FEW} more` : ""}`;
  };
  return html`${episode.siblings.length ? html`<details open=${compare}><summary>group ${episode.group}: ${episode.siblings.length} episodes from one start</summary>
    <ul class="plain siblings">${episode.siblings.map((each) => row(episode.step, each.episode, Object.entries(each.figures).filter(([name]) => name.startsWith("agent/"))
      .map(([name, paid]) => `${name.slice(6)} ${figure(paid, true)}`).join(", "), html`<span class="faint">advantages in training ${of(each.episode)}</span>`))}</ul></details>` : null}
    ${elsewhere.length ? html`<details open=${episode.held_out}><summary>the same start ${episode.held_out ? `after ${elsewhere.length} other` : `in ${elsewhere.length} other`} step${elsewhere.length === 1 ? "" : "s"}, by other weights</summary>
      <ul class="plain siblings">${elsewhere.map(([step, name]) => row(step, name, `step ${step}`, ""))}</ul></details>` : null}`;
}

// Maximum absolute advantage of the episode, which scales the colours.
const greatest = (episode, chains) => greatestSize(episode.turns.map((turn) => greatestSize(advantages(turn, chains && chains[turn.index]))));

// Binds j and k, and the arrow keys outside focused elements, to the next and the previous turn.
function useTurnKeys(turns, chosen, change) {
  useKeys((event) => {
    const move = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (!turns || !move || typing(event) || (event.key.startsWith("Arrow") && event.target.tabIndex >= 0)) return;
    event.preventDefault();
    change({ turn: Math.max(0, Math.min(turns.length - 1, chosen + move)) });
  });
}

// What is shown beside the graph, and what can be done with the episode.
function Tools({ query, change, episode, turn, comparison }) {
  const talk = query.show === "conversation";
  const link = () => new URL(address("episode", { ...identity(query.run, episode), turn: query.turn, show: query.show }), location.href).href;
  const choice = (kind, words) => html`<button type="button" aria-pressed=${(query.show || "") === kind ? "true" : "false"} onClick=${() => change({ show: kind })}>${words}</button>`;
  return html`<p class="tools">${choice("", "one turn")}${choice("conversation", "conversation")}
    ${talk ? html`<label class="flag"><input type="checkbox" checked=${query.markdown === "1"} onChange=${(event) => change({ markdown: event.target.checked ? "1" : "" })} /> Markdown and formulas</label>` : null}
    <${Copy} words="copy link" text=${link} /><${Copy} words="copy text" text=${() => (talk || !turn ? conversationText(episode) : turn.text)} />
    ${comparison ? html`<${Compare} episode=${identity(query.run, episode)} comparison=${comparison} />` : null}</p>`;
}

export function EpisodePane({ query, change, rules, compare }) {
  const { answer: episode, error } = useAnswer("episode", episodeQuery(query));
  const other = useAnswer(query.rule ? "judgement" : null, { run: query.run, step: query.step, episode: query.episode, rule: query.rule });
  const chosen = episode ? Math.min(Number(query.turn || 0), episode.turns.length - 1) : 0;
  useTurnKeys(compare && episode ? episode.turns : null, chosen, change);
  const comparison = useComparison();
  const judged = other.answer && other.answer.chains ? other.answer : null;
  const chains = judged ? judged.chains : episode?.chains;
  // A key changes only the turn: all that belongs to the episode is computed, and drawn, once.
  const scale = useMemo(() => (episode ? greatest(episode, chains) : 0), [episode, chains]);
  const mismatch = useMemo(() => (episode ? greatestMismatch(episode) : 0), [episode]);
  const facts = useMemo(() => episode && html`<${Facts} episode=${episode} run=${query.run} />`, [episode]);
  const around = useMemo(() => episode && html`<${Rewards} episode=${episode} /><${Siblings} episode=${episode} run=${query.run} compare=${compare} />`, [episode]);
  if (error) return html`<section class="pane" aria-label="episode ${query.episode} of ${query.run}"><h2>episode ${spelled(String(query.episode))} of ${spelled(String(query.run))}</h2><p class="warning" role="alert">${spelled(error)}</p></section>`;
  if (!episode) return html`<p role="status">reading the episode…</p>`;
  const turn = episode.turns[chosen], choose = (index) => change({ turn: index });
  return html`<section class="pane" aria-label="episode ${episode.episode} of ${query.run}">
    ${!compare ? null : episode.held_out ? html`<nav class="tools" aria-label="episodes around"><a href=${address("held_out", { run: query.run })}>all held-out examples</a></nav>` : html`<${Neighbours} query=${query} />`}
    <h2>${episode.held_out ? "held-out episode" : "episode"} ${episode.episode} of ${query.run} <small>${episode.held_out ? `after step ${episode.step}, not learned from` : `step ${episode.step}`}${episode.game ? `, ${episode.game}` : ""}, ${episode.end}</small></h2>
    ${facts}
    <${Tools} query=${query} change=${change} episode=${episode} turn=${turn} comparison=${compare ? comparison : null} />${compare ? html`<${Chosen} comparison=${comparison} />` : null}
    ${live && rules && !episode.held_out ? html`<${RuleChoice} run=${query.run} rule=${query.rule || ""} change=${change} state=${other} />` : null}
    ${judged ? html`<${RuleComparison} step=${episode.step} judged=${judged} />` : null}
    <div class="columns"><div><${Graph} episode=${episode} chains=${chains} scale=${scale} chosen=${chosen} choose=${choose} />
      ${around}</div>
      ${turn && query.show === "conversation" ? html`<${Conversation} episode=${episode} chains=${chains} chosen=${chosen} choose=${choose} markdown=${query.markdown === "1"} />` : turn ? html`<${Turn} run=${query.run} episode=${episode} turn=${turn} chain=${episode.chains && episode.chains[chosen]} shaded=${chains && chains[chosen]} other=${judged}
        shade=${query.shade || (episode.held_out || !turn.tokens.texts ? "plain" : "advantage")} setShade=${(shade) => change({ shade })} scale=${scale} mismatch=${mismatch} />` : html`<p>no turns</p>`}</div></section>`;
}

export function EpisodePage({ query, rules }) {
  const change = (changes) => stay("episode", { ...query, ...changes });
  return html`<${EpisodePane} query=${query} change=${change} rules=${rules} compare=${true} />`;
}

// Two episodes side by side: siblings of a group, the same start at two checkpoints, or any other two.
export function ComparePage({ query, rules }) {
  const right = { run: query.run2, step: query.step2, episode: query.episode2, turn: query.turn2, shade: query.shade2, rule: query.rule2, show: query.show2, markdown: query.markdown2, held_out: query.held_out2, game: query.game2 };
  const spread = (changes) => Object.fromEntries(Object.entries(changes).map(([name, each]) => [`${name}2`, each]));
  return html`<div class="side-by-side">
    <${EpisodePane} query=${query} change=${(changes) => stay("compare", { ...query, ...changes })} rules=${rules} compare=${false} />
    <${EpisodePane} query=${right} change=${(changes) => stay("compare", { ...query, ...spread(changes) })} rules=${rules} compare=${false} /></div>`;
}
