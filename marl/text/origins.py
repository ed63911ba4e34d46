"""Values that carry marks of the earlier turns from which they were made (their origins).

Templates make prompts from words and facts of earlier turns. A `MarkedText` carries the origin of each span of its
characters. Other values, such as numbers, comparisons or the length of a list, cannot carry marks; reading one records
its origins in this thread. `marl/text/templates.py` takes the recorded origins (`take_recorded_origins`) and marks the
text that depends on them. Outside of a rendering nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import local
from typing import Any, NamedTuple

from marl.core.types import EdgeKind, TurnId


class Origin(NamedTuple):
    """Earlier turn from which a value was made, and the kind of its edge in the trajectory graph."""

    source: TurnId | int | None
    """Id of the turn, or index of the game's step that played the turn. None if the game does not mark its sources, so
    that the origins of its observations are unknown."""
    kind: EdgeKind


Origins = frozenset[Origin]
Span = tuple[int, int, Origin]
"""(offset of the first character, offset after the last character, origin)"""
NO_ORIGINS: Origins = frozenset()


# --- recording of origins --------------------------------------------------------------------------------------------


class _Recorder(local):
    """Origins read in this thread while recording is on, or None while it is off."""

    origins: Origins | None = None


_recorder = _Recorder()


def swap_recorded_origins(origins: Origins | None) -> Origins | None:
    """Replace the recorded origins of this thread (None to switch recording off), and return the previous ones."""
    before, _recorder.origins = _recorder.origins, origins
    return before


def record_origins(origins: Origins) -> None:
    """Record `origins` as read, if recording is on."""
    if origins and _recorder.origins is not None:
        _recorder.origins |= origins


def take_recorded_origins() -> Origins:
    """Return the origins recorded since the last call, and clear them."""
    recorded = _recorder.origins
    # Recording stays off if it is off: None must not become an empty set.
    if not recorded:
        return NO_ORIGINS
    _recorder.origins = NO_ORIGINS
    return recorded


# --- values ----------------------------------------------------------------------------------------------------------


class MarkedText(str):
    """Text with spans that were made from earlier turns. It equals the `str` with the same characters.

    Joining, stripping and changes of case keep the spans. Other methods that return texts mark the entire result with
    all origins, because the content of one span may shift another. Methods with other results (comparison, length,
    hash) record all origins as read. Attribute names begin with an underscore, so that no template can read them.
    """

    __slots__ = ("_cache", "_spans")
    _spans: tuple[Span, ...]
    _cache: dict[Callable[[str], str], str] | None
    """Results of `apply_cached`, because one turn's text occurs in many prompts."""

    def __new__(cls, text: str, spans: tuple[Span, ...] = ()) -> MarkedText:
        self = str.__new__(cls, text)
        self._spans, self._cache = spans, None
        return self

    def __reduce__(self) -> tuple[type[MarkedText], tuple[str, tuple[Span, ...]]]:
        return MarkedText, (without_origins(self), self._spans)

    def __str__(self) -> str:
        # `str(text)` calls this method, and the inherited one would drop the marks.
        return self

    def __add__(self, other: str) -> MarkedText:
        return join_texts((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> MarkedText:
        return join_texts((other, self)) if isinstance(other, str) else NotImplemented

    def __iter__(self) -> Iterator[str]:
        origins = origins_of(self)
        record_origins(origins)
        return (add_origins(sign, origins) for sign in without_origins(self))

    def strip(self, characters: str | None = None, /) -> MarkedText:
        first = str.__len__(self) - len(str.lstrip(self, characters))
        return self._cut(str.strip(self, characters), first)

    def lstrip(self, characters: str | None = None, /) -> MarkedText:
        text = str.lstrip(self, characters)
        return self._cut(text, str.__len__(self) - len(text))

    def rstrip(self, characters: str | None = None, /) -> MarkedText:
        return self._cut(str.rstrip(self, characters), 0)

    def _cut(self, text: str, first: int) -> MarkedText:
        """Return `text`, the part of this text from offset `first` on. A span outside of `text` becomes empty."""
        size = len(text)
        if size == str.__len__(self):
            return self
        spans = [(min(max(b - first, 0), size), min(max(e - first, 0), size), o) for b, e, o in self._spans]
        return MarkedText(text, tuple(spans))


def without_origins(text: str) -> str:
    """Return `text` as a plain `str` without marks."""
    return text if type(text) is str else str.__str__(text)


def spans_of(text: str) -> tuple[Span, ...]:
    """Return the marked spans of `text`, in the order in which the text was joined; () for a plain `str`."""
    return text._spans if isinstance(text, MarkedText) else ()


class WatchedList(list[Any]):
    """List that stores the origins of its items, which may be unable to carry marks. Reading an item records them."""

    __slots__ = ("_length", "_origins")

    def __init__(self, items: Iterable[Any], origins: Sequence[Origins], length: Origins = NO_ORIGINS) -> None:
        """`origins` has the origins of each item, `length` those of the list's length."""
        super().__init__(items)
        self._origins, self._length = origins, length

    def __getitem__(self, index: Any) -> Any:
        origins = self._origins[index] if isinstance(index, int) else NO_ORIGINS.union(*self._origins)
        record_origins(origins)
        return super().__getitem__(index)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]


class WatchedDict(dict[str, Any]):
    """Dict of facts that stores their origins, because values may be unable to carry marks. Reading a fact records
    them."""

    __slots__ = ("_origins",)

    def __init__(self, facts: Mapping[str, Any], origins: Mapping[str, Origins]) -> None:
        """`origins` has the origins of each fact that was made from turns."""
        super().__init__(facts)
        self._origins = origins

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if not isinstance(value, MarkedText):
            record_origins(self._origins.get(name, NO_ORIGINS))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if dict.__contains__(self, name) else default

    def origins(self, name: str) -> Origins:
        """Return the origins of the fact `name`, without recording them."""
        return self._origins.get(name, NO_ORIGINS)


def _recording(base: type, name: str) -> Callable[..., Any]:
    """Return method `name` of `base`, extended to record the origins of the value and of all arguments."""
    method = getattr(base, name)

    def recording(self: Any, *args: Any, **options: Any) -> Any:
        if _recorder.origins is not None:
            record_origins(origins_of(self))
            record_origins(origins_of(args))
        return method(self, *args, **options)

    return recording


def _marking(name: str) -> Callable[..., Any]:
    """Return method `name` of `str`, extended to mark the entire result with all origins of text and arguments."""
    method = getattr(str, name)

    def marking(self: MarkedText, *args: Any, **options: Any) -> Any:
        return add_origins(method(self, *args, **options), origins_of((self, *args)))

    return marking


def _preserving(name: str) -> Callable[..., Any]:
    """Return method `name` of `str` for changes of case, extended to keep the spans."""
    method = getattr(str, name)

    def preserving(self: MarkedText) -> MarkedText:
        text = method(self)
        # Some characters change their number: "ß".upper() is "SS". Offsets of spans are then unknown.
        same_length = len(text) == str.__len__(self)
        return MarkedText(text, self._spans) if same_length else add_origins(text, origins_of(self))

    return preserving


_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_CONTAINER_METHODS = ("__iter__", "__reversed__", "__len__", "__contains__")
_RECORDING_METHODS = {
    MarkedText: (
        *(*_COMPARISONS, "__hash__", "__len__", "__contains__", "__format__", "count", "find", "rfind", "index"),
        *("rindex", "startswith", "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower"),
        *("isidentifier", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "encode", "format"),
    ),
    WatchedList: (*_COMPARISONS, *_CONTAINER_METHODS, "__add__", "__mul__", "__rmul__", "count", "index"),
    WatchedDict: (*_COMPARISONS, *_CONTAINER_METHODS, "keys", "values", "items"),
}
for _kind, _names in _RECORDING_METHODS.items():
    for _name in _names:
        setattr(_kind, _name, _recording(_kind.__mro__[1], _name))
for _name in (
    *("__getitem__", "__mul__", "__rmul__", "__mod__", "center", "expandtabs", "ljust", "rjust", "zfill", "translate"),
    *("partition", "rpartition", "removeprefix", "removesuffix", "replace", "rsplit", "split", "splitlines"),
):
    setattr(MarkedText, _name, _marking(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(MarkedText, _name, _preserving(_name))


# --- making them -----------------------------------------------------------------------------------------------------


def with_origins(value: Any, origins: Origins) -> Any:
    """Return `value` with `origins` on all its texts, lists and dicts; a number or None is returned unchanged."""
    match value:
        case MarkedText():
            return value
        case str():
            return MarkedText(value, _full_spans(value, origins))
        case dict():
            marked = {name: with_origins(inner, origins) for name, inner in value.items()}
            return WatchedDict(marked, dict.fromkeys(value, origins))
        case list():
            return WatchedList([with_origins(inner, origins) for inner in value], [origins] * len(value), origins)
        case tuple():
            return tuple([with_origins(inner, origins) for inner in value])
    return value


def apply_cached(text: str, function: Callable[[str], str]) -> str:
    """Return `function(text)`, marked with all origins of `text` and cached on it. `function` must be pure."""
    if type(text) is not MarkedText:
        return function(text)
    cache = text._cache = text._cache or {}
    if function not in cache:
        cache[function] = add_origins(function(without_origins(text)), origins_of(text))
    return cache[function]


def add_origins(value: Any, origins: Origins) -> Any:
    """Return `value` with `origins` added to all its texts and lists. For other values, `origins` are recorded as
    read."""
    if not origins:
        return value
    match value:
        case str():
            return MarkedText(value, (*spans_of(value), *_full_spans(value, origins)))
        case list():
            return WatchedList([add_origins(item, origins) for item in value], [origins] * len(value), origins)
        case tuple():
            return tuple([add_origins(item, origins) for item in value])
    record_origins(origins)
    return value


def _full_spans(text: str, origins: Iterable[Origin]) -> tuple[Span, ...]:
    """Return a span over all of `text` for each origin."""
    size = str.__len__(text)
    return tuple([(0, size, origin) for origin in origins])


def origins_of(value: Any) -> Origins:
    """Return the origins of `value` and of all nested values, without recording them."""
    if type(value) is MarkedText:
        return frozenset([origin for _, _, origin in value._spans])
    if not isinstance(value, dict | list | tuple):
        return NO_ORIGINS
    gathered: set[Origin] = set()
    stack = [value]
    while stack:
        inner = stack.pop()
        # Methods are called by class: those of watched values would record the origins as read.
        match inner:
            case MarkedText():
                gathered.update([origin for _, _, origin in inner._spans])
            case dict():
                if isinstance(inner, WatchedDict):
                    gathered.update(*inner._origins.values())
                stack += dict.values(inner)
            case list():
                if isinstance(inner, WatchedList):
                    gathered.update(inner._length, *inner._origins)
                stack += list.__iter__(inner)
            case tuple():
                stack += inner
    return frozenset(gathered)


def text_of(value: Any) -> str:
    """Return `str(value)` with the marks of `value`."""
    if isinstance(value, str):
        return value
    text = str(value)
    return add_origins(text, origins_of(value)) if isinstance(value, dict | list | tuple) else text


# --- joining of texts ------------------------------------------------------------------------------------------------


class Boundary(str):
    """Empty text between other texts, by which `join_texts` marks texts before or after it."""

    __slots__ = ("origins",)
    origins: Origins

    def __new__(cls, origins: Origins = NO_ORIGINS) -> Boundary:
        self = str.__new__(cls)
        self.origins = origins
        return self

    def __str__(self) -> str:
        # `str(boundary)` must return the boundary itself, not a plain empty text.
        return self


class BranchBegin(Boundary):
    """Beginning of the text of an `if` or `for`, up to the matching `BranchEnd`."""


class BranchEnd(Boundary):
    """End of the text of an `if` or `for`. All text since the matching `BranchBegin` depends on `origins`."""


class AssignmentBoundary(Boundary):
    """Boundary after an assignment. All following text depends on `origins`."""


def join_texts(pieces: Iterable[str]) -> Any:
    """Return the concatenation of `pieces`, with their marks and the marks that boundaries among them set."""
    pieces = list(pieces)
    text = "".join(pieces)
    # Most texts have no marks, and are joined without a loop over the pieces.
    if {*map(type, pieces)} <= {str}:
        return text
    offset, spans, branch_begins = 0, list[Span](), list[int]()
    assignments: list[tuple[int, Origins]] = []
    for piece in pieces:
        if isinstance(piece, MarkedText):
            for begin, end, origin in piece._spans:
                spans.append((offset + begin, offset + end, origin))
        elif isinstance(piece, BranchBegin):
            branch_begins.append(offset)
        elif isinstance(piece, BranchEnd):
            begin = branch_begins.pop()
            spans += [(begin, offset, origin) for origin in piece.origins]
        elif isinstance(piece, AssignmentBoundary):
            assignments.append((offset, piece.origins))
        offset += str.__len__(piece)
    for begin, origins in assignments:
        spans += [(begin, len(text), origin) for origin in origins]
    return MarkedText(text, tuple(spans)) if spans else text


def merged(spans: Collection[Span]) -> list[Span]:
    """Return `spans` sorted by offset, with overlapping or adjacent spans of one origin merged.

    All sources must be turn ids, because ids and step indices cannot be sorted together.
    """
    if len(spans) < 2:
        return list(spans)
    result: list[Span] = []
    last_index: dict[Origin, int] = {}
    for begin, end, origin in sorted(spans):
        index = last_index.get(origin)
        if index is not None and begin <= result[index][1]:
            result[index] = (result[index][0], max(end, result[index][1]), origin)
        else:
            last_index[origin] = len(result)
            result.append((begin, end, origin))
    return result
