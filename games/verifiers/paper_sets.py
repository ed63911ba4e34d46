"""Verifiers of sets of papers: recall and precision of an answer, and right papers that a call of a tool has found."""

from __future__ import annotations

import re
from abc import abstractmethod

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.answer_verifier import reject
from marl.protocols import VerifierConfig
from marl.text.json_text import last_json_value

_LISTED_ID = re.compile(r"^(\S+?)(?::|$)", re.M)
"""Id at the beginning of a line, in the results of the tools `search` and `expand`."""

_NO_RIGHT_PAPER = "the right answer names no paper"


def read_paper_ids(text: str) -> frozenset[str]:
    """Return the ids in an answer: those of `{"papers": [id, ...]}` or of a list, the last JSON value of `text`.

    Raises:
        ValueError: if the answer is no such JSON.
    """
    value = last_json_value(text)
    if isinstance(value, dict):
        value = value.get("papers")
    if not isinstance(value, list) or not all(isinstance(paper, str) for paper in value):
        raise ValueError('no list of papers: {"papers": [id, ...]}')
    return frozenset(paper.strip() for paper in value)


def read_right_paper_ids(problem: Problem) -> frozenset[str]:
    """Return the ids in the right answer of `problem`, or an empty set if the right answer names no paper."""
    try:
        return read_paper_ids(problem.answer)
    except ValueError:
        return frozenset()


class _PaperSetVerifier(VerifierConfig):
    """Base of verifiers that compare the set of papers in an answer with the right set."""

    @abstractmethod
    def score_papers(self, papers: frozenset[str], right_papers: frozenset[str]) -> float:
        """Return the score of the set `papers`. Neither set is empty."""

    def __call__(self, case: VerifierCase) -> Verdict:
        try:
            papers = read_paper_ids(case.answer or "")
        except ValueError as error:
            return reject(f"no JSON of papers: {error}")
        if not papers:
            return reject("names no paper")
        right_papers = read_right_paper_ids(case.problem)
        if not right_papers:
            return reject(_NO_RIGHT_PAPER)
        # A text that is the same for all scores tells no agent which of its papers are right.
        return Verdict(self.score_papers(papers, right_papers), f"names {len(papers)} papers")


class RecallVerifier(_PaperSetVerifier):
    """Scores an answer `{"papers": [...]}` by its recall, the share of the right papers that it names."""

    kind: str = "recall"

    def score_papers(self, papers: frozenset[str], right_papers: frozenset[str]) -> float:
        return len(papers & right_papers) / len(right_papers)


class PrecisionVerifier(_PaperSetVerifier):
    """Scores an answer `{"papers": [...]}` by its precision, the share of its papers that are right."""

    kind: str = "precision"

    def score_papers(self, papers: frozenset[str], right_papers: frozenset[str]) -> float:
        return len(papers & right_papers) / len(papers)


class NewPapersVerifier(VerifierConfig):
    """Scores results of a tool by the share of the right papers that they list and no earlier result has listed.

    The sum over the calls of an episode is the recall of all results together.
    """

    kind: str = "new_papers"

    def __call__(self, case: VerifierCase) -> Verdict:
        listed = frozenset(_LISTED_ID.findall(case.text))
        known = frozenset(paper for text in case.earlier for paper in _LISTED_ID.findall(text))
        right = read_right_paper_ids(case.problem)
        if not right:
            return reject(_NO_RIGHT_PAPER)
        return Verdict(len((listed - known) & right) / len(right), f"lists {len(listed)} documents")

    def phrase(self, answer: str) -> str:
        try:
            return "\n".join(sorted(read_paper_ids(answer)))
        except ValueError:
            # An answer that names no papers, such as gibberish, lists none.
            return answer
