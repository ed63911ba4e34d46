"""Values that know which earlier turns they were made from.

A prompt is made of words and facts of earlier turns by templates. Which part of it comes from which turn is not looked
up in the text afterwards, but carried along: a text is `Marked` with spans, and whatever cannot carry a mark (a number,
a comparison, the length of a list) is noted the moment somebody looks at it. `marl/templating.py` takes these notes
(`taken`) and marks what was made under their influence. No notes are made outside of a rendering.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import local
from typing import Any, NamedTuple

from marl.types import EdgeKind, TurnId


class Origin(NamedTuple):
    """An earlier turn, and the way in which it came here."""

    source: TurnId | int | None
    """A turn by its id, or by the number of the game's step that played it. None: the turns that an observation tells
    of whose game marks nothing."""
    kind: EdgeKind


Origins = frozenset[Origin]
Span = tuple[int, int, Origin]
"""(first character, character after the last, origin)"""
NO_ORIGINS: Origins = frozenset()


# --- notes of what was looked at -------------------------------------------------------------------------------------


class _Notes(local):
    """Origins of the values that were looked at in this thread; None while nobody asks."""

    origins: Origins | None = None


_notes = _Notes()


def swap_notes(notes: Origins | None) -> Origins | None:
    """Go on with these notes of what is looked at in this thread (None: take none); return those until now."""
    before, _notes.origins = _notes.origins, notes
    return before


def note(origins: Origins) -> None:
    """Note that something with these origins was looked at."""
    if origins and _notes.origins is not None:
        _notes.origins |= origins


def taken() -> Origins:
    """Return the notes since the last call and forget them."""
    noted = _notes.origins
    if not noted:
        return NO_ORIGINS
    _notes.origins = NO_ORIGINS
    return noted


# --- values ----------------------------------------------------------------------------------------------------------


class Marked(str):
    """A text of which some parts were made from earlier turns.

    Putting texts together, stripping them and changing their case keep the parts apart. Any other text that is made of
    it counts as a whole as made from all its turns, since one part may shift another. What is neither (a comparison, a
    length, a hash) is noted. The text equals the `str` of the same characters. Attributes begin with an underscore, so
    that no template can read them.
    """

    __slots__ = ("_remade", "_spans")
    _spans: tuple[Span, ...]
    _remade: dict[Callable[[str], str], str] | None
    """Results of functions of the text, as one turn is in the prompts of many."""

    def __new__(cls, text: str, spans: tuple[Span, ...] = ()) -> Marked:
        self = str.__new__(cls, text)
        self._spans, self._remade = spans, None
        return self

    def __reduce__(self) -> tuple[type[Marked], tuple[str, tuple[Span, ...]]]:
        return Marked, (plain(self), self._spans)

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Marked:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Marked:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __iter__(self) -> Iterator[str]:
        origins = origins_of(self)
        note(origins)
        return (carry(sign, origins) for sign in plain(self))

    def strip(self, characters: str | None = None, /) -> Marked:
        first = str.__len__(self) - len(str.lstrip(self, characters))
        return self._cut(str.strip(self, characters), first)

    def lstrip(self, characters: str | None = None, /) -> Marked:
        text = str.lstrip(self, characters)
        return self._cut(text, str.__len__(self) - len(text))

    def rstrip(self, characters: str | None = None, /) -> Marked:
        return self._cut(str.rstrip(self, characters), 0)

    def _cut(self, text: str, first: int) -> Marked:
        """Return `text`, which begins at `first`; a part that was cut away leaves a span of no length."""
        size = len(text)
        if size == str.__len__(self):
            return self
        spans = [(min(max(b - first, 0), size), min(max(e - first, 0), size), o) for b, e, o in self._spans]
        return Marked(text, tuple(spans))


def plain(text: str) -> str:
    """Return a text as a `str` without marks."""
    return text if type(text) is str else str.__str__(text)


def spans_of(text: str) -> tuple[Span, ...]:
    """Return the parts of a text that were made from earlier turns, in the order in which they were put together."""
    return text._spans if isinstance(text, Marked) else ()


class WatchedList(list[Any]):
    """A list whose items were made from earlier turns and cannot tell; looking at one is noted."""

    __slots__ = ("_length", "_origins")

    def __init__(self, items: Iterable[Any], origins: Sequence[Origins], length: Origins = NO_ORIGINS) -> None:
        """`origins`: of each item; `length`: of their number."""
        super().__init__(items)
        self._origins, self._length = origins, length

    def __getitem__(self, place: Any) -> Any:
        origins = self._origins[place] if isinstance(place, int) else NO_ORIGINS.union(*self._origins)
        note(origins)
        return super().__getitem__(place)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]


class WatchedDict(dict[str, Any]):
    """Facts of which some were made from earlier turns and cannot tell; looking at one is noted."""

    __slots__ = ("_origins",)

    def __init__(self, facts: Mapping[str, Any], origins: Mapping[str, Origins]) -> None:
        """`origins`: of each fact that has any."""
        super().__init__(facts)
        self._origins = origins

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if not isinstance(value, Marked):
            note(self._origins.get(name, NO_ORIGINS))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if dict.__contains__(self, name) else default

    def origins(self, name: str) -> Origins:
        """Return the origins of a fact."""
        return self._origins.get(name, NO_ORIGINS)


def _noting(base: type, name: str) -> Callable[..., Any]:
    """Return a method that notes all that the value, and texts given to the method, are made from."""
    method = getattr(base, name)

    def noting(self: Any, *args: Any, **options: Any) -> Any:
        if _notes.origins is not None:
            note(origins_of(self))
            note(origins_of(args))
        return method(self, *args, **options)

    return noting


def _carrying(name: str) -> Callable[..., Any]:
    """Return a method of texts whose result is marked as a whole."""
    method = getattr(str, name)

    def carrying(self: Marked, *args: Any, **options: Any) -> Any:
        return carry(method(self, *args, **options), origins_of((self, *args)))

    return carrying


def _keeping(name: str) -> Callable[..., Any]:
    """Return a method of texts that changes signs one by one; where it does not, the result is marked as a whole."""
    method = getattr(str, name)

    def keeping(self: Marked) -> Marked:
        text = method(self)
        same = len(text) == str.__len__(self)
        return Marked(text, self._spans) if same else carry(text, origins_of(self))

    return keeping


_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_OF_CONTAINERS = ("__iter__", "__reversed__", "__len__", "__contains__")
_LOOKS = {
    Marked: (
        *(*_COMPARISONS, "__hash__", "__len__", "__contains__", "__format__", "count", "find", "rfind", "index"),
        *("rindex", "startswith", "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower"),
        *("isidentifier", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "encode", "format"),
    ),
    WatchedList: (*_COMPARISONS, *_OF_CONTAINERS, "__add__", "__mul__", "__rmul__", "count", "index"),
    WatchedDict: (*_COMPARISONS, *_OF_CONTAINERS, "keys", "values", "items"),
}
for _kind, _names in _LOOKS.items():
    for _name in _names:
        if _name != "__hash__" or _kind is Marked:
            setattr(_kind, _name, _noting(_kind.__mro__[1], _name))
for _name in (
    *("__getitem__", "__mul__", "__rmul__", "__mod__", "center", "expandtabs", "ljust", "rjust", "zfill", "translate"),
    *("partition", "rpartition", "removeprefix", "removesuffix", "replace", "rsplit", "split", "splitlines"),
):
    setattr(Marked, _name, _carrying(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(Marked, _name, _keeping(_name))


# --- making them -----------------------------------------------------------------------------------------------------


def mark(value: Any, origins: Origins) -> Any:
    """Return a plain value, with all that it holds, as made from turns; a bare number or None only its holder can."""
    match value:
        case Marked():
            return value
        case str():
            return Marked(value, _whole(value, origins))
        case dict():
            marked = {name: mark(inner, origins) for name, inner in value.items()}
            return WatchedDict(marked, dict.fromkeys(value, origins))
        case list():
            return WatchedList([mark(inner, origins) for inner in value], [origins] * len(value), origins)
        case tuple():
            return tuple([mark(inner, origins) for inner in value])
    return value


def remade(text: str, function: Callable[[str], str]) -> str:
    """Return what a function makes of a text, marked as a whole; it must always make the same of it."""
    if type(text) is not Marked:
        return function(text)
    known = text._remade = text._remade or {}
    if function not in known:
        known[function] = carry(function(plain(text)), origins_of(text))
    return known[function]


def carry(value: Any, origins: Origins) -> Any:
    """Return a value that was made from turns: a text is marked as a whole, and what cannot be marked is noted."""
    if not origins:
        return value
    match value:
        case str():
            return Marked(value, (*spans_of(value), *_whole(value, origins)))
        case list():
            return WatchedList([carry(item, origins) for item in value], [origins] * len(value), origins)
        case tuple():
            return tuple([carry(item, origins) for item in value])
    note(origins)
    return value


def _whole(text: str, origins: Iterable[Origin]) -> tuple[Span, ...]:
    size = str.__len__(text)
    return tuple([(0, size, origin) for origin in origins])


def origins_of(value: Any) -> Origins:
    """Return all that a value, with all that it holds, was made from."""
    if type(value) is Marked:
        return frozenset([origin for _, _, origin in value._spans])
    if not isinstance(value, dict | list | tuple):
        return NO_ORIGINS
    gathered: set[Origin] = set()
    left = [value]
    while left:
        inner = left.pop()
        gathered |= _own_origins(inner)
        match inner:
            case dict():
                left += dict.values(inner)
            case list():
                left += list.__iter__(inner)
            case tuple():
                left += inner
    return frozenset(gathered)


def _own_origins(value: Any) -> Origins:
    """Return what a value itself knows that it was made from."""
    match value:
        case Marked():
            return frozenset([origin for _, _, origin in value._spans])
        case WatchedList():
            return value._length.union(*value._origins)
        case WatchedDict():
            return NO_ORIGINS.union(*value._origins.values())
    return NO_ORIGINS


def text_of(value: Any) -> str:
    """Return a value in words, like `str`, with its marks."""
    if isinstance(value, str):
        return value
    text = str(value)
    return carry(text, origins_of(value)) if isinstance(value, dict | list | tuple) else text


# --- putting texts together ------------------------------------------------------------------------------------------


class Boundary(str):
    """A text of no length that says something about those between which it stands."""

    __slots__ = ("origins",)
    origins: Origins

    def __new__(cls, origins: Origins = NO_ORIGINS) -> Boundary:
        self = str.__new__(cls)
        self.origins = origins
        return self

    def __str__(self) -> str:
        return self


class Begin(Boundary):
    """Begins a part of a text that may have been made under an influence, up to its `End`."""


class End(Boundary):
    """Ends a part of a text, which was made under the influence of `origins` from its `Begin` on."""


class Rest(Boundary):
    """All that follows was made under the influence of `origins`."""


def joined(pieces: Iterable[str]) -> Any:
    """Return texts one after another, with their marks and those of the boundaries between them."""
    pieces = list(pieces)
    text = "".join(pieces)
    if {*map(type, pieces)} <= {str}:
        return text
    place, spans, open_places, rest = 0, list[Span](), list[int](), list[tuple[int, Origins]]()
    for piece in pieces:
        if isinstance(piece, Marked):
            for begin, end, origin in piece._spans:
                spans.append((place + begin, place + end, origin))
        elif isinstance(piece, Begin):
            open_places.append(place)
        elif isinstance(piece, End):
            begin = open_places.pop()
            spans += [(begin, place, origin) for origin in piece.origins]
        elif isinstance(piece, Rest):
            rest.append((place, piece.origins))
        place += str.__len__(piece)
    spans += [(begin, len(text), origin) for begin, origins in rest for origin in origins]
    return Marked(text, tuple(spans)) if spans else text


def merged(spans: Collection[Span]) -> list[Span]:
    """Return spans of turns that are named by their ids, by beginning; those of one origin that overlap or touch are
    one."""
    if len(spans) < 2:
        return list(spans)
    gathered: list[Span] = []
    last: dict[Origin, int] = {}
    for begin, end, origin in sorted(spans):
        place = last.get(origin)
        if place is not None and begin <= gathered[place][1]:
            gathered[place] = (gathered[place][0], max(end, gathered[place][1]), origin)
        else:
            last[origin] = len(gathered)
            gathered.append((begin, end, origin))
    return gathered
