"""`marl eval --cross-play`: every pair of players meets; matrix, ratings, and a file from which play goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track

from marl.commands.entrants import Roster
from marl.data_files import write_whole
from marl.errors import Writing
from marl.evaluation.cross_play import Engines, Meeting, Pair, Tournament
from marl.evaluation.cross_table import CrossTable
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import environment
from marl.scenario.load import ScenarioError
from marl.text import read_json
from marl.training.placement import make_simulator

Rating = Literal["elo", "glicko"]
EPISODES = 200
"""Episodes of each pair unless it is told how many."""
_SAVED_EVERY_S = 30.0
_Meetings = TypeAdapter(dict[str, list[list[tuple[float, float]]]])


@dataclass(frozen=True, slots=True)
class CrossPlay:
    """A tournament, and the file of its figures, which may hold a part of it already."""

    tournament: Tournament
    out: Path | None
    rating: Rating = "elo"

    @classmethod
    def of(
        cls,
        played: Roster,
        *,
        episodes: int | None,
        budget: int | None,
        seed: int,
        out: Path | None,
        rating: Rating = "elo",
    ) -> CrossPlay:
        """Return the tournament of a roster with so many episodes a pair, or in all.

        Raises:
            ScenarioError: if there are not two players and two seats, or the episodes do not suffice for a round.
        """
        empty = Tournament(played.scenario, played.entrants, 1, seed, partial(_simulator, played, seed))
        if len(played.entrants) < 2 or len(empty.seats) < 2:
            raise ScenarioError(
                f"--cross-play: {len(played.entrants)} players and {len(empty.seats)} seats that are played for; "
                "it takes two of both"
            )
        each = budget // len(empty.pairs) if budget is not None else episodes or EPISODES
        if each < len(empty.seats):
            option = f"--budget {budget}" if budget is not None else f"--episodes {episodes}"
            raise ScenarioError(
                f"{option}: {len(empty.pairs)} pairs play {len(empty.seats)} episodes each at least, one for every seat"
            )
        starts = each // len(empty.seats)
        return cls(Tournament(played.scenario, played.entrants, starts, seed, empty.simulator), out, rating)

    def __call__(self) -> CrossTable:
        """Play what the file does not hold yet, and return the whole table; the file is written now and then."""
        meetings = self._recorded()
        missing = [pair for pair in self.tournament.pairs if pair not in meetings]
        written = time.monotonic()
        try:
            for pair, meeting in self._played(missing):
                meetings[pair] = meeting
                if self.out and time.monotonic() - written > _SAVED_EVERY_S:
                    self._write(self.out, meetings, {})
                    written = time.monotonic()
        finally:
            if self.out and len(meetings) < len(self.tournament.pairs):
                self._write(self.out, meetings, {})
        table = self._table(meetings)
        if self.out:
            self._write(self.out, meetings, table.figures())
        return table

    def _played(self, missing: list[Pair]) -> Iterator[tuple[Pair, Meeting]]:
        played = self.tournament.play(missing)
        console = Console(stderr=True)
        if not console.is_terminal:
            return played
        return iter(track(played, "pairs", total=len(missing), console=console, transient=True))

    def _table(self, meetings: Mapping[Pair, Meeting]) -> CrossTable:
        tournament = self.tournament
        names = [entrant.name for entrant in tournament.entrants]
        zero_sum = tournament.scenario.game.is_zero_sum()
        return CrossTable(names, meetings, zero_sum, len(tournament.seats) == 2, self.rating)

    def _key(self, pair: Pair) -> str:
        first, second = (self.tournament.entrants[number].identity for number in pair)
        return f"{first} {second}"

    def _conditions(self) -> dict[str, Any]:
        """Return all that the episodes of a pair depend on but for the pair."""
        tournament = self.tournament
        game = tournament.scenario.game
        return {
            "game": {"kind": game.kind, **game.model_dump(mode="json")},
            "starts": tournament.starts,
            "seed": tournament.seed,
        }

    def _recorded(self) -> dict[Pair, Meeting]:
        """Return the meetings that the file holds of these players under the same conditions."""
        if self.out is None or not self.out.is_file():
            return {}
        try:
            data = read_json(self.out.read_text(encoding="utf-8"))
            if any(data[name] != value for name, value in self._conditions().items()):
                return {}
            known = _Meetings.validate_python(data["meetings"])
        except (OSError, KeyError, TypeError, ValidationError, ValueError) as error:
            raise ScenarioError(f"--out {self.out}: holds something else than figures of a cross-play") from error
        return {pair: known[self._key(pair)] for pair in self.tournament.pairs if self._key(pair) in known}

    def _write(self, file: Path, meetings: Mapping[Pair, Meeting], figures: Mapping[str, Any]) -> None:
        whole = {
            "measured": [entrant.name for entrant in self.tournament.entrants],
            **environment(self.tournament.scenario),
            **self._conditions(),
            **figures,
            "meetings": {self._key(pair): meeting for pair, meeting in meetings.items()},
        }
        with Writing(file):
            write_whole(file, f"{json.dumps(whole, allow_nan=False)}\n".encode())


def _simulator(played: Roster, seed: int, engines: Engines) -> RolloutSimulator:
    return make_simulator(played.scenario, engines, seed)
