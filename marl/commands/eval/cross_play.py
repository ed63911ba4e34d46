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

from marl.commands.eval.output import write_json_results
from marl.commands.eval.players import PlayerRoster
from marl.evaluation.cross_play import PairEpisodes, PlayerPair, Tournament
from marl.evaluation.cross_table import CrossPlayTable
from marl.host.untrusted_text import parse_json
from marl.runs.run_folder import describe_environment
from marl.scenario.load import ScenarioError
from marl.training.placement import simulator_from_engines

EPISODES_PER_PAIR = 200
"""Default number of episodes of each pair of players."""
_SECONDS_BETWEEN_SAVES = 30.0
_RecordedPairEpisodes = TypeAdapter(dict[str, list[list[tuple[float, float]]]])
"""Key of a pair of players -> [start][seat of the first player] -> (return of the first, mean return of the second)."""


@dataclass(frozen=True, slots=True)
class CrossPlayTournament:
    """Tournament of players, and its result file, from which an interrupted tournament continues."""

    tournament: Tournament
    out: Path | None
    """Result file (.json), or None to write no file."""

    @classmethod
    def from_roster(
        cls, roster: PlayerRoster, *, episodes: int | None, budget: int | None, seed: int, out: Path | None
    ) -> CrossPlayTournament:
        """Return the tournament of all pairs of players in `roster`.

        Args:
            roster: the players and their game.
            episodes: number of episodes of each pair, or None for `EPISODES_PER_PAIR`.
            budget: number of episodes of all pairs together, or None. If given, it replaces `episodes`.
            seed: seed of starts and answers.
            out: result file (.json), or None to write no file.

        Raises:
            ScenarioError: if there are fewer than two players or contested seats, or fewer episodes than seats.
        """
        scenario = roster.scenario
        tournament = Tournament(
            scenario, roster.entrants, 1, seed, lambda engines: simulator_from_engines(scenario, engines, seed)
        )
        seats, pairs = len(tournament.contested_seats), len(tournament.pairs)
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

    def __call__(self) -> CrossPlayTable:
        """Play the pairs of which the file has no episodes, and return the table of all pairs."""
        tournament = self.tournament
        meetings = self._recorded_pair_episodes()
        missing = [pair for pair in tournament.pairs if pair not in meetings]
        played = tournament.play_pairs(missing)
        console = Console(stderr=True)
        if console.is_terminal:
            played = iter(track(played, "pairs", total=len(missing), console=console, transient=True))
        saved_at = time.monotonic()
        # Pairs that were played before Ctrl-C are written in `finally`, so the next command does not play them again.
        try:
            for pair, meeting in played:
                meetings[pair] = meeting
                if self.out and time.monotonic() - saved_at > _SECONDS_BETWEEN_SAVES:
                    self._write_results_file(self.out, meetings, {})
                    saved_at = time.monotonic()
        finally:
            if self.out and len(meetings) < len(tournament.pairs):
                self._write_results_file(self.out, meetings, {})
        names = [entrant.name for entrant in tournament.entrants]
        zero_sum = tournament.scenario.game.is_zero_sum()
        table = CrossPlayTable(names, meetings, zero_sum, len(tournament.contested_seats) == 2)
        if self.out:
            self._write_results_file(self.out, meetings, table.to_json_data())
        return table

    def _pair_key(self, pair: PlayerPair) -> str:
        """Return the key of a pair in the result file: the identities of both players, whatever their names."""
        first, second = pair
        return f"{self.tournament.entrants[first].identity} {self.tournament.entrants[second].identity}"

    def _settings_that_determine_episodes(self) -> dict[str, Any]:
        """Return the settings on which the episodes of a pair of players depend: game, number of starts, and seed."""
        tournament = self.tournament
        game = tournament.scenario.game
        return {
            "game": {"kind": game.kind, **game.model_dump(mode="json")},
            "starts": tournament.starts,
            "seed": tournament.seed,
        }

    def _recorded_pair_episodes(self) -> dict[PlayerPair, PairEpisodes]:
        """Return the episodes of each pair that the file holds, or {} without a file or if its settings differ."""
        if self.out is None or not self.out.is_file():
            return {}
        conditions = self._settings_that_determine_episodes()
        try:
            data = parse_json(self.out.read_text(encoding="utf-8"))
            if {name: data[name] for name in conditions} != conditions:
                return {}
            recorded = _RecordedPairEpisodes.validate_python(data["meetings"])
        except (OSError, KeyError, TypeError, ValidationError, ValueError) as error:
            raise ScenarioError(f"--out {self.out}: holds something else than figures of a cross-play") from error
        meetings: dict[PlayerPair, PairEpisodes] = {}
        for pair in self.tournament.pairs:
            if (key := self._pair_key(pair)) in recorded:
                meetings[pair] = recorded[key]
        return meetings

    def _write_results_file(
        self, file: Path, episodes_by_pair: Mapping[PlayerPair, PairEpisodes], figures: Mapping[str, Any]
    ) -> None:
        content = {
            "measured": [entrant.name for entrant in self.tournament.entrants],
            **describe_environment(self.tournament.scenario),
            **self._settings_that_determine_episodes(),
            **figures,
            "meetings": {self._pair_key(pair): meeting for pair, meeting in episodes_by_pair.items()},
        }
        # The file is written as one line, because indenting thousands of episodes would make it too long for editors.
        write_json_results(file, content, indent=None)
