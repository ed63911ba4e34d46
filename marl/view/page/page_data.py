"""Data API of the page: answers by path and query, for the server and for reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from marl.core.errors import FolderError
from marl.core.graph import Trajectory
from marl.credit_stage.records import CreditRecord
from marl.metrics.alarms import is_alarm_metric
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.curve_data import CurveSelection
from marl.view.page import run_json
from marl.view.page.episode_filter import EpisodeFilter
from marl.view.page.episode_index import EpisodeIndex
from marl.view.page.episode_json import EpisodeSerializer
from marl.view.page.held_out_comparison import compare_held_out
from marl.view.page.reference_players import states_table
from marl.view.page.strategy_tables import StrategyTables
from marl.view.run_groups import run_groups, run_names

MAX_ROWS = 200
"""Maximum number of episodes or steps in one answer."""
Query = Mapping[str, str]
_FILTERS = TypeAdapter(EpisodeFilter)


class NotFoundError(LookupError):
    """The requested object does not exist; the message names the object."""


class CreditReplay(Protocol):
    """Credit rules that can recompute recorded steps without model weights."""

    assigns: Sequence[str]
    baselines: Sequence[str]
    """Available kinds of assignment and of baseline."""

    def recompute(self, run: Path, step: int, rule: str) -> CreditRecord:
        """Return the credit record of a recorded step under `rule`, written `ASSIGN` or `ASSIGN/BASELINE`.

        Raises:
            ScenarioError: if the rule does not fit the scenario, or needs weights.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Run shown on the page."""

    name: str
    home: RunFolder
    index: EpisodeIndex
    serializer: EpisodeSerializer
    strategies: StrategyTables
    problem: str
    """Reason for an unreadable scenario, or ""."""

    def trajectory(self, step: int, episode: str) -> Trajectory:
        """Return a recorded episode, reading only its own line.

        Raises:
            NotFoundError: if the episode is not in the index.
        """
        entry = self.index.find(step, episode)
        if entry is None:
            raise NotFoundError(f"no episode {episode} in step {step} of {self.name}, or it is not indexed yet")
        return self.home.load_trajectory(step, entry.place)


class PageApi:
    """Data API over several runs, safe for concurrent threads."""

    def __init__(self, runs: Sequence[Path], rules: CreditReplay | None = None) -> None:
        """Open the runs.

        Raises:
            ScenarioError: if a folder contains no run.
            FolderError: if the cache folder cannot be written.
        """
        self.runs = {name: _open(name, run) for name, run in run_names(runs).items()}
        self._paths = [run.home.path for run in self.runs.values()]
        self._rules = rules
        self._credit_lock = threading.Lock()
        self._routes: dict[str, Callable[[Query], Any]] = {
            "runs": self._list_runs,
            "curves": self._curves,
            "settings": lambda _: run_json.comparison(run_groups(self._paths)),
            "rows": self._rows,
            "row": lambda query: run_json.row(self._run(query).home, _number(query, "step")),
            "episodes": self._episodes,
            "episode": self._episode,
            "prompt": self._prompt,
            "judgement": self._other_credit,
            "states": self._states,
            "strategies": lambda query: self._run(query).strategies.table(_step(query, "step")),
            "held_out": lambda query: compare_held_out(
                self._run(query).home, _step(query, "before"), _step(query, "after")
            ),
        }
        # A fingerprint of the file is part of each key, so that a changed file is read again.
        self._record = lru_cache(maxsize=4)(self._read_record)
        self._summary = lru_cache(maxsize=16)(self._read_summary)
        self._states_of = lru_cache(maxsize=4)(self._read_states)
        self._recomputed = lru_cache(maxsize=8)(self._recompute)

    def answer(self, path: str, query: Query) -> Any:
        """Return the answer for a path, as plain data and dataclasses.

        Raises:
            NotFoundError: if the path, run, step or episode does not exist.
            ValueError: if a query value is invalid.
        """
        if path not in self._routes:
            raise NotFoundError(f"nothing is called {path!r}")
        return self._routes[path](query)

    # --- runs ------------------------------------------------------------------------------------------------------

    def _run(self, query: Query) -> ServedRun:
        name = query.get("run", next(iter(self.runs)))
        if name not in self.runs:
            raise NotFoundError(f"no run {name!r}; there are: {', '.join(self.runs)}")
        return self.runs[name]

    def _list_runs(self, query: Query) -> dict[str, Any]:
        listed = [self._described(run) for run in self.runs.values()]
        rules = self._rules
        offered = {"assigns": list(rules.assigns), "baselines": list(rules.baselines)} if rules else None
        return {"runs": listed, "rules": offered}

    def _described(self, run: ServedRun) -> dict[str, Any]:
        return {
            **{"name": run.name, "path": str(run.home.path), "problem": run.problem},
            **self._summary(run.name, _stamp(run.home.metrics_file)),
            "planned": run.serializer.scenario.schedule.steps if run.serializer.scenario else None,
            "roles": list(run.serializer.scenario.roles) if run.serializer.scenario else [],
            "games": [name for name in run.serializer.games if name],
            "index": run.index.index_status(),
            "figures": run.index.names(),
            "environment": run_json.environment(run.home),
            "stamp": _stamp(run.home.metrics_file),
        }

    def _read_summary(self, name: str, stamp: str) -> dict[str, Any]:
        return run_json.summary(self.runs[name].home)

    def _curves(self, query: Query) -> dict[str, Any]:
        metrics = tuple(filter(None, query.get("metrics", "").split(",")))
        by, band = query.get("by") == "role", query.get("band") == "seeds"
        choice = CurveSelection(metrics, "role" if by else None, "seeds" if band else None)
        max_points = _number(query, "points") if "points" in query else run_json.MAX_CURVE_POINTS
        return run_json.curves(self._paths, choice, max(1, max_points))

    def _rows(self, query: Query) -> dict[str, Any]:
        return run_json.rows(self._run(query).home, *_page(query))

    # --- episodes --------------------------------------------------------------------------------------------------

    def _episodes(self, query: Query) -> dict[str, Any]:
        run = self._run(query)
        chosen = episode_filter(query)
        if is_alarm_metric(alarm := query.get("alarm", "")):
            chosen = replace(chosen, steps=run_json.alarm_steps(run.home, alarm))
        count, episodes = run.index.select(chosen, *_page(query))
        return {
            "count": count,
            "episodes": [asdict(episode) for episode in episodes],
            "index": run.index.index_status(),
        }

    def _episode(self, query: Query) -> dict[str, Any]:
        run, step = self._run(query), _number(query, "step")
        trajectory = run.trajectory(step, query.get("episode", ""))
        record = self._record(run.name, step, _stamp(run.home.path / "credit" / f"{step:06d}.jsonl.zst"))
        peers = EpisodeFilter(first=step, last=step, group=trajectory.deal.group, order="oldest")
        siblings = run.index.select(peers, limit=MAX_ROWS)[1]
        credit_of = record.turns() if record else {}
        listed_siblings: list[dict[str, Any]] = []
        advantages: dict[str, list[float | None]] = {}
        for sibling in siblings:
            name = sibling.episode
            listed_siblings.append(
                {"episode": name, "paid": sibling.paid, "figures": sibling.figures, "turns": sibling.turns}
            )
            advantages[name] = []
            for index in range(sibling.turns):
                credit = credit_of.get((name, index))
                advantages[name].append(credit.advantage if credit else None)
        return {
            **run.serializer.episode(step, trajectory, record),
            "run": run.name,
            "siblings": listed_siblings,
            "advantages": advantages,
            "same_start": run.index.same_start(trajectory.start),
            "metrics": _of_policies(run_json.row(run.home, step)),
        }

    def _read_record(self, name: str, step: int, stamp: str) -> CreditRecord | None:
        home = self.runs[name].home
        return home.read_credit(step) if home.has_credit(step) else None

    def _prompt(self, query: Query) -> dict[str, Any]:
        run = self._run(query)
        trajectory = run.trajectory(_number(query, "step"), query.get("episode", ""))
        index = _number(query, "turn")
        if not 0 <= index < len(trajectory.turns):
            raise NotFoundError(f"no turn {index} in episode {trajectory.id}")
        return run.serializer.prompt(trajectory.turns[index])

    def _other_credit(self, query: Query) -> dict[str, Any]:
        """Return the credit derivations of an episode's turns under another rule than the run's own."""
        run, step, rule = self._run(query), _number(query, "step"), query.get("rule", "")
        assign, slash, baseline = rule.partition("/")
        available = self._rules and assign in self._rules.assigns and (not slash or baseline in self._rules.baselines)
        if not available:
            raise NotFoundError(f"no rule {rule!r}")
        trajectory = run.trajectory(step, query.get("episode", ""))
        try:
            # Two requests for one rule would otherwise both compute it, for seconds.
            with self._credit_lock:
                record = self._recomputed(run.name, step, rule)
        except ScenarioError as error:  # an answer for the user: the rule does not fit this scenario
            return {"rule": rule, "problem": str(error), "chains": None}
        return {"rule": rule, "problem": "", "chains": run.serializer.chains(trajectory, record)}

    def _recompute(self, name: str, step: int, rule: str) -> CreditRecord:
        assert self._rules is not None
        return self._rules.recompute(self.runs[name].home.path, step, rule)

    def _states(self, query: Query) -> dict[str, Any]:
        run, step = self._run(query), _number(query, "step")
        stamp = run.home.trajectory_file_stamps().get(step)
        if stamp is None:
            raise NotFoundError(f"step {step} of {run.name} was not recorded")
        return {"step": step, "steps": run.home.recorded_steps(), "states": self._states_of(run.name, step, stamp)}

    def _read_states(self, name: str, step: int, stamp: str) -> list[dict[str, Any]]:
        run = self.runs[name]
        return states_table(run.serializer.games, run.home.load_trajectories(step))


def episode_filter(query: Query) -> EpisodeFilter:
    """Return the filter of a query. Empty values are ignored.

    Raises:
        ValueError: if a value has the wrong type or the order is unknown.
    """
    fields = {field.name for field in dataclass_fields(EpisodeFilter)} - {"steps"}
    try:
        return _FILTERS.validate_python({name: value for name, value in query.items() if name in fields and value})
    except ValidationError as error:
        problems = [f"{problem['loc'][0]}: {problem['input']!r}: {problem['msg']}" for problem in error.errors()]
        raise ValueError("; ".join(problems)) from None


def _open(name: str, path: Path) -> ServedRun:
    home, problem = RunFolder(path), ""
    if not (path / "scenario.yaml").is_file():
        raise ScenarioError(f"{path}: no run here (no scenario.yaml)")
    try:
        scenario = home.scenario()
    except (ScenarioError, FolderError) as error:
        scenario, problem = None, str(error)
    view, strategies = EpisodeSerializer.of_run(home, scenario), StrategyTables(home, scenario)
    return ServedRun(name, home, EpisodeIndex(path), view, strategies, problem)


def _of_policies(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the step's policy metrics that summarize per-token values the run does not record."""
    ends = ("/entropy", "/kl_sampler", "/fidelity_mean", "/fidelity_max")
    return {name: value for name, value in metrics.items() if name.startswith("policy/") and name.endswith(ends)}


def _number(query: Query, name: str) -> int:
    try:
        return int(query[name])
    except (KeyError, ValueError):
        raise ValueError(f"{name}: must be a whole number, got {query.get(name)!r}") from None


def _step(query: Query, name: str) -> int | None:
    return _number(query, name) if query.get(name) else None


def _page(query: Query) -> tuple[int, int]:
    """Return offset and limit."""
    offset = _number(query, "offset") if "offset" in query else 0
    limit = _number(query, "limit") if "limit" in query else 50
    return max(0, offset), min(max(1, limit), MAX_ROWS)


def _stamp(file: Path) -> str:
    """Return a fingerprint of size and modification time, which keys the caches; "" for a missing file."""
    if not file.is_file():
        return ""
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
