// A completion, token by token: shaded by advantage or by log-probability.
import { figure, html, value } from "./words.js";
import { spelled, visible } from "./text.js";

export const SHADES = { plain: "plain text", advantage: "advantage", logprob: "log-probability" };

const blue = (strength) => `rgba(0, 114, 178, ${(0.5 * strength).toFixed(3)})`;
const orange = (strength) => `rgba(230, 120, 0, ${(0.5 * strength).toFixed(3)})`;

// The advantage of each token: the rule's, or the turn's where the rule judges turns; none of imposed tokens.
export function advantages(turn, chain) {
  if (!chain || chain.not_judged) return turn.tokens.ids.map(() => null);
  const imposed = new Set(turn.tokens.imposed);
  return turn.tokens.ids.map((_, i) => (imposed.has(i) ? null : value(chain.tokens.length ? chain.tokens[i] : chain.advantage)));
}

function background(number, shade, scale) {
  if (number === null || number === undefined) return "transparent";
  if (shade === "logprob") return orange(Math.min(1, -number / 4));  // e^-4: two in a hundred
  const strength = scale ? Math.min(1, Math.abs(number) / scale) : 0;
  return number < 0 ? orange(strength) : blue(strength);
}

export function Tokens({ turn, chain, shade, scale }) {
  const { ids, texts, logprobs, imposed } = turn.tokens;
  const values = shade === "advantage" ? advantages(turn, chain) : logprobs.map(value);
  const title = (i) => [`token ${i}`, `id ${ids[i]}`, `log-probability ${figure(logprobs[i])}`,
    `advantage ${figure(advantages(turn, chain)[i], true)}`, imposed.includes(i) ? "not sampled: written for the model" : ""]
    .filter(Boolean).join(", ");
  const pieces = ids.map((id, i) => html`<span class=${imposed.includes(i) ? "token imposed" : "token"} title=${title(i)}
    style=${{ backgroundColor: background(values[i], shade, scale) }}>${texts ? visible(texts[i]) : `${id} `}</span>`);
  return html`<pre class="written tokens" tabindex="0" aria-label="completion, shaded by ${SHADES[shade]}">${pieces}</pre>
    ${texts ? null : html`<p class="faint">No checkpoint holds this policy's tokenizer: the ids of the tokens are shown.</p>`}`;
}

export function TokenTable({ turn, chain }) {
  const earned = advantages(turn, chain);
  const { ids, texts, logprobs } = turn.tokens;
  return html`<div class="wide" tabindex="0" role="region" aria-label="tokens"><table>
    <thead><tr><th>token</th><th>id</th><th>text</th><th>log-probability</th><th>advantage</th></tr></thead>
    <tbody>${ids.map((id, i) => html`<tr><td>${i}</td><td>${id}</td><td class="text">${texts ? spelled(JSON.stringify(texts[i])) : "–"}</td>
      <td>${figure(logprobs[i])}</td><td>${figure(earned[i], true)}</td></tr>`)}</tbody></table></div>`;
}
