// Meanings of metrics, credit rules and words: a bubble beside the word under the pointer or in focus. The texts are the server's.
import { html, useEffect, useState } from "./words.js";
import { useAnswer } from "./store.js";

const Meanings = globalThis.htmPreact.createContext(null);
const BUBBLE = "meaning";

export function Known({ version, children }) {
  const { answer } = useAnswer("words", {}, version, true);
  return html`<${Meanings.Provider} value=${answer}>${children}<${Bubble} /><//>`;
}

export const useMeanings = () => globalThis.htmPreact.useContext(Meanings);

// `kind`: metrics, assign, baseline or glossary. A word without a known meaning is plain text.
export function Term({ kind, name, children }) {
  const found = useMeanings()?.[kind]?.[name];
  if (!found) return html`${children ?? name}`;
  const text = kind === "metrics" ? `${found.meaning}${found.unit ? ` [${found.unit}]` : ""}` : found;
  return html`<span class="term" tabindex="0" data-meaning=${text.replaceAll("`", "")}>${children ?? name}</span>`;
}

// One bubble for the whole page, so that no box with scroll bars cuts it off.
function Bubble() {
  const [{ term }, set] = useState({ term: null });
  useEffect(() => {
    const show = (term) => set((before) => (term || before.term ? { term } : before));
    const termAt = (element) => element?.closest?.("[data-meaning]") ?? null;
    const over = (event) => show(termAt(event.target) ?? termAt(document.activeElement));
    const move = () => set((before) => (before.term ? { ...before } : before));
    const key = (event) => { if (event.key === "Escape") show(null); };
    const away = () => show(null);
    const listeners = [["focusin", over], ["pointerover", over], ["focusout", away], ["scroll", move], ["hashchange", away], ["keydown", key]];
    for (const [name, listener] of listeners) addEventListener(name, listener, { capture: true });
    return () => { for (const [name, listener] of listeners) removeEventListener(name, listener, { capture: true }); };
  }, []);
  useEffect(() => {
    term?.setAttribute("aria-describedby", BUBBLE);
    return () => term?.removeAttribute("aria-describedby");
  }, [term]);
  if (!term?.isConnected) return null;
  const { left, top, bottom } = term.getBoundingClientRect();
  const below = bottom + 120 < innerHeight;
  return html`<div id=${BUBBLE} role="tooltip" style=${{ left: `${Math.max(8, Math.min(left, innerWidth - 330))}px`, ...(below ? { top: `${bottom + 4}px` } : { bottom: `${innerHeight - top + 4}px` }) }}>${term.dataset.meaning}</div>`;
}

// Text in which Markdown's code is marked.
export const written = (text) => text.split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

export function GlossaryPage() {
  const words = useMeanings();
  return html`<section aria-label="glossary"><h2>glossary</h2>${words ? html`<dl class="glossary">${Object.entries(words.glossary).map(([word, meaning]) => html`<div><dt>${word}</dt><dd>${written(meaning)}</dd></div>`)}</dl>` : html`<p role="status">reading the words…</p>`}</section>`;
}
