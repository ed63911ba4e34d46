// Model text as Markdown with formulas, on demand. The text is parsed into tokens, and only elements that are named here are
// made from them: no HTML, link, picture or script of a model becomes one.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./words.js";
import { visible } from "./text.js";

const LONGEST_TEXT = 50000, LONGEST_FORMULA = 4000;
const MATHML = "http://www.w3.org/1998/Math/MathML";
const ELEMENTS = new Set("math semantics mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts none mtable mtr mtd mpadded mphantom mstyle menclose".split(" "));
const ATTRIBUTES = new Set("accent accentunder columnalign columnspacing depth display displaystyle fence form height largeop linethickness lspace mathsize mathvariant maxsize minsize movablelimits notation rowspacing rspace scriptlevel separator stretchy symmetric voffset width".split(" "));
const FORMULA = /^(?:\$\$([^]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\]|\\\(([^]{1,4000}?)\\\)|\$(?![\s$])((?:\\.|[^$\\\n]){1,4000}?)(?<![\s\\])\$(?!\d))/;
const BLOCK = /^ {0,3}(?:\$\$([^]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])[ \t]*(?:\n+|$)/;

const loaded = {};
// A library of the page: in a report it is there already, and the server sends it when it is first needed.
function library(name) {
  loaded[name] ??= new Promise((done, failed) => {
    if (globalThis[name]) { done(); return; }
    document.head.append(Object.assign(document.createElement("script"), { src: `/static/${name}.js`, onload: done, onerror: () => failed(new Error(`${name}.js cannot be loaded`)) }));
  });
  return loaded[name];
}

let parser = null;
function lexed(text) {
  const token = (found, display) => found && { type: "formula", raw: found[0], text: found.slice(1).find((part) => part !== undefined), display };
  // marked splits a paragraph where a block may begin, so that a block of a formula begins only with its line.
  const start = (pattern, skipped) => (source) => { const at = source.search(pattern); return at < 0 ? undefined : at + skipped; };
  parser ??= new globalThis.marked.Marked({ extensions: [
    { name: "formulaBlock", level: "block", start: start(/\n {0,3}(?:\$\$|\\\[)/, 1), tokenizer: (source) => token(BLOCK.exec(source), true) || undefined },
    { name: "formula", level: "inline", start: start(/\$|\\[[(]/, 0), tokenizer: (source) => token(FORMULA.exec(source), /^(\$\$|\\\[)/.test(source)) || undefined },
  ] });
  return parser.lexer(text);
}

// Makes the elements of a formula by hand, so that no attribute but those above gets through.
function elements(node) {
  if (node.text !== undefined && !node.type) return document.createTextNode(node.text);
  const children = (node.children || []).map(elements);
  if (!ELEMENTS.has(node.type)) { const group = document.createDocumentFragment(); if (node.type !== "annotation") group.append(...children); return group; }
  const made = document.createElementNS(MATHML, node.type);
  for (const [name, text] of Object.entries(node.attributes || {})) if (ATTRIBUTES.has(name)) made.setAttribute(name, text);
  if (node.style?.border) made.classList.add("boxed");
  made.append(...children);
  return made;
}

function Formula({ text, raw, display }) {
  const holder = useRef(null);
  useLayoutEffect(() => {
    try {
      if (text.length > LONGEST_FORMULA) throw new Error("too long");
      holder.current.replaceChildren(elements(globalThis.temml.__renderToMathMLTree(text, { displayMode: display, throwOnError: true, maxExpand: 100, trust: false })));
    } catch { holder.current.textContent = raw; }  // what is no formula stays as it was written
  }, [text, display]);
  return html`<span ref=${holder} class=${display ? "formula display" : "formula"}></span>`;
}

const inline = (tokens) => (tokens || []).map(drawn);
const shown = (text) => visible(unescaped(text));
// The character references of Markdown that models write.
const unescaped = (text) => text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name) => ({ amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" })[name]);

function list(token) {
  const items = token.items.map((item) => html`<li>${item.task ? (item.checked ? "☑ " : "☐ ") : ""}${inline(item.tokens)}</li>`);
  return token.ordered ? html`<ol start=${Number(token.start) || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
}

function table(token) {
  const row = (cells, cell) => html`<tr>${cells.map((each) => cell(inline(each.tokens)))}</tr>`;
  return html`<div class="wide"><table><thead>${row(token.header, (words) => html`<th>${words}</th>`)}</thead><tbody>${token.rows.map((cells) => row(cells, (words) => html`<td>${words}</td>`))}</tbody></table></div>`;
}

function drawn(token) {
  switch (token.type) {
    case "formula": case "formulaBlock": return html`<${Formula} text=${token.text} raw=${token.raw} display=${token.display} />`;
    case "heading": return html`<p class="md-heading">${inline(token.tokens)}</p>`;
    case "paragraph": return html`<p>${inline(token.tokens)}</p>`;
    case "blockquote": return html`<blockquote>${inline(token.tokens)}</blockquote>`;
    case "list": return list(token);
    case "table": return table(token);
    case "code": return html`<pre class="written">${visible(token.text)}</pre>`;
    case "codespan": return html`<code>${visible(token.text)}</code>`;
    case "strong": return html`<strong>${inline(token.tokens)}</strong>`;
    case "em": return html`<em>${inline(token.tokens)}</em>`;
    case "del": return html`<del>${inline(token.tokens)}</del>`;
    case "br": return html`<br />`;
    case "hr": return html`<hr />`;
    case "space": return null;
    case "escape": return shown(token.text);
    case "text": return token.tokens ? inline(token.tokens) : shown(token.text);
    default: return visible(token.raw);  // links, pictures, HTML and definitions: as they were written
  }
}

// The text as Markdown; until the libraries are there, and if it is too long, as it was written.
export function Markdown({ text, label }) {
  const [ready, set] = useState("");
  useEffect(() => { Promise.all(["marked", "temml"].map(library)).then(() => set("yes"), (error) => set(error.message)); }, []);
  const parts = useMemo(() => {
    if (ready !== "yes" || text.length > LONGEST_TEXT) return null;
    try { return lexed(text).map(drawn); } catch { return null; }
  }, [text, ready]);
  if (parts === null) return html`<pre class="written" tabindex="0" aria-label=${label}>${visible(text)}</pre>`;
  return html`<div class="written markdown" tabindex="0" role="group" aria-label=${label}>${parts}</div>`;
}
