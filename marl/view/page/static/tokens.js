// A completion by tokens, shaded by advantage, log-probability, entropy or sampler mismatch.
import { figure, html, value } from "./words.js";
import { spelled, visible } from "./text.js";

export const SHADES = { plain: "plain text", advantage: "advantage", logprob: "log-probability", entropy: "entropy", mismatch: "sampler mismatch" };
const FULL_LOGPROB = 4;  // e^-4: two in a hundred
const FULL_ENTROPY = 2;  // nats: as undecided as between seven tokens
const LEAST_MISMATCH = 1e-3;  // nats: below that, differences are rounding

const blue = (strength) => `rgba(0, 114, 178, ${(0.5 * strength).toFixed(3)})`;
const orange = (strength) => `rgba(230, 120, 0, ${(0.5 * strength).toFixed(3)})`;

// Advantage of each token: the rule's own, or the turn's if the rule assigns credit per turn. Imposed tokens have none.
export function advantages(turn, chain) {
  if (!chain || chain.not_judged) return turn.tokens.ids.map(() => null);
  const imposed = new Set(turn.tokens.imposed);
  return turn.tokens.ids.map((_, i) => (imposed.has(i) ? null : value(chain.tokens.length ? chain.tokens[i] : chain.advantage)));
}

// Per-token values from the training update, or nulls if they were not recorded.
export function recorded(turn, chain, name) {
  const known = chain && !chain.not_judged ? chain[name] : [];
  return turn.tokens.ids.map((_, i) => (known.length ? value(known[i]) : null));
}

// Maximum mismatch of an episode, which scales the colours.
export const greatestMismatch = (episode) => Math.max(LEAST_MISMATCH, ...(episode.chains || []).flatMap((chain) => chain.mismatch || []).map(value).filter(Number.isFinite).map(Math.abs));

function background(number, shade, scale) {
  if (number === null || number === undefined) return "transparent";
  if (shade === "logprob") return orange(Math.min(1, -number / FULL_LOGPROB));
  if (shade === "entropy") return blue(Math.min(1, number / FULL_ENTROPY));
  const strength = scale ? Math.min(1, Math.abs(number) / scale) : 0;
  return number < 0 ? orange(strength) : blue(strength);
}

function Swatch({ colour, words }) {
  return html`<span><i style=${{ backgroundColor: colour }}></i>${words}</span>`;
}

function Legend({ shade, scale, known }) {
  if (!known && shade === "advantage") return html`<p class="faint">This turn has no credit record.</p>`;
  if (!known) return html`<p class="faint">Not recorded for this turn: it was not learnt from in the update after its step, or its learner does not report single tokens, as those in processes of their own.</p>`;
  const ends = {
    advantage: [[orange(1), figure(-scale)], [orange(0), "0"], [blue(1), figure(scale, true)]],
    logprob: [[orange(0), "0: certain"], [orange(1), `${figure(-FULL_LOGPROB)} nats or less`]],
    entropy: [[blue(0), "0: decided"], [blue(1), `${FULL_ENTROPY} nats or more`]],
    mismatch: [[orange(1), `${figure(-scale)} nats: less likely to the learner than to the sampler`], [orange(0), "0: equal"], [blue(1), `${figure(scale, true)} nats: more likely`]],
  }[shade];
  return html`<p class="legend" aria-label="legend of the shading by ${SHADES[shade]}">${ends.map(([colour, words]) => html`<${Swatch} colour=${colour} words=${words} />`)}</p>`;
}

// `learnt`: the turn's credit under the run's own rule, with values from the update; `chain`: under the selected rule.
export function Tokens({ turn, chain, learnt, shade, scale, mismatch }) {
  const { ids, texts, logprobs, imposed } = turn.tokens;
  const choices = { advantage: () => advantages(turn, chain), logprob: () => logprobs.map(value), entropy: () => recorded(turn, learnt, "entropy"), mismatch: () => recorded(turn, learnt, "mismatch") };
  const values = choices[shade]();
  const full = shade === "mismatch" ? mismatch : scale;
  const title = (i) => [`token ${i}`, `id ${ids[i]}`, `log-probability ${figure(logprobs[i])}`,
    `advantage ${figure(advantages(turn, chain)[i], true)}`, `entropy ${figure(recorded(turn, learnt, "entropy")[i])}`, `mismatch ${figure(recorded(turn, learnt, "mismatch")[i], true)}`, imposed.includes(i) ? "not sampled: written for the model" : ""]
    .filter(Boolean).join(", ");
  const pieces = ids.map((id, i) => html`<span class=${imposed.includes(i) ? "token imposed" : "token"} title=${title(i)}
    style=${{ backgroundColor: background(values[i], shade, full) }}>${texts ? visible(texts[i]) : `${id} `}</span>`);
  return html`<pre class="written tokens" tabindex="0" aria-label="completion, shaded by ${SHADES[shade]}">${pieces}</pre>
    <${Legend} shade=${shade} scale=${full} known=${values.some((each) => each !== null && each !== undefined)} />
    ${texts ? null : html`<p class="faint">No checkpoint holds this policy's tokenizer: the ids of the tokens are shown.</p>`}`;
}

export function TokenTable({ turn, chain, learnt }) {
  const earned = advantages(turn, chain), entropy = recorded(turn, learnt, "entropy"), mismatch = recorded(turn, learnt, "mismatch");
  const { ids, texts, logprobs } = turn.tokens;
  return html`<div class="wide" tabindex="0" role="region" aria-label="tokens"><table>
    <thead><tr><th>token</th><th>id</th><th>text</th><th>log-probability</th><th>advantage</th><th>entropy</th><th>mismatch</th></tr></thead>
    <tbody>${ids.map((id, i) => html`<tr><td>${i}</td><td>${id}</td><td class="text">${texts ? spelled(JSON.stringify(texts[i])) : "–"}</td>
      <td>${figure(logprobs[i])}</td><td>${figure(earned[i], true)}</td><td>${figure(entropy[i])}</td><td>${figure(mismatch[i], true)}</td></tr>`)}</tbody></table></div>`;
}
