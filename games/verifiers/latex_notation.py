"""Normal form of mathematical text: Unicode signs and variants of LaTeX commands become a small set of commands."""

from __future__ import annotations

import re
from functools import lru_cache

# ruff: noqa: RUF001 (the tables map signs that look alike)
_SIGNS = {
    **dict.fromkeys("−–—‐‑‒﹣", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000\t\n\r", " "),
    **dict.fromkeys("×·⋅∙∗", "*"),
    **dict.fromkeys("⁄∕÷", "/"),
    # Full-width forms of ASCII characters, as in Chinese texts.
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
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
    **{"或": " or ", "和": " and ", "且": " and ", "∧": " and ", "∨": " or "},
}
_NAMED_SIGNS = """
    ≤le ≥ge ≠ne ≈approx ±pm ∓mp ∪cup ∩cap ∈in ∞infty ∣mid αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa
    λlambda μmu νnu ξxi πpi ρrho σsigma τtau φphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΣSigma ΦPhi ΨPsi ΩOmega
    ∇nabla
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
    **dict.fromkeys(("boxed", "fbox", "vec", "overrightarrow", "hat", "mathbf", "boldsymbol", "bm"), " "),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    **dict.fromkeys(("leq", "leqslant", "leqq"), "\\le"),
    **dict.fromkeys(("geq", "geqslant", "geqq"), "\\ge"),
    **dict.fromkeys(("neq", "not="), "\\ne"),
    **dict.fromkeys(("dots", "ldots", "cdots"), "..."),
    **dict.fromkeys(("land", "wedge"), " and "),
    **dict.fromkeys(("lor", "vee"), " or "),
    **dict.fromkeys(("vert", "lvert", "rvert", "Vert", "lVert", "rVert", "|"), "|"),
    **dict.fromkeys(("simeq", "doteq"), "\\approx"),
    **{"div": "/", "lt": "<", "gt": ">", "colon": ":", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]"},
    **{"varnothing": "\\emptyset", "backslash": "\\setminus", "Reals": "\\R", "real": "\\R", "degree": "°"},
    **{"varphi": "\\phi", "varepsilon": "\\epsilon", "vartheta": "\\theta"},
    **{"top": "T", "intercal": "T", "dagger": "H"},
    **{"imath": " i ", "jmath": " j "},
    **{"%": "%", "$": "$", "&": "&", "#": "#", "_": "_", "bar": "\\overline", "infin": "\\infty"},
}
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.S)
_TEXT = re.compile(
    r"\\(?:text|textrm|textbf|textit|textsf|textnormal|mbox|hbox|mathrm|mathsf|mathit|operatorname)\*?\s*"
    r"(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(?<=mathrm )([a-z])(?![A-Za-z]))"
)
_FUNCTION_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min det"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_GROUP_MARK = r"(?:\\[,:;! ]|\{[,\s]\}|,\s?\\!|~)\s?"
_GROUPED = re.compile(
    rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP_MARK}\d{{3}})+(?!\d)"
    rf"|(?<![\d.,])\d{{1,2}}(?:{_GROUP_MARK}\d{{2}})+{_GROUP_MARK}\d{{3}}(?!\d)"
)
_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")
GROUP_COMMAND = re.compile(r"\\(?:begin|end)group\b")
"""Brackets of a formula between dollar signs, after `normalize_notation`."""
_REPEATED_DIGITS_WITH_DOTS = re.compile(r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")


def _all_reals_except(match: re.Match[str]) -> str:
    r"""Return \mathbb{R} \setminus \{1, -1\} for a match of "all real numbers except 1 and -1"."""
    members = re.sub(r"\\(?:begin|end)group\b|\b[a-z]\s*=", " ", match[1])
    listed = re.sub(r"(?:,\s*)?\b(?:and|or)\b", ",", members)
    return f"\\R \\setminus \\{{{listed}\\}}"


def _latex_matrix(match: re.Match[str]) -> str:
    """Return the LaTeX matrix for a match of [1,2;3,4], or the brackets unchanged if their rows are no matrix."""
    content = match[1]
    if "," not in content and re.fullmatch(r"[\s\d.;/-]*", content):
        content = ";".join(",".join(row.split()) for row in content.split(";"))  # MATLAB's notation, as in [1 2; 3 4]
    commas = {row.count(",") for row in content.split(";")}
    if len(commas) > 1 or commas == {0}:
        return f"[{content}]"
    rows = content.replace(",", "&").replace(";", "\\cr ")
    return f"\\begin{{matrix}}{rows}\\end{{matrix}}"


def _cases(match: re.Match[str]) -> str:
    """Return rows after an opening brace as LaTeX cases; equations are aligned at their signs."""
    rows = re.sub(r"&\s*=", "=", match[1])
    return f"\\begin{{cases}}{rows}\\end{{cases}}"


_ALL_REALS = r"\ball (?:real numbers|reals|real (?:values of )?[a-z]\b)"
_END = r"(?:[^\[\]();,{}]|\{[^{}]*\}){1,60}"
"""End of an interval, without brackets."""


def _interval(opening: str, match: re.Match[str]) -> str:
    """Return an interval in French notation with round brackets at its open ends."""
    return f"{opening}{match[1]},{match[2]}{')' if match[3] == '[' else ']'}"


_OTHER_SIGNS = ("",)
"""Search texts of a pattern of many non-ASCII signs: the pattern is tried on every text that is not pure ASCII."""
_PLAIN = re.compile(r"[0-9.,:+()/= -]*")
"""Text without any character that normalization changes."""
_GROUP_START, _GROUP_END = r"(?:\\begingroup\s*)?", r"(?:\s*\\endgroup)?"
_INTEGER_AFTER = (
    rf"[,;]?\s*\(?(?:\b(?:where|with|for)\s+|,\s*){_GROUP_START}([a-z]){_GROUP_END}\s+(?:is\s+|being\s+)?"
    r"(?:an?|any)\s+(?:arbitrary\s+)?integer\b\)?"
)
"""Domain of a parameter in words, such as "where n is an integer"."""
_INTEGER_BEFORE = (
    rf"[,;]?\s*\(?\b(?:for|with|where)\s+(?:(?:all|any|every|some|an?|arbitrary)\s+)*integers?\s+{_GROUP_START}([a-z])"
    rf"(?![A-Za-z]){_GROUP_END}\)?"
)
_REWRITES = tuple(
    (needles, re.compile(pattern), replacement)
    for needles, pattern, replacement in (
        (("~",), r"(?<=[\w})\]%.,:;=+*/<>&|-])~", " "),  # `~` is a space in LaTeX, but "about" at the beginning
        (("circ",), r"\^\s*\{?\s*\\circ\s*\}?", "°"),
        (("mathbb",), r"\\mathbb\s*\{?\s*R\s*\}?", r"\\R "),
        (("\u0305",), r"((?:\d\u0305)+)", lambda match: f"\\overline{{{match[1].replace(chr(0x305), '')}}}"),
        (("√",), r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (("√",), r"√\s*(?=\()", "sqrt"),
        (_OTHER_SIGNS, r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda match: f"^{{{match[0].translate(_RAISED)}}}"),
        (_OTHER_SIGNS, r"[₀₁₂₃₄₅₆₇₈₉]+", lambda match: f"_{{{match[0].translate(_LOWERED)}}}"),
        (
            _OTHER_SIGNS,
            r"[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]",
            lambda match: r" \frac{{{}}}{{{}}}".format(*_VULGAR[match[0]].split("/")),
        ),
        (("\\",), r"\\(frac|binom)\s*(\d)\s*(\d)(?!\d)", r"\\\1{\2}{\3}"),
        (("\\",), r"\\(frac|binom)\s*(\d)\s*\{", r"\\\1{\2}{"),
        (("\\",), r"(\\(?:frac|binom)\s*\{[^{}]*\})\s*(\d)(?!\d)", r"\1{\2}"),
        (("mathbb",), r",?\s*\(\s*([a-z])\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\)\s*$", r", \1 \\in \\mathbb{Z}"),
        (("ll ",), rf"(?i){_ALL_REALS} except\b(?: for\b)?(.*)", _all_reals_except),
        (("ll ", "全"), rf"(?i){_ALL_REALS}|全体实数", r"\\R "),
        (("nfinity",), r"(?i)\b(?:negative|minus) infinity\b", r"-\\infty "),
        (("nfinity",), r"(?i)\b(?:positive|plus) infinity\b", r"\\infty "),
        # dy/dx is the derivative y' and no quotient; d/dx without a function is an operator and no number.
        (("/", "frac"), r"\\frac\s*\{\s*d\s*([a-zA-Z])\s*\}\s*\{\s*d\s*x\s*\}|\bd([a-zA-Z])\s*/\s*dx\b", r"\1\2'"),
        (("frac",), r"\\frac\s*\{\s*d\s*([a-zA-Z])\s*\}\s*\{\s*d\s*([a-zA-Z])\s*\}", r"\1_{d\2}'"),
        (("/",), r"\bd([a-zA-Z])\s*/\s*d([a-zA-Z])\b", r"\1_{d\2}'"),
        (("frac",), r"\\frac\s*\{\s*d\s*\}\s*\{\s*d\s*([a-zA-Z])\s*\}", r"\\derivative "),
        # French intervals: ]0;2[ is (0,2).
        (
            ("]",),
            rf"(?:(?<![\w)}}\]])|(?<=\\cup)|(?<=\\cap))\]({_END})[;,]({_END})([\[\]])",
            lambda match: _interval("(", match),
        ),
        (
            ("[",),
            rf"(?:(?<![\w)}}\]])|(?<=\\cup)|(?<=\\cap))\[({_END})[;,]({_END})\[(?!\s*[\w(\\-])",
            lambda match: f"[{match[1]},{match[2]})",
        ),
        ((";",), r"\[([^\[\]();]*(?:;[^\[\]();]*)+)\]", _latex_matrix),
        (
            ("text",),
            r"\\text\{(?:for|where|with)(?: (?:all|any|every|some))?(?: integers?)?\}\s*([a-z])\s*\\in",
            r", \1 \\in",
        ),
        (
            ("^",),
            r"\^\s*([TH])(?=\s*[A-Z(])|(?<=[A-Z)}])\^([TH])(?=[a-z])",
            lambda match: f"^{{{match[1] or match[2]}}}",
        ),  # in A^TB^T, each exponent is a single T (transpose)
        (("text",), r"\^\s*\{?\s*\\text\{([TtH])\}\s*\}?", r"^{\1}"),
        (
            ("^", "\\textsuperscript"),
            r"(?<=\d)\s*(?:\^|\\textsuperscript)\s*\{?\s*(?:\\text\{)?(st|nd|rd|th)\}{0,2}",
            r"\1",
        ),
        (
            ("cases", "array", "aligned"),
            r"\\\{\s*\\begin\{(?:array|aligned)\}(?:\{[lcr| ]*\})?(.*?)\\end\{(?:array|aligned)\}\s*\.?",
            _cases,
        ),
        (("integer",), _INTEGER_AFTER, r", \1 \\in \\mathbb{Z}"),
        (("integer",), _INTEGER_BEFORE, r", \1 \\in \\mathbb{Z}"),
        (
            (" ou ", " oder ", " o ", " или "),
            r"(?<=[\w})])\s(?:ou|oder|o|или)\s(?=(?:[a-z](?:_\{?\d\}?)?\s*(?:=|<|>|\\[lgn]e)|-?\d|\\begingroup))",
            r" or ",
        ),
        (
            (" et ", " und ", " y ", " e ", " и "),
            r"(?<=[\w})])\s(?:et|und|y|e|и)\s(?=(?:[a-z](?:_\{?\d\}?)?\s*(?:=|<|>|\\[lgn]e)|-?\d|\\begingroup))",
            r" and ",
        ),
        (("mathbb", "in "), r"\\in\s+Z(?![A-Za-z])", r"\\in \\mathbb{Z}"),
        (
            (" inclusive", "nclusive"),
            r"^(?:[a-z] (?:is|lies) )?(?:from|between) (\S{1,20}) (?:to|and) (\S{1,20}),? (?:inclusive|\(inclusive\))$",
            r"[\1,\2]",
        ),
        (("between",), r"\b([a-z]) (?:is|lies) strictly between (\S{1,20}) and (\S{1,20})", r"\2 < \1 < \3"),
        (("nterval",), r"(?i)^the (?:open |closed |half-open )?interval (?=[\[(\]])", ""),
        (("ll ",), r"(?i)^all (?:real )?(?:numbers )?[a-z] (?:with|such that|satisfying) ", ""),
        ((" is ",), r"\b([a-z]) is (?:at least|greater than or equal to|no less than)(?= )", r"\1 \\ge "),
        ((" is ",), r"\b([a-z]) is (?:at most|less than or equal to|no more than)(?= )", r"\1 \\le "),
        ((" is ",), r"\b([a-z]) is (?:greater|more) than(?= )", r"\1 > "),
        ((" is ",), r"\b([a-z]) is less than(?= )", r"\1 < "),
        (("\\cr", "cases"), r"[,;.]\s*(?=\\cr\b|\\end\s*\{d?cases\})", " "),
        (("{:}",), r"\{:\}", ":"),
        (("**",), r"\*\*", "^"),
        (("<=", "=<", "⩽"), r"<=|=<|⩽", r"\\le "),
        ((">=", "⩾"), r">=|⩾", r"\\ge "),
        (("!=",), r"!=", r"\\ne "),
        (("approx", "≈"), r"^\s*(?:\\approx\b|≈)", " "),
    )
)
"""Texts of which one must occur, pattern, replacement."""
_ASCII_REWRITES = tuple(rewrite for rewrite in _REWRITES if rewrite[0] != _OTHER_SIGNS)


@lru_cache(2048)
def normalize_notation(text: str) -> str:
    r"""Return `text` in normal form.

    Spacing becomes spaces, signs become ASCII or LaTeX, `\dfrac` becomes `\frac`, commands like `\mathrm` become
    `\text`, and grouping that only numbers have (`1{,}234`, `1\,234`) disappears. `$...$` becomes
    `\begingroup ... \endgroup`.
    """
    if _PLAIN.fullmatch(text):
        return text.strip()
    # Order matters: text commands are read before `_COMMAND` drops their names, and `_REWRITES` expect the result.
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text.translate(_UNICODE))
    if "\\" in text:
        text = _TEXT.sub(_normalized_text_command, text)
        text = _REPEATED_DIGITS_WITH_DOTS.sub(
            lambda match: rf"\overline{{{''.join(filter(None, match.groups()))}}}", text
        )
        # `\(...\)` and `$...$` are groups of TeX. With an odd number of dollar signs, these are money.
        text = re.sub(r"\\\\(?:\[[^\]]*\])?", r"\\cr ", text)
        text = re.sub(r"\\[(\[]", r"\\begingroup ", re.sub(r"\\[)\]]", r"\\endgroup ", text))
    pieces = re.split(r"(?<!\\)\${1,2}", text) if "$" in text else [text]
    if len(pieces) % 2:
        # After the split at dollar signs, every second piece was between two of them.
        pieces[1::2] = [rf"\begingroup {piece}\endgroup " for piece in pieces[1::2]]
        text = "".join(pieces)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], match[0]), text)
    for needles, pattern, replacement in _ASCII_REWRITES if text.isascii() else _REWRITES:
        # A cheap substring search skips most patterns, because a regular expression is much slower, as is `any`.
        for needle in needles:
            if needle in text:
                text = pattern.sub(replacement, text)
                break
    return text.strip()


def without_text_commands(text: str) -> str:
    r"""Return `text` with the content of each `\text{...}` as plain words."""
    return _TEXT_COMMAND.sub(r" \1 ", text) if "\\text" in text else text


@lru_cache(4096)
def plain_words(text: str) -> str:
    """Return the normal form of `text` as words: without text commands and dollar signs, with single spaces."""
    return " ".join(GROUP_COMMAND.sub(" ", without_text_commands(normalize_notation(text))).split())


_CASES_IN_WORDS = re.compile(
    r"(?P<name>[^=<>]{1,20}=)?\s*(?P<first>[^,;]{1,80}?)\s*,?\s(?:if|for|when)\s(?P<condition>[^,;]{1,60}?)"
    r"(?:\s*[,;]|\s+and\b)\s*(?:and\s+)?(?P<second>[^,;]{1,80}?)\s*,?\s(?:(?:if|for|when)\s(?P<other>[^,;]{1,60})|(?P<rest>otherwise|else))",
    re.I,
)


def with_cases(text: str) -> str:
    """Return a function in words, such as "x^2 if x < 0, and x if x >= 0", as LaTeX cases; other texts unchanged."""
    match = _CASES_IN_WORDS.fullmatch(GROUP_COMMAND.sub(" ", normalize_notation(text)).strip(" ."))
    if match is None:
        return text
    other = match["other"] or f"\\text{{{match['rest']}}}"
    rows = f"{match['first']} & {match['condition']} \\\\ {match['second']} & {other}"
    return f"{match['name'] or ''}\\begin{{cases}}{rows}\\end{{cases}}"


def _normalized_text_command(match: re.Match[str]) -> str:
    r"""Return a text command of LaTeX as `\text{...}`, or as a function, a constant or plain words."""
    content = (match[1] if match[2] is None else match[2]).strip(" ~")
    if "{" in content:  # a unit such as m s^{-2} has an exponent in braces
        content = re.sub(r"\{([^{}]*)\}", r"\1", re.sub(r"\\[,;: ]", " ", content))
    if content in ("tr", "Tr"):
        return "\\tr "
    if content in _FUNCTIONS:
        return f"\\{content} "
    if re.match(_ALL_REALS, content, re.I):
        return f" {content} "
    if content.lower() in ("or", "and", "", ",") or not re.search(r"[^\W\d_]", content):
        return f" {content.lower()} "
    if infinity := re.fullmatch(r"(?:(negative|minus)|(?:positive|plus))?\s*infinity", content, re.I):
        return " -\\infty " if infinity[1] else " \\infty "
    # An upright e, i or d is a constant or a differential, not a word.
    return content if content in ("e", "i", "d") and "mathrm" in match[0] else f"\\text{{{content}}}"
