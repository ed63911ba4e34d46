"""Normal form of mathematical text: Unicode signs and variants of LaTeX commands become a small set of commands."""

from __future__ import annotations

import re

# ruff: noqa: RUF001 (the tables map signs that look alike)
_SIGNS = {
    **dict.fromkeys("−–—‐‑‒﹣", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000\t\n\r", " "),
    **dict.fromkeys("×·⋅∙∗", "*"),
    **dict.fromkeys("⁄∕÷", "/"),
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full-width forms
    **{"’": "'", "‘": "'", "′": "'", "、": ",", "。": ".", "…": "...", "⋯": "...", "º": "°"},
    **{
        "⟨": "\\langle ",
        "⟩": "\\rangle ",
        "ℝ": "\\R ",
        "ℤ": "\\mathbb{Z}",
        "∅": "\\emptyset ",
        "∖": "\\setminus ",
        "ⅈ": "i",
        "ⅇ": "e",
    },
    **{"或": " or ", "和": " and ", "且": " and "},
}
_NAMED_SIGNS = """
    ≤le ≥ge ≠ne ≈approx ±pm ∓mp ∪cup ∩cap ∈in ∞infty ∣mid αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa
    λlambda μmu νnu ξxi πpi ρrho σsigma τtau φphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΣSigma ΦPhi ΨPsi ΩOmega
"""
_UNICODE = str.maketrans(_SIGNS | {name[0]: f"\\{name[1:]} " for name in _NAMED_SIGNS.split()})
_FRACTIONS = "1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 5/6 1/7 1/8 3/8 5/8 7/8 1/9 1/10"
_VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", _FRACTIONS.split(), strict=True))
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")

_SIZES = """
    left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle limits
    nolimits mathstrut strut rm quad qquad space enspace
"""
_COMMANDS: dict[str, str] = {
    **dict.fromkeys(_SIZES.split(), " "),
    **dict.fromkeys(("thinspace", "negthinspace", ",", ";", ":", "!", " ", ">"), " "),
    **dict.fromkeys(("boxed", "fbox", "vec", "hat", "mathbf", "boldsymbol", "bm"), " "),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    **dict.fromkeys(("leq", "leqslant", "leqq"), "\\le"),
    **dict.fromkeys(("geq", "geqslant", "geqq"), "\\ge"),
    **dict.fromkeys(("neq", "not="), "\\ne"),
    **dict.fromkeys(("dots", "ldots", "cdots"), "..."),
    **dict.fromkeys(("land", "wedge"), " and "),
    **dict.fromkeys(("lor", "vee"), " or "),
    **dict.fromkeys(("vert", "lvert", "rvert"), "|"),
    **dict.fromkeys(("simeq", "doteq"), "\\approx"),
    **{"div": "/", "lt": "<", "gt": ">", "colon": ":", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]"},
    **{"varnothing": "\\emptyset", "backslash": "\\setminus", "Reals": "\\R", "real": "\\R", "degree": "°"},
    **{"imath": " i ", "jmath": " j "},
    **{"%": "%", "$": "$", "&": "&", "#": "#", "_": "_", "bar": "\\overline", "infin": "\\infty"},
}
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.S)
_TEXT = re.compile(
    r"\\(?:text|textrm|textbf|textit|textsf|textnormal|mbox|hbox|mathrm|mathsf|mathit|operatorname)\*?\s*\{([^{}]*)\}"
)
_FUNCTION_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min det"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_GROUP_MARK = r"(?:\\[,:;! ]|\{[,\s]\}|,\s?\\!|~)\s?"
_GROUPED = re.compile(
    rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP_MARK}\d{{3}})+(?!\d)"
    rf"|(?<![\d.,])\d{{1,2}}(?:{_GROUP_MARK}\d{{2}})+{_GROUP_MARK}\d{{3}}(?!\d)"
)
GROUP_COMMAND = re.compile(r"\\(?:begin|end)group\b")
"""Brackets of a formula between dollar signs, after `normalize_notation`."""
_DOTTED = re.compile(r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")


def _complement(members: str) -> str:
    r"""Return the complement \mathbb{R} \setminus \{...\} of the listed `members`: "1 and -1", "x = 2"."""
    members = re.sub(r"\\(?:begin|end)group\b|\b[a-z]\s*=", " ", members)
    listed = re.sub(r"(?:,\s*)?\b(?:and|or)\b", ",", members)
    return f"\\R \\setminus \\{{{listed}\\}}"


def _matrix(content: str) -> str:
    """Return the LaTeX matrix for the `content` of [1,2;3,4], or the brackets unchanged if it is no matrix."""
    commas = {row.count(",") for row in content.split(";")}
    if len(commas) > 1 or commas == {0}:
        return f"[{content}]"
    rows = content.replace(",", "&").replace(";", "\\cr ")
    return f"\\begin{{matrix}}{rows}\\end{{matrix}}"


_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=[\w})\]%.,:;=+*/<>&|-])~", " "),  # LaTeX's space; at the beginning it says "about"
        (r"\^\s*\{?\s*\\circ\s*\}?", "°"),
        (r"\\mathbb\s*\{?\s*R\s*\}?", r"\\R "),
        (r"((?:\d\u0305)+)", lambda match: f"\\overline{{{match[1].replace(chr(0x305), '')}}}"),
        (r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"√\s*(?=\()", "sqrt"),
        (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda match: f"^{{{match[0].translate(_RAISED)}}}"),
        (r"[₀₁₂₃₄₅₆₇₈₉]+", lambda match: f"_{{{match[0].translate(_LOWERED)}}}"),
        (r"[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]", lambda match: r" \frac{{{}}}{{{}}}".format(*_VULGAR[match[0]].split("/"))),
        (r"\\(frac|binom)\s*(\d)\s*(\d)(?!\d)", r"\\\1{\2}{\3}"),
        (r"\\(frac|binom)\s*(\d)\s*\{", r"\\\1{\2}{"),
        (r"(\\(?:frac|binom)\s*\{[^{}]*\})\s*(\d)(?!\d)", r"\1{\2}"),
        (r",?\s*\(\s*([a-z])\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\)\s*$", r", \1 \\in \\mathbb{Z}"),
        (r"(?i)\ball (?:real numbers|reals) except\b(?: for\b)?(.*)", lambda match: _complement(match[1])),
        (r"(?i)\ball (?:real numbers|reals)\b|全体实数", r"\\R "),
        (r"\[([^\[\]();]*(?:;[^\[\]();]*)+)\]", lambda match: _matrix(match[1])),
        (r"\*\*", "^"),
        (r"<=|=<|⩽", r"\\le "),
        (r">=|⩾", r"\\ge "),
        (r"!=", r"\\ne "),
        (r"^\s*(?:\\approx\b|≈)", " "),
    )
)


def normalize_notation(text: str) -> str:
    r"""Return `text` in normal form.

    Spacing becomes spaces, signs become ASCII or LaTeX, `\dfrac` becomes `\frac`, `\mathrm` and its like `\text`, and
    grouping that only numbers have (`1{,}234`, `1\,234`) disappears. `$...$` becomes `\begingroup ... \endgroup`.
    """
    # The order counts: text commands are read before `_COMMAND` would drop their names, and `_REWRITES` come last.
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text.translate(_UNICODE))
    text = _TEXT.sub(_plain_text, text)
    text = _DOTTED.sub(_overlined, text)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], match[0]), _braced(text))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()


def without_text_commands(text: str) -> str:
    r"""Return `text` with the content of each `\text{...}` as plain words."""
    return re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)


def _braced(text: str) -> str:
    r"""Return `text` with `$...$` and `\(...\)` as groups of TeX. An unpaired `$` is money."""
    text = re.sub(r"\\\\(?:\[[^\]]*\])?", r"\\cr ", text)
    text = re.sub(r"\\[(\[]", r"\\begingroup ", re.sub(r"\\[)\]]", r"\\endgroup ", text))
    pieces = re.split(r"(?<!\\)\${1,2}", text)
    if len(pieces) % 2 == 0:
        return text
    # Every second piece lies between dollar signs.
    pieces[1::2] = [rf"\begingroup {piece}\endgroup " for piece in pieces[1::2]]
    return "".join(pieces)


def _plain_text(match: re.Match[str]) -> str:
    r"""Return a text command of LaTeX as `\text{...}`, or as a function, a constant or plain words."""
    content = match[1].strip(" ~")
    if content in _FUNCTIONS:
        return f"\\{content} "
    if re.match(r"all (?:real numbers|reals)\b", content, re.I):
        return f" {content} "
    if content.lower() in ("or", "and", "", ",") or not re.search(r"[^\W\d_]", content):
        return f" {content.lower()} "
    # Upright e, i and d are constants and differentials.
    return content if content in ("e", "i", "d") and "mathrm" in match[0] else f"\\text{{{content}}}"


def _overlined(match: re.Match[str]) -> str:
    r"""Return the period between dots, as in 0.\dot{1}2\dot{3}, below a line."""
    return f"\\overline{{{match[1]}{match[2] or ''}{match[3] or ''}}}"
