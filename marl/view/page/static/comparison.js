// Comparison of any two episodes by two clicks: the first is kept for this tab, also across runs.
import { address, html, remember, remembered, useState } from "./words.js";
import { spelled } from "./text.js";

export function useComparison() {
  const [first, set] = useState(remembered("comparison"));
  return [first, (episode) => { remember("comparison", episode); set(episode); }];
}

const same = (a, b) => a.run === b.run && String(a.step) === String(b.step) && a.episode === b.episode;

// `episode`: {run, step, episode}.
export function Compare({ episode, comparison: [first, choose] }) {
  if (!first) return html`<button type="button" class="quiet" aria-label="compare ${episode.episode} with another episode" onClick=${() => choose(episode)}>compare …</button>`;
  if (same(first, episode)) return html`<button type="button" class="quiet" aria-pressed="true" onClick=${() => choose(null)}>chosen</button>`;
  return html`<a href=${address("compare", { ...first, run2: episode.run, step2: episode.step, episode2: episode.episode })} onClick=${() => remember("comparison", null)}
    aria-label="compare ${episode.episode} of ${episode.run} with the chosen episode">compare with it</a>`;
}

export function Chosen({ comparison: [first, choose] }) {
  if (!first) return null;
  return html`<p class="tools chosen-episode" role="status">to be compared: episode ${spelled(String(first.episode))} of ${spelled(String(first.run))}; now choose another, in any run <button type="button" class="quiet" onClick=${() => choose(null)}>forget it</button></p>`;
}
