"""What somebody wrote: demonstrations and preferences from a file, in the tokens of the policy that learns from them.

A row becomes one episode of one turn for each of its answers; nothing is played.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from marl.config import Config, Sampling, nearest
from marl.data_files import known_format, read_file
from marl.experience.dataset_rows import Case, Place, answer, asked, exchange
from marl.protocols import Experience, ExperienceConfig, Simulator
from marl.seeds import seed_of
from marl.types import Completion, Deal, Failure, Metrics, Request, Reward, Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Written(ExperienceConfig):
    """Takes each step's episodes from a file of answers, row by row, round and round."""

    answers: ClassVar[int] = 1
    """Of each row: as many episodes of one start."""
    path: Path
    """`.jsonl`, `.jsonl.zst` or `.parquet`."""
    role: str | None = None
    """Who gave the answers; needed where the game seats several roles. Its templates make prompts of texts, as if each
    were all that it had observed; messages are taken as they are."""
    shuffle: bool = True
    """Whether rows come in an order of their own in each epoch, drawn from `seed`."""
    seed: int = 0

    @field_validator("path")
    @classmethod
    def _known_format(cls, path: Path) -> Path:
        return known_format(path)

    def missing(self) -> Iterable[str]:
        try:
            self.cases()
        except ValueError as error:
            yield str(error)

    def unfit(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        roles = sorted(set(seats.values()))
        if self.role is None and len(roles) > 1:
            yield f"role: missing: who gave the answers? choices: {', '.join(roles)}"
        elif self.role is not None and self.role not in roles:
            yield f"role: no seat has the role {self.role!r}; {nearest(self.role, roles)}"
        if group_size % self.answers:
            yield (
                f"kind: a row of {self.kind!r} is {self.answers} episodes of one start, but schedule.group_size is "
                f"{group_size}; use {self.answers}"
            )

    def cases(self) -> Sequence[Case]:
        """The file's rows.

        Raises:
            ValueError: naming file, line and column.
        """
        stamp = self.path.stat().st_mtime_ns if self.path.is_file() else 0
        return _read(type(self), self.model_dump_json(), stamp)

    @abstractmethod
    def case(self, row: Mapping[str, Any], place: Place) -> Case:
        """What a row says."""

    def build(self) -> Experience:
        return Answers(self)


class DemonstrationColumns(Config):
    """Which column holds what."""

    prompt: str = "prompt"
    completion: str = "completion"
    messages: str = "messages"


class Demonstrations(Written):
    """Answers to be imitated (`sft`), each paid 1: columns `prompt` and `completion`, or `messages`.

    `messages` is a chat that ends with the assistant's answer.
    """

    kind: str = "demonstrations"
    columns: DemonstrationColumns = DemonstrationColumns()

    def case(self, row: Mapping[str, Any], place: Place) -> Case:
        columns = self.columns
        if row.get(columns.messages) is not None:
            before, said = exchange(row, columns.messages, place)
            return Case(before, (said,), (1.0,))
        return Case(asked(row, columns.prompt, place), (answer(row, columns.completion, place),), (1.0,))


class PreferenceColumns(Config):
    """Which column holds what."""

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"


class Preferences(Written):
    """Pairs of answers (`dpo`, `reward_model`): columns `prompt`, `chosen` (paid 1) and `rejected` (paid 0).

    A row is a group of two episodes.
    """

    kind: str = "preferences"
    answers: ClassVar[int] = 2
    columns: PreferenceColumns = PreferenceColumns()

    def case(self, row: Mapping[str, Any], place: Place) -> Case:
        said = [answer(row, column, place) for column in (self.columns.chosen, self.columns.rejected)]
        return Case(asked(row, self.columns.prompt, place), tuple(said), (1.0, 0.0))


@lru_cache(maxsize=4)
def _read(kind: type[Written], settings_json: str, _stamp: int) -> Sequence[Case]:
    # Cached, since a scenario is checked before it is built; by the time of its last change, so that an edit counts.
    settings = kind.model_validate_json(settings_json)
    table = read_file(settings.path)
    if not table.rows:
        raise ValueError(f"path: {table.name}: no rows")
    return [settings.case(row, Place("path: " + table.place(i))) for i, row in enumerate(table.rows)]


class Answers:
    """A file's rows, and how many of them were used."""

    def __init__(self, settings: Written) -> None:
        self._settings = settings
        self._cases = settings.cases()
        self._used = 0

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
        """An episode for each deal; those of a row have the same start."""
        wide = self._settings.answers
        taken = self._taken(len(deals) // wide)
        told = [self._turn(deal, self._cases[taken[i // wide]], i % wide, simulator) for i, deal in enumerate(deals)]
        said = simulator.score([replace(turn.request, forced=turn.completion.text) for turn in told], "train")
        return [
            self._episode(deal, _spoken(turn, words), taken[i // wide], i % wide)
            for i, (deal, turn, words) in enumerate(zip(deals, told, said, strict=True))
        ]

    def metrics(self) -> Metrics:
        """`written/epochs`: how often all rows were used."""
        return {"written/epochs": self._used / len(self._cases)}

    def state_dict(self) -> dict[str, Any]:
        return {"used": self._used, "rows": len(self._cases)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["rows"] != len(self._cases):
            raise ValueError(
                f"experience.path: {self._settings.path} has {len(self._cases)} rows, but had {state['rows']} when the "
                "state was saved; a run goes on only with the same file"
            )
        self._used = int(state["used"])

    def _taken(self, many: int) -> list[int]:
        """The next rows."""
        first, self._used = self._used, self._used + many
        places = [divmod(number, len(self._cases)) for number in range(first, self._used)]
        orders = {epoch: self._order(epoch) for epoch in {epoch for epoch, _ in places}}
        return [orders[epoch][place] for epoch, place in places]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._cases)))
        if self._settings.shuffle:
            random.Random(seed_of(self._settings.seed, "epoch", epoch)).shuffle(order)
        return order

    def _turn(self, deal: Deal, case: Case, nth: int, simulator: Simulator) -> Turn:
        """What was answered, not yet in anybody's tokens."""
        role = self._settings.role or next(iter(deal.seats.values()))
        agent = next(agent for agent, seated in deal.seats.items() if seated == role)
        messages = case.asked if isinstance(case.asked, tuple) else ()
        text = case.answers[nth]
        said = Completion(text, (), (), (), "stop")
        turn = Turn((deal.episode, 0), agent, 0, 0, role, Request("", messages, Sampling()), said, text)
        if isinstance(case.asked, tuple):
            return replace(turn, request=simulator.address(turn))
        return replace(turn, request=simulator.question(role, agent, case.asked))

    def _episode(self, deal: Deal, turn: Turn, row: int, nth: int) -> Trajectory:
        from marl.graph import Trajectory

        episode = Trajectory(deal, f"{self._settings.path.name}:{row}")
        episode.add(turn, ())
        episode.rewards = [Reward(turn.agent, self._cases[row].paid[nth], turn.id)]
        episode.end = "terminated"
        return episode


def _spoken(turn: Turn, said: Completion | Failure) -> Turn:
    if isinstance(said, Completion):
        return replace(turn, completion=said)
    # What is too long keeps its text and has no tokens, so no learner sees it.
    return replace(turn, completion=replace(turn.completion, finish=said.finish), action=None)
