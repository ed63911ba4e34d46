"""`marl eval cross-play`: a tournament of all pairs of players, and a file from which an interrupted one continues."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track

from marl.commands.eval.output import write_figures_file
from marl.commands.eval.players import Roster
from marl.evaluation.cross_play import Pair, PairEpisodes, Tournament
from marl.evaluation.cross_table import CrossTable
from marl.host.outside import parse_json
from marl.runs.run_folder import environment
from marl.scenario.load import ScenarioError
from marl.training.placement import make_simulator

EPISODES_PER_PAIR = 200
"""Default number of episodes of each pair."""
_SECONDS_BETWEEN_SAVES = 30.0
_Meetings = TypeAdapter(dict[str, list[list[tuple[float, float]]]])


@dataclass(frozen=True, slots=True)
class CrossPlayRun:
    """A tournament and its file of figures, which may hold pairs of an earlier, interrupted command."""

    tournament: Tournament
    out: Path | None

    @classmethod
    def from_roster(
        cls, roster: Roster, *, episodes: int | None, budget: int | None, seed: int, out: Path | None
    ) -> CrossPlayRun:
        """Return the tournament of `roster`.

        Args:
            episodes: number of episodes of each pair, or None for `EPISODES_PER_PAIR`.
            budget: number of episodes of all pairs together; overrides `episodes`.

        Raises:
            ScenarioError: if there are fewer than two players or seats, or fewer episodes than one for each seat.
        """
        scenario = roster.scenario
        tournament = Tournament(
            scenario, roster.entrants, 1, seed, lambda engines: make_simulator(scenario, engines, seed)
        )
        seats, pairs = len(tournament.seats), len(tournament.pairs)
        if len(roster.entrants) < 2 or seats < 2:
            raise ScenarioError(
                f"cross-play: {len(roster.entrants)} players and {seats} seats that are played for; "
                "it takes two of both"
            )
        episodes_per_pair = budget // pairs if budget is not None else episodes or EPISODES_PER_PAIR
        if episodes_per_pair < seats:
            option = f"--budget {budget}" if budget is not None else f"--episodes {episodes}"
            raise ScenarioError(f"{option}: {pairs} pairs play {seats} episodes each at least, one for every seat")
        return cls(replace(tournament, starts=episodes_per_pair // seats), out)

    def __call__(self) -> CrossTable:
        """Play the pairs that the file does not hold yet, and return the table of all pairs."""
        tournament = self.tournament
        meetings = self._recorded()
        missing = [pair for pair in tournament.pairs if pair not in meetings]
        played = tournament.play(missing)
        console = Console(stderr=True)
        if console.is_terminal:
            played = iter(track(played, "pairs", total=len(missing), console=console, transient=True))
        saved_at = time.monotonic()
        # `finally`: pairs that were played before Ctrl-C are not played again by the next command.
        try:
            for pair, meeting in played:
                meetings[pair] = meeting
                if self.out and time.monotonic() - saved_at > _SECONDS_BETWEEN_SAVES:
                    self._write(self.out, meetings, {})
                    saved_at = time.monotonic()
        finally:
            if self.out and len(meetings) < len(tournament.pairs):
                self._write(self.out, meetings, {})
        names = [entrant.name for entrant in tournament.entrants]
        zero_sum = tournament.scenario.game.is_zero_sum()
        table = CrossTable(names, meetings, zero_sum, len(tournament.seats) == 2)
        if self.out:
            self._write(self.out, meetings, table.figures())
        return table

    def _key(self, pair: Pair) -> str:
        # Identities, not names: the same weights in another folder are the same player.
        first, second = pair
        return f"{self.tournament.entrants[first].identity} {self.tournament.entrants[second].identity}"

    def _conditions(self) -> dict[str, Any]:
        """Return the settings on which the episodes of a pair of players depend."""
        tournament = self.tournament
        game = tournament.scenario.game
        return {
            "game": {"kind": game.kind, **game.model_dump(mode="json")},
            "starts": tournament.starts,
            "seed": tournament.seed,
        }

    def _recorded(self) -> dict[Pair, PairEpisodes]:
        """Return these players' episodes in the file, or {} if the file is of other conditions or does not exist."""
        if self.out is None or not self.out.is_file():
            return {}
        try:
            data = parse_json(self.out.read_text(encoding="utf-8"))
            if any(data[name] != value for name, value in self._conditions().items()):
                return {}
            recorded = _Meetings.validate_python(data["meetings"])
        except (OSError, KeyError, TypeError, ValidationError, ValueError) as error:
            raise ScenarioError(f"--out {self.out}: holds something else than figures of a cross-play") from error
        meetings: dict[Pair, PairEpisodes] = {}
        for pair in self.tournament.pairs:
            if self._key(pair) in recorded:
                meetings[pair] = recorded[self._key(pair)]
        return meetings

    def _write(self, file: Path, meetings: Mapping[Pair, PairEpisodes], figures: Mapping[str, Any]) -> None:
        content = {
            "measured": [entrant.name for entrant in self.tournament.entrants],
            **environment(self.tournament.scenario),
            **self._conditions(),
            **figures,
            "meetings": {self._key(pair): meeting for pair, meeting in meetings.items()},
        }
        # One line: thousands of episodes, each on lines of its own, would make a file that no editor opens.
        write_figures_file(file, content, indent=None)
