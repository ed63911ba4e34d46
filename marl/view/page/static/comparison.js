// Comparison of any two episodes by two clicks: the first is kept for this tab, also across runs.
import { address, html, remember, remembered, useState } from "./words.js";
import { spelled } from "./text.js";

export function useComparison() {
  const [first, set] = useState(remembered("comparison"));
  return [first, (episode) => { remember("comparison", episode); set(episode); }];
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// Address of two episodes side by side; both as `episodeQuery` names them.
export const comparisonAddress = (first, second) => address("compare", { ...first, ...Object.fromEntries(Object.entries(second).map(([name, each]) => [`${name}2`, each])) });

// `episode`: as `episodeQuery` names it.
export function Compare({ episode, comparison: [first, choose] }) {
  if (!first) return html`<button type="button" class="quiet" aria-label="compare ${episode.episode} with another episode" onClick=${() => choose(episode)}>compare …</button>`;
  if (same(first, episode)) return html`<button type="button" class="quiet" aria-pressed="true" onClick=${() => choose(null)}>chosen</button>`;
  return html`<a href=${comparisonAddress(first, episode)} onClick=${() => remember("comparison", null)}
    aria-label="compare ${episode.episode} of ${episode.run} with the chosen episode">compare with it</a>`;
}

export function Chosen({ comparison: [first, choose] }) {
  if (!first) return null;
  return html`<p class="tools chosen-episode" role="status">to be compared: episode ${spelled(String(first.episode))} of ${spelled(String(first.run))}; now choose another, in any run <button type="button" class="quiet" onClick=${() => choose(null)}>forget it</button></p>`;
}
