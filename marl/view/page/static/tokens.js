// A completion by tokens, shaded by advantage, log-probability, entropy or sampler mismatch.
import { figure, greatestSize, html, useGrowing, useMemo, value } from "./words.js";
import { spelled, visible } from "./text.js";

export const SHADES = { plain: "plain text", markdown: "Markdown", segments: "segments", advantage: "advantage", logprob: "log-probability", entropy: "entropy", mismatch: "sampler mismatch" };
const FULL_LOGPROB = 4;  // e^-4: two in a hundred
const FULL_ENTROPY = 2;  // nats: as undecided as between seven tokens
const LEAST_MISMATCH = 1e-3;  // nats: below that, differences are rounding

const blue = (strength) => `rgba(0, 114, 178, ${(0.5 * strength).toFixed(3)})`;
const orange = (strength) => `rgba(230, 120, 0, ${(0.5 * strength).toFixed(3)})`;

// Advantage of each token: the rule's own, or the turn's if the rule assigns credit per turn. Imposed tokens have none.
export function advantages(turn, chain) {
  if (!chain || chain.no_credit) return turn.tokens.ids.map(() => null);
  const imposed = new Set(turn.tokens.imposed);
  return turn.tokens.ids.map((_, i) => (imposed.has(i) ? null : value(chain.tokens.length ? chain.tokens[i] : chain.advantage)));
}

// Pieces of an answer that a role's `segments` divides, each with its text and its credit (the mean over its tokens), or [].
// Without a tokenizer the text is null.
export function segments(turn, chain) {
  const known = advantages(turn, chain), { segments: ends, texts } = turn.tokens;
  return ends.map((end, i) => {
    const begin = i ? ends[i - 1] + 1 : 0, credited = known.slice(begin, end + 1).filter((each) => each !== null);
    return { begin, end, text: texts && texts.slice(begin, end + 1).join(""), advantage: credited.length ? credited.reduce((sum, each) => sum + each, 0) / credited.length : null };
  });
}

const sign = (number) => (number > 0 ? "plus" : number < 0 ? "minus" : null);

// An answer as text in which every segment has a border and its credit.
export function SegmentedText({ turn, chain, label }) {
  const parts = segments(turn, chain), rest = turn.tokens.texts ? turn.tokens.texts.slice(parts.at(-1).end + 1).join("") : "";
  return html`<div class="written segments" tabindex="0" role="region" aria-label=${label}>${parts.map(({ begin, end, text, advantage }, i) => html`<div class="segment"><span class="segment-text">${text === null ? html`<i class="faint">tokens ${begin} to ${end}</i>` : visible(text)}</span>
    <span class="segment-credit"><span class="faint">segment ${i + 1}</span> ${advantage === null ? null : html`<b class=${sign(advantage)}>${figure(advantage, true)}</b>`}</span></div>`)}${rest}</div>`;
}

// Per-token values from the training update, or nulls if they were not recorded.
export function recorded(turn, chain, name) {
  const known = chain && !chain.no_credit ? chain[name] : [];
  return turn.tokens.ids.map((_, i) => (known.length ? value(known[i]) : null));
}

// Maximum mismatch of an episode, which scales the colours.
export const greatestMismatch = (episode) => greatestSize((episode.chains || []).flatMap((chain) => chain.mismatch || []).map(value), LEAST_MISMATCH);

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
  if (!known) return html`<p class="faint">Not recorded for this turn: the update after its step did not use it, or its learner does not report single tokens; learners in processes of their own do not.</p>`;
  const ends = {
    advantage: [[orange(1), figure(-scale)], [orange(0), "0"], [blue(1), figure(scale, true)]],
    logprob: [[orange(0), "0: certain"], [orange(1), `${figure(-FULL_LOGPROB)} nats or less`]],
    entropy: [[blue(0), "0: decided"], [blue(1), `${FULL_ENTROPY} nats or more`]],
    mismatch: [[orange(1), `${figure(-scale)} nats: less likely to the learner than to the sampler`], [orange(0), "0: equal"], [blue(1), `${figure(scale, true)} nats: more likely`]],
  }[shade];
  return html`<p class="legend" aria-label="legend of the shading by ${SHADES[shade]}">${ends.map(([colour, words]) => html`<${Swatch} colour=${colour} words=${words} />`)}</p>`;
}

// All that is known of the tokens of a turn, a list for each column, computed once for the whole turn.
function columns(turn, chain, learnt) {
  return {
    advantage: advantages(turn, chain), logprob: turn.tokens.logprobs.map(value),
    entropy: recorded(turn, learnt, "entropy"), mismatch: recorded(turn, learnt, "mismatch"), imposed: new Set(turn.tokens.imposed),
  };
}

const AT_ONCE = 1000;

// Parts of a long answer, each drawn once: Preact skips a part that is the same object as before.
function usePieces(total, draw, version) {
  const drawn = useMemo(() => [], [version]);
  const count = useGrowing(Math.ceil(total / AT_ONCE), 1, version);
  while (drawn.length < count) {
    const begin = drawn.length * AT_ONCE;
    const indices = Array.from({ length: Math.min(AT_ONCE, total - begin) }, (_, i) => begin + i);
    drawn.push(html`<${Piece} key=${drawn.length} parts=${indices.map(draw)} />`);
  }
  return [...drawn];
}

const Piece = ({ parts }) => parts;

// `learnt`: the turn's credit under the run's own rule, with values from the update; `chain`: under the selected rule.
export function Tokens({ turn, chain, learnt, shade, scale, mismatch }) {
  const { ids, texts } = turn.tokens;
  const known = useMemo(() => columns(turn, chain, learnt), [turn, chain, learnt]);
  const version = useMemo(() => ({}), [known, shade, scale, mismatch]);
  const values = known[shade];
  const full = shade === "mismatch" ? mismatch : scale;
  const ends = useMemo(() => new Set(turn.tokens.segments), [turn]);
  const title = (i) => `token ${i}, id ${ids[i]}, log-probability ${figure(known.logprob[i])}, advantage ${figure(known.advantage[i], true)}, entropy ${figure(known.entropy[i])}, `
    + `mismatch ${figure(known.mismatch[i], true)}${known.imposed.has(i) ? ", not sampled: written for the model" : ""}`;
  const pieces = usePieces(ids.length, (i) => html`<span class=${`token${known.imposed.has(i) ? " imposed" : ""}${ends.has(i) ? " segment-end" : ""}`} title=${title(i)}
    style=${{ backgroundColor: background(values[i], shade, full) }}>${texts ? visible(texts[i]) : `${ids[i]} `}</span>`, version);
  return html`<pre class="written tokens" tabindex="0" aria-label="completion, shaded by ${SHADES[shade]}">${pieces}</pre>
    <${Legend} shade=${shade} scale=${full} known=${values.some((each) => each !== null && each !== undefined)} />
    ${ends.size ? html`<p class="faint">A thick line ends each of ${ends.size} segments.</p>` : null}${texts ? null : html`<p class="faint">No checkpoint holds this policy's tokenizer: the ids of the tokens are shown.</p>`}`;
}

export function TokenTable({ turn, chain, learnt }) {
  const { ids, texts } = turn.tokens;
  const known = useMemo(() => columns(turn, chain, learnt), [turn, chain, learnt]);
  const rows = usePieces(ids.length, (i) => html`<tr><td>${i}</td><td>${ids[i]}</td><td class="text">${texts ? spelled(JSON.stringify(texts[i])) : "–"}</td>
      <td>${figure(known.logprob[i])}</td><td>${figure(known.advantage[i], true)}</td><td>${figure(known.entropy[i])}</td><td>${figure(known.mismatch[i], true)}</td></tr>`, known);
  return html`<div class="wide" tabindex="0" role="region" aria-label="tokens"><table>
    <thead><tr><th>token</th><th>id</th><th>text</th><th>log-probability</th><th>advantage</th><th>entropy</th><th>mismatch</th></tr></thead>
    <tbody>${rows}</tbody></table></div>`;
}
