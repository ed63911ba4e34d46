// Way from an episode to the previous and the next one: in the list that led to it, or else in its step.
import { address, html, go, typing, useKeys } from "./words.js";
import { useAnswer } from "./store.js";

const MOST = 200;  // episodes of a step among which one without a list is looked for

// `query.list`: filters and order of the list, as in its address; `query.at`: position of the episode in it.
function neighbours(query, episodes, offset, count) {
  const nth = episodes.findIndex((each) => each.episode === query.episode && String(each.step) === String(query.step));
  if (nth < 0) return null;
  const link = (index) => {
    const each = episodes[index];
    if (!each) return null;
    return { run: query.run, step: each.step, episode: each.episode, show: query.show, shade: query.shade, markdown: query.markdown, list: query.list, at: query.list === undefined ? null : offset + index };
  };
  return { previous: link(nth - 1), next: link(nth + 1), position: offset + nth + 1, count };
}

export function Neighbours({ query }) {
  const at = Number(query.at || 0), offset = query.list === undefined ? 0 : Math.max(0, at - 1);
  const list = query.list === undefined ? { first: query.step, last: query.step, order: "oldest" } : Object.fromEntries(new URLSearchParams(query.list));
  const { answer } = useAnswer("episodes", { ...list, run: query.run, offset, limit: query.list === undefined ? MOST : 3 }, 0, true);
  const found = answer && neighbours(query, answer.episodes, offset, answer.count);
  useKeys((event) => {
    const to = typing(event) || !found ? null : { n: found.next, p: found.previous }[event.key];
    if (to) { event.preventDefault(); go("episode", to); }
  });
  if (!found) return null;
  const link = (to, words) => (to ? html`<a href=${address("episode", to)}>${words}</a>` : html`<span class="faint">${words}</span>`);
  return html`<nav class="tools" aria-label="episodes around">${link(found.previous, "previous")}<span class="faint">${found.position} of ${found.count} ${query.list === undefined ? `in step ${query.step}` : "in the list"}</span>${link(found.next, "next")}</nav>`;
}
