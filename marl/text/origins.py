"""Values that carry marks of their origins: the earlier turns from which they were made.

Templates make prompts from words and facts of earlier turns. A `TextWithOrigins` carries the origin of each span of its
characters. Other values, such as numbers, comparisons or the length of a list, cannot carry marks. Reading an unmarked
value records its origins in this thread. `marl/text/templates.py` takes the recorded origins (`take_recorded_origins`)
and marks the text that depends on them. Outside of a rendering nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import local
from typing import Any, NamedTuple

from marl.core.types import EdgeKind, TurnId


class TextOrigin(NamedTuple):
    """Earlier turn from which a value was made, and the kind of its edge in the trajectory graph."""

    source: TurnId | int | None
    """Id of the earlier turn, or index of the game's step that played the turn, or None if the game does not mark its
    sources."""
    kind: EdgeKind
    """Kind of the edge from the earlier turn to the turn that reads the value."""


Origins = frozenset[TextOrigin]
Span = tuple[int, int, TextOrigin]
"""(begin, end, origin) of a part of a text that comes from `origin`; `end` is exclusive."""
NO_ORIGINS: Origins = frozenset()


# --- recording of origins in this thread ------------------------------------------------------------------------------


class _OriginRecorder(local):
    """Thread-local record of the origins of values read, or None while recording is off."""

    origins: Origins | None = None


_recorder = _OriginRecorder()


def swap_recorded_origins(origins: Origins | None) -> Origins | None:
    """Set this thread's recorded origins to `origins` (None: recording off), and return the earlier ones."""
    before, _recorder.origins = _recorder.origins, origins
    return before


def record_origins(origins: Origins) -> None:
    """Record `origins` as read in this thread, if recording is on."""
    if origins and _recorder.origins is not None:
        _recorder.origins |= origins


def take_recorded_origins() -> Origins:
    """Return and clear the origins recorded in this thread."""
    recorded = _recorder.origins
    # None means that recording is off, and must not become an empty set, which would turn it on.
    if not recorded:
        return NO_ORIGINS
    _recorder.origins = NO_ORIGINS
    return recorded


# --- texts, lists and dicts that know their origins -------------------------------------------------------------------


class TextWithOrigins(str):
    """String that knows which spans were made from earlier turns. It equals the `str` with the same characters.

    Joining, stripping and changes of case keep the spans. Other methods that return texts mark the entire result with
    all origins, because the content of one span may shift another. Methods with other results (comparison, length,
    hash) record all origins as read. Attribute names begin with an underscore, so that no template can read them.
    """

    __slots__ = ("_cache", "_spans")
    _spans: tuple[Span, ...]
    _cache: dict[Callable[[str], str], str] | None
    """Function -> its result in `apply_cached_with_origins`, cached because one turn's text occurs in many prompts."""

    def __new__(cls, text: str, spans: tuple[Span, ...] = ()) -> TextWithOrigins:
        self = str.__new__(cls, text)
        self._spans, self._cache = spans, None
        return self

    def __reduce__(self) -> tuple[type[TextWithOrigins], tuple[str, tuple[Span, ...]]]:
        return TextWithOrigins, (without_origins(self), self._spans)

    def __str__(self) -> str:
        # `str(text)` calls this method; the one of `str` would return a text without origins.
        return self

    def __add__(self, other: str) -> TextWithOrigins:
        return join_texts_with_origins((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> TextWithOrigins:
        return join_texts_with_origins((other, self)) if isinstance(other, str) else NotImplemented

    def __iter__(self) -> Iterator[str]:
        origins = origins_of(self)
        record_origins(origins)
        return (add_origins(sign, origins) for sign in without_origins(self))

    def __getitem__(self, index: Any) -> Any:
        origins = origins_of(self) | origins_of(index)
        try:
            return add_origins(str.__getitem__(self, index), origins)
        except IndexError:
            # The text decides whether it has such a character: `{{ turn.move[0] | default('none') }}`.
            record_origins(origins)
            raise

    def strip(self, characters: str | None = None, /) -> TextWithOrigins:
        first = str.__len__(self) - len(str.lstrip(self, characters))
        return self._substring_with_spans(str.strip(self, characters), first)

    def lstrip(self, characters: str | None = None, /) -> TextWithOrigins:
        text = str.lstrip(self, characters)
        return self._substring_with_spans(text, str.__len__(self) - len(text))

    def rstrip(self, characters: str | None = None, /) -> TextWithOrigins:
        return self._substring_with_spans(str.rstrip(self, characters), 0)

    def _substring_with_spans(self, substring: str, substring_offset: int) -> TextWithOrigins:
        """Return `substring`, which begins at `substring_offset` of this text, with the spans of this text.

        Spans are shifted to the piece and cut at its ends; a span outside the piece becomes empty.
        """
        size = len(substring)
        if size == str.__len__(self):
            return self
        spans = list[Span]()
        for begin, end, origin in self._spans:
            spans.append(
                (min(max(begin - substring_offset, 0), size), min(max(end - substring_offset, 0), size), origin)
            )
        return TextWithOrigins(substring, tuple(spans))


def without_origins(text: str) -> str:
    """Return `text` as a plain `str` without marks."""
    return text if type(text) is str else str.__str__(text)


def origin_spans_of_text(text: str) -> tuple[Span, ...]:
    """Return the marked spans of `text`, or () for a plain `str`."""
    return text._spans if isinstance(text, TextWithOrigins) else ()


class OriginRecordingList(list[Any]):
    """List that knows the origins of its items, and records them when an item is read.

    Items such as numbers cannot carry marks themselves.
    """

    __slots__ = ("_length", "_origins")

    def __init__(self, items: Iterable[Any], origins: Sequence[Origins], length: Origins = NO_ORIGINS) -> None:
        """`origins`: origins of each item; `length`: origins of the list's length."""
        super().__init__(items)
        self._origins, self._length = origins, length

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            record_origins(self._length.union(*self._origins))
        elif 0 <= index < list.__len__(self):
            record_origins(self._origins[index])
        else:
            # The list's length decides which item this is, and whether there is one.
            record_origins(self._length)
            if -list.__len__(self) <= index < 0:
                record_origins(self._origins[index])
        return super().__getitem__(index)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]


class OriginRecordingDict(dict[str, Any]):
    """Dict that knows the origins of its values, and records them when an unmarked value is read.

    Values such as numbers cannot carry marks themselves.
    """

    __slots__ = ("_origins",)

    def __init__(self, facts: Mapping[str, Any], origins: Mapping[str, Origins]) -> None:
        """`origins`: name -> origins, for each of `facts` that was made from earlier turns."""
        super().__init__(facts)
        self._origins = origins

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if not isinstance(value, TextWithOrigins):
            record_origins(self._origins.get(name, NO_ORIGINS))
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if dict.__contains__(self, name) else default

    def origins(self, fact_name: str) -> Origins:
        """Return the origins of the fact `fact_name`, without recording them."""
        return self._origins.get(fact_name, NO_ORIGINS)


def _method_recording_origins(base_class: type, method_name: str) -> Callable[..., Any]:
    """Return method `method_name` of `base_class`, extended to record the origins of the object and all arguments."""
    method = getattr(base_class, method_name)

    def call_and_record_origins(self: Any, *args: Any, **options: Any) -> Any:
        if _recorder.origins is not None:
            record_origins(origins_of(self))
            if args:
                record_origins(origins_of(args))
        return method(self, *args, **options)

    return call_and_record_origins


def _method_marking_result_with_origins(method_name: str) -> Callable[..., Any]:
    """Return method `method_name` of `str`, extended to mark the full result with all origins of its inputs."""
    method = getattr(str, method_name)

    def call_and_mark_result(self: TextWithOrigins, *args: Any, **options: Any) -> Any:
        return add_origins(method(self, *args, **options), origins_of((self, *args)))

    return call_and_mark_result


def _case_method_keeping_origin_spans(method_name: str) -> Callable[..., Any]:
    """Return method `method_name` of `str` for changes of case, extended to keep the spans."""
    method = getattr(str, method_name)

    def change_case_and_keep_spans(self: TextWithOrigins) -> TextWithOrigins:
        text = method(self)
        # A change of case can change the length: "ß".upper() is "SS". The offsets of spans are then unknown.
        same_length = len(text) == str.__len__(self)
        return TextWithOrigins(text, self._spans) if same_length else add_origins(text, origins_of(self))

    return change_case_and_keep_spans


_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_CONTAINER_METHODS = ("__iter__", "__reversed__", "__len__", "__contains__")
_RECORDING_METHODS = {
    TextWithOrigins: (
        *(*_COMPARISONS, "__hash__", "__len__", "__contains__", "__format__", "count", "find", "rfind", "index"),
        *("rindex", "startswith", "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower"),
        *("isidentifier", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "encode", "format"),
    ),
    OriginRecordingList: (*_COMPARISONS, *_CONTAINER_METHODS, "__add__", "__mul__", "__rmul__", "count", "index"),
    OriginRecordingDict: (*_COMPARISONS, *_CONTAINER_METHODS, "keys", "values", "items"),
}
for _kind, _names in _RECORDING_METHODS.items():
    for _name in _names:
        setattr(_kind, _name, _method_recording_origins(_kind.__mro__[1], _name))
for _name in (
    *("__mul__", "__rmul__", "__mod__", "center", "expandtabs", "ljust", "rjust", "zfill", "translate"),
    *("partition", "rpartition", "removeprefix", "removesuffix", "replace", "rsplit", "split", "splitlines"),
):
    setattr(TextWithOrigins, _name, _method_marking_result_with_origins(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(TextWithOrigins, _name, _case_method_keeping_origin_spans(_name))


# --- functions that add origins to values -----------------------------------------------------------------------------


def add_origins_if_unmarked(value: Any, origins: Origins) -> Any:
    """Return `value` with `origins` on all its unmarked texts, lists and dicts; numbers and None stay unchanged."""
    match value:
        case TextWithOrigins():
            return value
        case str():
            return TextWithOrigins(value, _spans_over_full_text(value, origins))
        case dict():
            marked = {name: add_origins_if_unmarked(inner, origins) for name, inner in value.items()}
            return OriginRecordingDict(marked, dict.fromkeys(value, origins))
        case list():
            return OriginRecordingList(
                [add_origins_if_unmarked(inner, origins) for inner in value], [origins] * len(value), origins
            )
        case tuple():
            return tuple([add_origins_if_unmarked(inner, origins) for inner in value])
    return value


def apply_cached_with_origins(text: str, function: Callable[[str], str]) -> str:
    """Return `function(text)` with all origins of `text`. The result is cached on `text`; `function` must be pure."""
    if type(text) is not TextWithOrigins:
        return function(text)
    cache = text._cache = text._cache or {}
    if function not in cache:
        cache[function] = add_origins(function(without_origins(text)), origins_of(text))
    return cache[function]


def add_origins(value: Any, origins: Origins) -> Any:
    """Return `value` with `origins` added to all its texts and lists.

    Numbers and other values cannot carry marks: for them, `origins` are recorded as read.
    """
    if not origins:
        return value
    if isinstance(value, str):
        spans = _spans_over_full_text(value, origins)
        if not isinstance(value, TextWithOrigins):
            return TextWithOrigins(value, spans)
        # Many calls add the origins of a text to a part of it, which has the same spans already.
        missing_spans = [span for span in spans if span not in value._spans]
        return TextWithOrigins(value, (*value._spans, *missing_spans)) if missing_spans else value
    if isinstance(value, list):
        items = [add_origins(item, origins) for item in value]
        return OriginRecordingList(items, [origins] * len(items), origins)
    if isinstance(value, tuple):
        return tuple([add_origins(item, origins) for item in value])
    record_origins(origins)
    return value


def _spans_over_full_text(text: str, origins: Origins) -> tuple[Span, ...]:
    """Return one span over the full `text` for each origin."""
    size = str.__len__(text)
    if len(origins) == 1:
        # Most texts have one origin, for which a comprehension would take three times as long.
        [origin] = origins
        return ((0, size, origin),)
    return tuple([(0, size, origin) for origin in origins])


def origins_of(value: Any) -> Origins:
    """Return the origins of `value` and of all nested values, without recording them."""
    if type(value) is TextWithOrigins:
        return frozenset([origin for _, _, origin in value._spans])
    if not isinstance(value, (dict, list, tuple)):
        return NO_ORIGINS
    origins: set[TextOrigin] = set()
    stack = [value]
    while stack:
        container = stack.pop()
        # Base-class methods are called, because those of recording lists and dicts would record a use of the origins.
        if isinstance(container, dict):
            if isinstance(container, OriginRecordingDict):
                origins.update(*container._origins.values())
            items: Iterable[Any] = dict.values(container)
        elif isinstance(container, list):
            if isinstance(container, OriginRecordingList):
                origins.update(container._length, *container._origins)
            items = list.__iter__(container)
        else:
            items = container
        for item in items:
            if isinstance(item, TextWithOrigins):
                for _, _, origin in item._spans:
                    origins.add(origin)
            elif isinstance(item, (dict, list, tuple)):
                stack.append(item)
    return frozenset(origins)


def to_marked_text(value: Any) -> str:
    """Return `value` as a text, marked with the origins of `value` and of all nested values."""
    if isinstance(value, str):
        return value
    text = str(value)
    return add_origins(text, origins_of(value)) if isinstance(value, dict | list | tuple) else text


# --- joining of texts with origins ------------------------------------------------------------------------------------


class OriginBoundary(str):
    """Empty text among the pieces of `join_texts_with_origins`, with origins for the pieces before or after it."""

    __slots__ = ("origins",)
    origins: Origins

    def __new__(cls, origins: Origins = NO_ORIGINS) -> OriginBoundary:
        self = str.__new__(cls)
        self.origins = origins
        return self

    def __str__(self) -> str:
        # `str(boundary)` must keep the boundary, because a plain empty text would lose its origins.
        return self


class TemplateBranchBegin(OriginBoundary):
    """Boundary at the beginning of the text of an `if` or `for`; a `TemplateBranchEnd` marks its end."""


class TemplateBranchEnd(OriginBoundary):
    """Boundary at the end of the text of an `if` or `for`. The text since its `TemplateBranchBegin` depends on
    `origins`."""


class TemplateAssignmentEnd(OriginBoundary):
    """Boundary after an assignment to a template's variable. All following text depends on `origins`."""


def join_texts_with_origins(pieces: Iterable[str]) -> Any:
    """Return the concatenation of `pieces`, with their origins and the origins of the boundaries among them."""
    pieces = list(pieces)
    text = "".join(pieces)
    # Most texts have no marks, and are joined without a loop over the pieces.
    if {*map(type, pieces)} <= {str}:
        return text
    offset, spans, branch_begins = 0, list[Span](), list[int]()
    assignments: list[tuple[int, Origins]] = []
    for piece in pieces:
        if type(piece) is str:
            offset += len(piece)
            continue
        if isinstance(piece, TextWithOrigins):
            for begin, end, origin in piece._spans:
                spans.append((offset + begin, offset + end, origin))
        elif isinstance(piece, TemplateBranchBegin):
            branch_begins.append(offset)
        elif isinstance(piece, TemplateBranchEnd):
            begin = branch_begins.pop()
            spans += [(begin, offset, origin) for origin in piece.origins]
        elif isinstance(piece, TemplateAssignmentEnd):
            assignments.append((offset, piece.origins))
        offset += str.__len__(piece)
    for begin, origins in assignments:
        spans += [(begin, len(text), origin) for origin in origins]
    return TextWithOrigins(text, tuple(spans)) if spans else text


def merge_adjacent_origin_spans(spans: Collection[Span]) -> list[Span]:
    """Return `spans` sorted by offset, with overlapping or adjacent spans of one origin merged.

    All sources must be turn ids, because ids and step indices cannot be sorted together.
    """
    if len(spans) < 2:
        return list(spans)
    result: list[Span] = []
    last_index: dict[TextOrigin, int] = {}
    for begin, end, origin in sorted(spans):
        index = last_index.get(origin)
        if index is not None and begin <= result[index][1]:
            result[index] = (result[index][0], max(end, result[index][1]), origin)
        else:
            last_index[origin] = len(result)
            result.append((begin, end, origin))
    return result
