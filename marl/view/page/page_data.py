"""All that the page asks for, by path and query: the server answers with it, and a report holds some of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from marl.errors import FolderError
from marl.graph import Trajectory
from marl.judging.records import StepRecord
from marl.metrics.alarms import is_alarm
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.curve_sets import CurveChoice
from marl.view.page import run_json
from marl.view.page.episode_index import EpisodeIndex
from marl.view.page.episode_json import EpisodeView
from marl.view.page.filters import EpisodeFilter
from marl.view.page.held_out import held_out
from marl.view.page.reference import states_table
from marl.view.page.strategies import StrategyTables
from marl.view.run_groups import run_groups, run_names

MOST_ROWS = 200
"""Episodes or steps of one answer."""
Query = Mapping[str, str]
_FILTERS = TypeAdapter(EpisodeFilter)


class NotThere(LookupError):  # noqa: N818 (says what is wrong)
    """The page asks for something that there is not; the message names it."""


class CreditRules(Protocol):
    """Credit rules by which recorded steps can be judged again, without weights."""

    assigns: Sequence[str]
    baselines: Sequence[str]
    """Kinds of the two parts of a rule that can be asked for."""

    def judge(self, run: Path, step: int, rule: str) -> StepRecord:
        """Return the judgement of a recorded step by a rule, `ASSIGN` or `ASSIGN/BASELINE`.

        Raises:
            ScenarioError: if the rule does not fit the scenario, or needs weights.
        """
        ...


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that the page shows."""

    name: str
    home: RunFolder
    index: EpisodeIndex
    view: EpisodeView
    strategies: StrategyTables
    problem: str
    """The reason why its scenario cannot be read today; "" if it can."""

    def trajectory(self, step: int, episode: str) -> Trajectory:
        """Return a recorded episode; only its own line is read.

        Raises:
            NotThere: if it is not in the index.
        """
        entry = self.index.find(step, episode)
        if entry is None:
            raise NotThere(f"no episode {episode} in step {step} of {self.name}, or it is not indexed yet")
        return self.home.episode(step, entry.place)


class PageData:
    """Answers all that the page shows of some runs. Safe to ask from several threads."""

    def __init__(self, runs: Sequence[Path], rules: CreditRules | None = None) -> None:
        """Open the runs.

        Raises:
            ScenarioError: if a folder holds no run.
            FolderError: if the cache folder cannot be written.
        """
        self.runs = {name: _open(name, run) for name, run in run_names(runs).items()}
        self._paths = [run.home.path for run in self.runs.values()]
        self._rules = rules
        self._judging = threading.Lock()
        self._routes: dict[str, Callable[[Query], Any]] = {
            "runs": self._list_runs,
            "curves": self._curves,
            "settings": lambda _: run_json.comparison(run_groups(self._paths)),
            "rows": self._rows,
            "row": lambda query: run_json.row(self._run(query).home, _number(query, "step")),
            "episodes": self._episodes,
            "episode": self._episode,
            "prompt": self._prompt,
            "judgement": self._judgement,
            "states": self._states,
            "strategies": lambda query: self._run(query).strategies.table(_step(query, "step")),
            "held_out": lambda query: held_out(self._run(query).home, _step(query, "before"), _step(query, "after")),
        }
        self._record = lru_cache(maxsize=4)(self._read_record)
        self._summary = lru_cache(maxsize=16)(self._read_summary)
        self._states_of = lru_cache(maxsize=4)(self._read_states)
        self._judged = lru_cache(maxsize=8)(self._judge)

    def answer(self, path: str, query: Query) -> Any:
        """Return what a path stands for, as plain data and dataclasses.

        Raises:
            NotThere: if there is no such path, run, step or episode.
            ValueError: if a value of the query cannot be used.
        """
        if path not in self._routes:
            raise NotThere(f"nothing is called {path!r}")
        return self._routes[path](query)

    # --- runs ------------------------------------------------------------------------------------------------------

    def _run(self, query: Query) -> OpenRun:
        name = query.get("run", next(iter(self.runs)))
        if name not in self.runs:
            raise NotThere(f"no run {name!r}; there are: {', '.join(self.runs)}")
        return self.runs[name]

    def _list_runs(self, query: Query) -> dict[str, Any]:
        listed = [self._described(run) for run in self.runs.values()]
        rules = self._rules
        offered = {"assigns": list(rules.assigns), "baselines": list(rules.baselines)} if rules else None
        return {"runs": listed, "rules": offered}

    def _described(self, run: OpenRun) -> dict[str, Any]:
        return {
            **{"name": run.name, "path": str(run.home.path), "problem": run.problem},
            **self._summary(run.name, _stamp(run.home.metrics)),
            "planned": run.view.scenario.schedule.steps if run.view.scenario else None,
            "roles": list(run.view.scenario.roles) if run.view.scenario else [],
            "games": [name for name in run.view.games if name],
            "index": run.index.progress(),
            "figures": run.index.names(),
            "environment": run_json.environment(run.home),
            "stamp": _stamp(run.home.metrics),
        }

    def _read_summary(self, name: str, stamp: str) -> dict[str, Any]:
        return run_json.summary(self.runs[name].home)

    def _curves(self, query: Query) -> dict[str, Any]:
        metrics = tuple(filter(None, query.get("metrics", "").split(",")))
        by, band = query.get("by") == "role", query.get("band") == "seeds"
        choice = CurveChoice(metrics, "role" if by else None, "seeds" if band else None)
        most = _number(query, "points") if "points" in query else run_json.MOST_POINTS
        return run_json.curves(self._paths, choice, max(1, most))

    def _rows(self, query: Query) -> dict[str, Any]:
        return run_json.rows(self._run(query).home, *_page(query))

    # --- episodes --------------------------------------------------------------------------------------------------

    def _episodes(self, query: Query) -> dict[str, Any]:
        run = self._run(query)
        chosen = episode_filter(query)
        if is_alarm(alarm := query.get("alarm", "")):
            chosen = replace(chosen, steps=run_json.alarm_steps(run.home, alarm))
        count, episodes = run.index.select(chosen, *_page(query))
        return {"count": count, "episodes": [asdict(episode) for episode in episodes], "index": run.index.progress()}

    def _episode(self, query: Query) -> dict[str, Any]:
        run, step = self._run(query), _number(query, "step")
        trajectory = run.trajectory(step, query.get("episode", ""))
        record = self._record(run.name, step, _stamp(run.home.path / "judgements" / f"{step:06d}.jsonl.zst"))
        peers = EpisodeFilter(first=step, last=step, group=trajectory.deal.group, order="oldest")
        siblings = run.index.select(peers, limit=MOST_ROWS)[1]
        chains = record.turns() if record else {}
        return {
            **run.view.episode(step, trajectory, record),
            "run": run.name,
            "siblings": [
                {"episode": each.episode, "paid": each.paid, "figures": each.figures, "turns": each.turns}
                for each in siblings
            ],
            "advantages": {
                each.episode: [
                    chain.advantage if (chain := chains.get((each.episode, i))) else None for i in range(each.turns)
                ]
                for each in siblings
            },
            "same_start": run.index.same_start(trajectory.start),
            "metrics": _of_policies(run_json.row(run.home, step)),
        }

    def _read_record(self, name: str, step: int, stamp: str) -> StepRecord | None:
        home = self.runs[name].home
        return home.judgement(step) if home.has_judgement(step) else None

    def _prompt(self, query: Query) -> dict[str, Any]:
        run = self._run(query)
        trajectory = run.trajectory(_number(query, "step"), query.get("episode", ""))
        index = _number(query, "turn")
        if not 0 <= index < len(trajectory.turns):
            raise NotThere(f"no turn {index} in episode {trajectory.id}")
        return run.view.prompt(trajectory.turns[index])

    def _judgement(self, query: Query) -> dict[str, Any]:
        """Return the chains of an episode's turns by another rule than the run's own."""
        run, step, rule = self._run(query), _number(query, "step"), query.get("rule", "")
        assign, slash, baseline = rule.partition("/")
        known = self._rules and assign in self._rules.assigns and (not slash or baseline in self._rules.baselines)
        if not known:
            raise NotThere(f"no rule {rule!r}")
        trajectory = run.trajectory(step, query.get("episode", ""))
        try:
            with self._judging:
                record = self._judged(run.name, step, rule)
        except ScenarioError as error:  # that a rule does not fit is an answer
            return {"rule": rule, "problem": str(error), "chains": None}
        return {"rule": rule, "problem": "", "chains": run.view.chains(trajectory, record)}

    def _judge(self, name: str, step: int, rule: str) -> StepRecord:
        assert self._rules is not None
        return self._rules.judge(self.runs[name].home.path, step, rule)

    def _states(self, query: Query) -> dict[str, Any]:
        run, step = self._run(query), _number(query, "step")
        stamp = run.home.stamps().get(step)
        if stamp is None:
            raise NotThere(f"step {step} of {run.name} was not recorded")
        return {"step": step, "steps": run.home.recorded(), "states": self._states_of(run.name, step, stamp)}

    def _read_states(self, name: str, step: int, stamp: str) -> list[dict[str, Any]]:
        run = self.runs[name]
        return states_table(run.view.games, run.home.episodes(step))


def episode_filter(query: Query) -> EpisodeFilter:
    """Return the filter that a query spells; what is left empty narrows nothing.

    Raises:
        ValueError: if a value is no number or no order.
    """
    fields = {field.name for field in dataclass_fields(EpisodeFilter)} - {"steps"}
    try:
        return _FILTERS.validate_python({name: value for name, value in query.items() if name in fields and value})
    except ValidationError as error:
        problems = [f"{problem['loc'][0]}: {problem['input']!r}: {problem['msg']}" for problem in error.errors()]
        raise ValueError("; ".join(problems)) from None


def _open(name: str, path: Path) -> OpenRun:
    home, problem = RunFolder(path), ""
    if not (path / "scenario.yaml").is_file():
        raise ScenarioError(f"{path}: no run here (no scenario.yaml)")
    try:
        scenario = home.scenario()
    except (ScenarioError, FolderError) as error:
        scenario, problem = None, str(error)
    view, strategies = EpisodeView.of_run(home, scenario), StrategyTables(home, scenario)
    return OpenRun(name, home, EpisodeIndex(path), view, strategies, problem)


def _of_policies(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a step that stand for what is not recorded token by token."""
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
    return max(0, offset), min(max(1, limit), MOST_ROWS)


def _stamp(file: Path) -> str:
    """Return another text whenever a file has changed."""
    if not file.is_file():
        return ""
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
