// Model text as plain text: never HTML, with invisible and direction-changing characters spelled out.
import { html, useState } from "./words.js";

// Control characters except tab and line feed, direction marks, zero-width characters, tag characters.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const code = (sign) => `U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// Returns the text as a list of strings and of markers for hidden characters.
export function visible(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    parts.push(text.slice(end, match.index));
    parts.push(html`<span class="hidden-sign" title="a character that would not be seen">${code(match[0])}</span>`);
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}

// The same text as a plain string, for labels.
export const spelled = (text) => text.replace(HIDDEN, (sign) => `[${code(sign)}]`);

export const cut = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);

export function Written({ text, label }) {
  return html`<pre class="written" tabindex="0" aria-label=${label}>${text === "" ? html`<i class="faint">nothing</i>` : visible(text)}</pre>`;
}

// A prompt message with highlighted spans derived from earlier turns.
export function Prompt({ turn, message, colours }) {
  const content = turn.messages[message].content;
  const marks = turn.marks.filter((mark) => mark.message === message && mark.end > mark.begin).sort((a, b) => a.begin - b.begin);
  const signs = Array.from(content);  // places are counted in characters, not in units of UTF-16
  const parts = [];
  let end = 0;
  for (const mark of marks) {
    if (mark.begin < end) continue;  // marks may lie within one another: the outer one is shown
    parts.push(...visible(signs.slice(end, mark.begin).join("")));
    const inner = visible(signs.slice(mark.begin, mark.end).join(""));
    parts.push(html`<mark style=${{ borderBottomColor: colours[mark.kind][0] }} title="${mark.kind}: turn ${mark.source}">${inner}</mark>`);
    end = mark.end;
  }
  parts.push(...visible(signs.slice(end).join("")));
  return html`<pre class="written" tabindex="0" aria-label="${turn.messages[message].role} message">${parts}</pre>`;
}

// Button that copies what `text()` returns, and says so.
export function Copy({ words, text }) {
  const [state, set] = useState("");
  const copy = () => navigator.clipboard.writeText(text()).then(() => set("copied"), () => set("this browser does not let the page copy"));
  return html`<button type="button" class="quiet" onClick=${copy} onBlur=${() => set("")}>${state || words}</button>`;
}
