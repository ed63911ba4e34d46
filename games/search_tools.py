"""Tools over a corpus of documents: keyword search by BM25, and the references of a document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator

from marl.core.config import Config, shorten
from marl.core.plugins import PluginField
from marl.games.tools import read_text_argument
from marl.host.data_files import check_data_file_format, read_data_table
from marl.protocols import TaskConfig, ToolConfig
from marl.protocols.tasks import Document

if TYPE_CHECKING:
    from bm25s import BM25


class CorpusFile(Config):
    """File with the documents of a corpus, one a row: `id`, `text` and, if it has any, the list `references` of ids."""

    example = "path: papers.jsonl"
    path: Path
    """File of the documents: `.jsonl`, `.jsonl.zst`, `.csv` or `.parquet`."""

    @field_validator("path")
    @classmethod
    def _check_file_format(cls, path: Path) -> Path:
        return check_data_file_format(path)

    def documents(self) -> Sequence[Document]:
        """Return the documents of the file.

        Raises:
            ValueError: if the file cannot be read, or a row is no document.
        """
        table = read_data_table(self.path)
        documents: dict[str, Document] = {}
        for index, row in enumerate(table.rows):
            match row:
                case {"id": str(identifier), "text": str(text)} if identifier and not re.search(r"\s", identifier):
                    references = row.get("references") or []
                case _:
                    raise ValueError(
                        f"{table.row_location(index)}: a document has texts `id`, without blanks, and `text`"
                    )
            if not isinstance(references, list) or not all(isinstance(name, str) for name in references):
                raise ValueError(f"{table.row_location(index)}: references: {references!r} is no list of ids")
            if identifier in documents:
                raise ValueError(f"{table.row_location(index)}: id: {identifier!r} is the id of an earlier document")
            documents[identifier] = Document(identifier, text, tuple(references))
        return tuple(documents.values())


class CorpusTool(ToolConfig):
    """Base of tools over a corpus, whose results list one document a line: its id, a colon and its text."""

    corpus: Literal["task"] | CorpusFile = "task"
    """Documents: those of the game's task (`task`), or `{path: FILE}` with rows of `id`, `text` and `references`."""
    task: Annotated[TaskConfig | None, PluginField("tasks", TaskConfig, optional=True)] = None
    """Task of `corpus: task`, which the scenario fills in."""
    characters: int = Field(default=200, ge=0, le=100_000)
    """Maximum number of characters of a document's text in a result. 0: a result lists ids alone."""

    def with_task(self, task: TaskConfig) -> Self:
        return self.model_copy(update={"task": task}) if self.corpus == "task" else self

    def unmet_requirements(self) -> Iterable[str]:
        if isinstance(self.corpus, CorpusFile):
            if not self.corpus.path.is_file():
                yield f"corpus.path: no such file: {self.corpus.path}"
                return
        elif self.task is None:
            yield "corpus: 'task', but the scenario has no game with a task, or several games; choices: {path: FILE}"
            return
        try:
            if not self.documents:
                whose = f"task {self.task.kind!r}" if self.task else str(self.corpus)
                yield f"corpus: {whose} has no documents; choices: task 'citations', {{path: FILE}}"
        except ValueError as error:
            yield f"corpus.path: {error}"

    @cached_property
    def documents(self) -> Mapping[str, Document]:
        """Id -> document of the corpus.

        Raises:
            ValueError: if the file of the corpus cannot be read.
        """
        source = self.corpus if isinstance(self.corpus, CorpusFile) else self.task
        return {document.id: document for document in source.documents()} if source else {}

    def prepare(self) -> None:
        # The access fills the cache.
        _ = self.documents

    def list_documents(self, ids: Iterable[str]) -> str:
        """Return one line for each document; a document outside the corpus has its id alone."""
        lines: list[str] = []
        for identifier in ids:
            document = self.documents.get(identifier)
            text = " ".join(document.text.split())[: self.characters] if document else ""
            lines.append(f"{identifier}: {text}" if text else identifier)
        return "\n".join(lines)


class SearchTool(CorpusTool):
    """Tool to find the documents that match the words of `query` best, by BM25 (Lucene's variant)."""

    kind: str = "search"
    description: ClassVar[str] = "Searches the library by keywords and lists the best documents, with their ids."
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "The words to search for."}},
        "required": ["query"],
        "additionalProperties": False,
    }
    imports: ClassVar[tuple[str, ...]] = ("bm25s",)
    results: int = Field(default=5, ge=1, le=1000)
    """Maximum number of documents in a result. Documents without a word of the query are left out."""

    def unmet_requirements(self) -> Iterable[str]:
        if find_spec("bm25s") is None:
            yield "kind: 'search' needs the package bm25s; pip install 'marl-llm[search]'"
        yield from super().unmet_requirements()

    @cached_property
    def _index_and_ids(self) -> tuple[BM25, tuple[str, ...]]:
        from bm25s import BM25  # an optional package

        index = BM25()
        index.index([_words(document.text) for document in self.documents.values()], show_progress=False)
        return index, tuple(self.documents)

    def prepare(self) -> None:
        # The access fills the cache.
        _ = self._index_and_ids

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        words = _words(read_text_argument(arguments, "query"))
        index, ids = self._index_and_ids
        scores = index.get_scores(words) if words else np.zeros(len(ids), np.float32)
        matches = np.flatnonzero(scores > 0)
        if len(matches) > self.results:
            lowest = np.partition(scores[matches], -self.results)[-self.results]
            matches = matches[scores[matches] >= lowest]
        # Of documents with equal scores, the earlier one comes first, so that results do not depend on numpy's version.
        best = matches[np.lexsort((matches, -scores[matches]))][: self.results]
        return self.list_documents([ids[number] for number in best]) or "no document has a word of the query"


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case. Frequent words need no list, because BM25 gives them little weight."""
    return re.findall(r"\w+", text.lower())


class ExpandTool(CorpusTool):
    """Tool to list the references of the document `id`: the documents that it cites."""

    kind: str = "expand"
    description: ClassVar[str] = "Lists the references of a document of the library: the documents that it cites."
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"id": {"type": "string", "description": "The id of the document."}},
        "required": ["id"],
        "additionalProperties": False,
    }

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        identifier = read_text_argument(arguments, "id")
        document = self.documents.get(identifier)
        if document is None:
            raise ValueError(f"id: no document {shorten(repr(identifier))}")
        return self.list_documents(document.references) or "no references"
