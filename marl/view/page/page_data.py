"""Data API of the page: answers by path and query, for the server and for reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from marl.core.errors import RunFolderError
from marl.core.graph import Trajectory
from marl.credit_stage.records import CreditRecord, RecomputedCredit
from marl.metrics.alarms import is_alarm_metric
from marl.runs.liveness import determine_liveness
from marl.runs.run_folder import RESULTS_WITHOUT_ROLES, RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import EvaluationSettings, Scenario
from marl.view.colours import colours_by_name, role_colours
from marl.view.credit_chain import describe_update_from_turn
from marl.view.curve_data import CurveSelection
from marl.view.page import run_json
from marl.view.page.credit_rules import CreditRecomputer, compare_credit_rules_by_role, names_only_registered_rules
from marl.view.page.distributions import StepDistributions
from marl.view.page.episode_filter import EpisodeFilter
from marl.view.page.episode_index import EpisodeIndex
from marl.view.page.episode_json import EpisodeSerializer
from marl.view.page.held_out_comparison import (
    compare_held_out_episodes,
    find_held_out_episode,
    held_out_episode_json,
)
from marl.view.page.reference_players import information_state_rows
from marl.view.page.strategy_tables import StrategyTables
from marl.view.page.url_parameters import (
    MAX_ROWS,
    Query,
    integer_parameter,
    offset_and_limit,
    optional_step_parameter,
    parse_episode_filter,
)
from marl.view.page.word_meanings import word_meanings
from marl.view.prompt_versions import policies_with_learned_instructions, prompt_versions_json
from marl.view.run_groups import group_runs, runs_by_name
from marl.view.token_decoder import TokenDecoder


class NotFoundError(LookupError):
    """The requested object does not exist; the message names the object."""


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Run shown on the page, with the readers of its folder."""

    name: str
    home: RunFolder
    index: EpisodeIndex
    """Index of the recorded episodes."""
    serializer: EpisodeSerializer
    """Serializer of episodes into JSON data."""
    strategies: StrategyTables
    """Tables of the recorded strategies."""
    distributions: StepDistributions
    """Distributions of advantages, lengths and entropies in the recorded steps."""
    problem: str
    """Error message if the run's scenario cannot be loaded, else ""."""

    def load_trajectory(self, query: Query) -> Trajectory:
        """Return the episode that a URL names by its step and name, reading only the line of this episode.

        With `held_out`, it is an episode of the evaluation after the step, in the game `game` ("": the only one).

        Raises:
            NotFoundError: if the episode does not exist, or is not in the index yet.
        """
        step, episode = integer_parameter(query, "step"), query.get("episode", "")
        if query.get("held_out"):
            found = find_held_out_episode(self.home, step, query.get("game", ""), episode)
            if found is None:
                raise NotFoundError(f"no held-out episode {episode} after step {step} of {self.name}")
            return found
        entry = self.index.find_episode(step, episode)
        if entry is None:
            raise NotFoundError(f"no episode {episode} in step {step} of {self.name}, or it is not indexed yet")
        return self.home.load_trajectory(step, entry.place)


class PageApi:
    """Data API over several runs, safe for concurrent threads."""

    def __init__(self, folders: Sequence[Path], rules: CreditRecomputer | None = None) -> None:
        """Open the runs in `folders`: runs themselves, or folders that hold runs.

        Raises:
            ScenarioError: if a folder contains no run.
            RunFolderError: if the cache folder cannot be written.
        """
        self._folders = folders
        for folder in folders:
            if not _run_folders_in(folder):
                raise ScenarioError(f"{folder}: no run here (no scenario.yaml)")
        self.runs: dict[str, ServedRun] = {}
        self.add_new_runs()
        self._rules = rules
        self._credit_lock = threading.Lock()
        self._routes: dict[str, Callable[[Query], Any]] = {
            "runs": self._answer_runs,
            "status": lambda _: {name: self._liveness_json(run) for name, run in self.runs.items()},
            "curves": self._answer_curves,
            "settings": self._answer_comparison,
            "rows": lambda query: run_json.metric_rows(self._selected_run(query).home, *offset_and_limit(query)),
            "row": lambda query: run_json.step_metrics(
                self._selected_run(query).home, integer_parameter(query, "step")
            ),
            "episodes": self._answer_episodes,
            "episode": self._answer_episode,
            "prompt": self._answer_prompt,
            "instructions": self._answer_learned_instructions,
            "rules": self._answer_credit_rule_choices,
            "judgement": self._answer_recomputed_credit,
            "states": self._answer_information_states,
            "strategies": lambda query: self._selected_run(query).strategies.strategy_table(
                optional_step_parameter(query, "step")
            ),
            "words": lambda _: word_meanings(
                chain.from_iterable(self._run_summary_and_error(run)[0]["metrics"] for run in self.runs.values())
            ),
            "distributions": lambda query: self._selected_run(query).distributions.panels(self._role_colours()),
            "held_out": lambda query: compare_held_out_episodes(
                self._selected_run(query).home,
                optional_step_parameter(query, "before"),
                optional_step_parameter(query, "after"),
            ),
        }
        # Cache keys contain a key of the file, so that a changed file is read again.
        self._cached_record = lru_cache(maxsize=4)(self._read_credit_record)
        self._cached_summary = lru_cache(maxsize=256)(self._summarize_run)
        self._cached_states = lru_cache(maxsize=4)(self._build_information_state_rows)
        self._cached_credit = lru_cache(maxsize=8)(self._recompute_credit)

    def answer(self, api_path: str, query: Query) -> Any:
        """Return the answer for a path, as plain data and dataclasses.

        Raises:
            NotFoundError: if the path, run, step or episode does not exist, or the run's folder is gone.
            ValueError: if a query value is invalid.
        """
        if api_path not in self._routes:
            raise NotFoundError(f"nothing is called {api_path!r}")
        return self._routes[api_path](query)

    def add_new_runs(self) -> None:
        """Open the runs that have appeared in the folders. The runs that are open keep their names.

        Raises:
            RunFolderError: if the cache folder cannot be written.
        """
        known = {run.home.path.resolve() for run in self.runs.values()}
        found = [run for folder in self._folders for run in _run_folders_in(folder)]
        opened: dict[str, ServedRun] = {}
        for name, path in runs_by_name(found).items():
            if path.resolve() not in known:
                free_name = str(path) if name in self.runs else name
                opened[free_name] = _open_run(free_name, path)
        # The mapping is replaced and not changed, because other threads may be reading it.
        self.runs = self.runs | opened

    # --- answers to requests about runs ----------------------------------------------------------------------------

    def _selected_run(self, query: Query) -> ServedRun:
        """Return the run named in `query` (default: the first run)."""
        name = query.get("run", next(iter(self.runs)))
        if name not in self.runs:
            raise NotFoundError(f"no run {name!r}; there are: {', '.join(self.runs)}")
        run = self.runs[name]
        if not (run.home.path / "scenario.yaml").is_file():
            raise NotFoundError(f"the folder of run {name!r} is gone: {run.home.path}")
        return run

    def _run_summary_and_error(self, run: ServedRun) -> tuple[dict[str, Any], str]:
        """Return the summary of a run, and the error that makes the run unreadable at present, or ""."""
        path = run.home.path
        if not (path / "scenario.yaml").is_file():
            return run_json.EMPTY_SUMMARY, f"the folder of this run is gone: {path}"
        folders_key = f"{_file_cache_key(path)} {_file_cache_key(path / RESULTS_WITHOUT_ROLES)}"
        return self._cached_summary(run.name, _file_cache_key(run.home.metrics_file), folders_key)

    def _summarize_run(self, run_name: str, metrics_key: str, folder_key: str) -> tuple[dict[str, Any], str]:
        """Return the summary of a run and its error. `metrics_key` and `folder_key` change with the files."""
        run = self.runs[run_name]
        scenario = run.serializer.scenario
        evaluation = scenario.evaluate if scenario else EvaluationSettings()
        try:
            run.home.settings()
            return run_json.summarize_run(run.home, evaluation, scenario and scenario.credited_roles()), ""
        except (ScenarioError, RunFolderError) as error:
            return run_json.EMPTY_SUMMARY, str(error)

    def _readable_run_folders(self) -> list[Path]:
        """Return the folders of the runs that can be read, so that one broken run does not hide the others."""
        return [run.home.path for run in self.runs.values() if not self._run_summary_and_error(run)[1]]

    def _liveness_json(self, run: ServedRun) -> dict[str, Any]:
        """Return the state of a run, with the age of its newest row, as `marl status` prints it."""
        scenario = run.serializer.scenario
        planned = scenario.schedule.steps if scenario else None
        state = determine_liveness(run.home.path, self._run_summary_and_error(run)[0]["step"], planned, time.time())
        return {"state": state.state, "words": state.details, "row_age": state.row_age}

    def _role_colours(self) -> dict[str, str]:
        """Return role -> colour, of the roles of all runs."""
        return role_colours(run.home.path for run in self.runs.values())

    def _answer_runs(self, query: Query) -> dict[str, Any]:
        """Return the summary of every run, and whether credit rules can be recomputed."""
        listed: list[dict[str, Any]] = []
        colours = colours_by_name(self.runs)
        for run in self.runs.values():
            scenario, cache_key = run.serializer.scenario, _file_cache_key(run.home.metrics_file)
            summary, problem = self._run_summary_and_error(run)
            listed.append(
                {
                    **{"name": run.name, "path": str(run.home.path), "problem": problem or run.problem},
                    "colour": colours[run.name],
                    **summary,
                    "planned": scenario.schedule.steps if scenario else None,
                    "roles": list(scenario.roles) if scenario else [],
                    "learns_instructions": bool(scenario and policies_with_learned_instructions(scenario)),
                    "games": list(filter(None, run.serializer.games)),
                    "index": run.index.index_counts_and_unreadable_steps(),
                    "figures": (names := run.index.metric_names()),
                    "ordering_figure": _ordering_figure(scenario, names) if summary["zero_sum"] else "",
                    "environment": {} if problem else run_json.recorded_environment(run.home),
                    "stamp": cache_key,
                }
            )
        return {"runs": listed, "rules": self._rules is not None}

    def _answer_curves(self, query: Query) -> dict[str, Any]:
        metrics = tuple(filter(None, query.get("metrics", "").split(",")))
        by, band = query.get("by") == "role", query.get("band") == "seeds"
        figures = [self._run_summary_and_error(run)[0]["figure"] for run in self.runs.values()]
        first = tuple(dict.fromkeys(figure["metric"] for figure in figures if figure))
        choice = CurveSelection(metrics, "role" if by else None, "seeds" if band else None, first)
        max_points = integer_parameter(query, "points") if "points" in query else run_json.MAX_CURVE_POINTS
        named_runs = {name: run.home.path for name, run in self.runs.items()}
        return run_json.curve_panels(self._readable_run_folders(), choice, max(1, max_points), named_runs)

    def _answer_comparison(self, query: Query) -> dict[str, Any]:
        """Return the comparison of the runs `first` and `second`, or of all runs, where those of equal settings form a
        group."""
        if not query.get("first"):
            return run_json.compare_groups(group_runs(self._readable_run_folders()))
        pair = [self._selected_run({"run": query.get(name, "")}).home.path for name in ("first", "second")]
        return run_json.compare_groups([group_runs([run])[0] for run in pair])

    # --- answers to requests about episodes ------------------------------------------------------------------------

    def _answer_episodes(self, query: Query) -> dict[str, Any]:
        run = self._selected_run(query)
        chosen = parse_episode_filter(query)
        if is_alarm_metric(alarm := query.get("alarm", "")):
            chosen = replace(chosen, steps=tuple(row["step"] for row in run.home.rows() if row.get(alarm)))
        count, episodes = run.index.query_episodes(chosen, *offset_and_limit(query))
        return {
            "count": count,
            "episodes": list(map(asdict, episodes)),
            "index": run.index.index_counts_and_unreadable_steps(),
        }

    def _answer_episode(self, query: Query) -> dict[str, Any]:
        """Return an episode, and its siblings from the same group with the advantages of their turns."""
        run, step = self._selected_run(query), integer_parameter(query, "step")
        trajectory = run.load_trajectory(query)
        if query.get("held_out"):
            episode = held_out_episode_json(run.home, run.serializer, step, trajectory)
            return {**episode, "run": run.name, "role_colours": self._role_colours()}
        cache_key = _file_cache_key(run.home.path / "credit" / f"{step:06d}.jsonl.zst")
        record = self._cached_record(run.name, step, cache_key)
        peers = EpisodeFilter(first=step, last=step, group=trajectory.deal.group, order="oldest")
        siblings = run.index.query_episodes(peers, limit=MAX_ROWS)[1]
        credit_of = record.turns() if record else {}
        listed_siblings: list[dict[str, Any]] = []
        advantages: dict[str, list[float | None]] = {}
        for sibling in siblings:
            name, turn_count = sibling.episode, sibling.turns
            listed_siblings.append(
                {"episode": name, "paid": sibling.paid, "figures": sibling.figures, "turns": turn_count}
            )
            advantages[name] = []
            for index in range(turn_count):
                credit = credit_of.get((name, index))
                advantages[name].append(credit.advantage if credit else None)
        # Names of policy metrics that summarize per-token values, which the run does not record.
        ends = ("/entropy", "/kl_sampler", "/fidelity_mean", "/fidelity_max")
        policy_metrics: dict[str, float] = {}
        step_metrics = run_json.step_metrics(run.home, step)
        scenario = run.serializer.scenario
        updates: list[str] = []
        for turn in trajectory.turns:
            updates.append(describe_update_from_turn(turn, trajectory, scenario, step, step_metrics))
        for name, value in step_metrics.items():
            if name.startswith("policy/") and name.endswith(ends):
                policy_metrics[name] = value
        return {
            **run.serializer.episode_json(step, trajectory, record),
            **{"run": run.name, "held_out": False},
            "siblings": listed_siblings,
            "advantages": advantages,
            "same_start": run.index.first_episode_per_step(trajectory.start),
            "metrics": policy_metrics,
            "updates": updates,
            "role_colours": self._role_colours(),
        }

    def _read_credit_record(self, run_name: str, step: int, cache_key: str) -> CreditRecord | None:
        home = self.runs[run_name].home
        return home.read_credit_of_step(step) if home.has_credit_record(step) else None

    def _answer_prompt(self, query: Query) -> dict[str, Any]:
        run = self._selected_run(query)
        trajectory = run.load_trajectory(query)
        index = integer_parameter(query, "turn")
        if not 0 <= index < len(trajectory.turns):
            raise NotFoundError(f"no turn {index} in episode {trajectory.id}")
        return run.serializer.prompt_json(trajectory.turns[index])

    def _answer_learned_instructions(self, query: Query) -> list[dict[str, Any]]:
        run = self._selected_run(query)
        scenario = run.serializer.scenario
        return prompt_versions_json(run.home, policies_with_learned_instructions(scenario) if scenario else ())

    def _answer_recomputed_credit(self, query: Query) -> dict[str, Any]:
        """Return the credit of an episode's turns under another rule than the run's own, and how the rules differ."""
        run, step, rule = self._selected_run(query), integer_parameter(query, "step"), query.get("rule", "")
        if self._rules is None or not names_only_registered_rules(self._rules, rule):
            raise NotFoundError(f"no rule {rule!r}")
        trajectory = run.load_trajectory(query)
        cache_key = _file_cache_key(run.home.path / "credit" / f"{step:06d}.jsonl.zst")
        try:
            # Without the lock, two requests for one rule would both compute it, for seconds.
            with self._credit_lock:
                recomputed, summary = self._cached_credit(run.name, step, rule, cache_key)
        except ScenarioError as error:  # raised if the rule does not fit the scenario; the page shows the message
            return {"rule": rule, "problem": str(error), "chains": None}
        chains = run.serializer.advantage_derivations_json(trajectory, recomputed.record)
        differences, notes = recomputed.differences, recomputed.notes
        answer = {"rule": rule, "problem": "", "chains": chains}
        return answer | {"differences": differences, "notes": notes, "summary": summary}

    def _answer_credit_rule_choices(self, query: Query) -> Any:
        """Return the credit rules that can replace the selected run's own, and the reasons why others cannot."""
        assign = query.get("assign", "")
        if self._rules is None or (assign and assign not in self._rules.assigns):
            raise NotFoundError(f"no rule {assign!r}")
        return self._rules.credit_rule_choices(self._selected_run(query).home.path, assign)

    def _recompute_credit(
        self, run_name: str, step: int, rule: str, cache_key: str
    ) -> tuple[RecomputedCredit, list[dict[str, Any]]]:
        """Return the credit of a step by `rule`, and its comparison with the run's own credit by role."""
        assert self._rules is not None
        home = self.runs[run_name].home
        recomputed = self._rules.recompute(home.path, step, rule)
        own = self._cached_record(run_name, step, cache_key)
        return recomputed, compare_credit_rules_by_role(own, recomputed, home.load_trajectories(step))

    def _answer_information_states(self, query: Query) -> dict[str, Any]:
        run, step = self._selected_run(query), integer_parameter(query, "step")
        cache_key = run.home.trajectory_file_stamp_by_step().get(step)
        if cache_key is None:
            raise NotFoundError(f"step {step} of {run.name} was not recorded")
        states = self._cached_states(run.name, step, cache_key)
        return {"step": step, "steps": run.home.recorded_steps(), "states": states}

    def _build_information_state_rows(self, run_name: str, step: int, cache_key: str) -> list[dict[str, Any]]:
        run = self.runs[run_name]
        return information_state_rows(run.serializer.games, run.home.load_trajectories(step))


def _ordering_figure(scenario: Scenario | None, names: Sequence[str]) -> str:
    """Return the metric that orders the episodes of a zero-sum game, whose sum of rewards is always 0, or "".

    It is the return of the first role that learns or, if this role plays both sides, of the first agent.
    """
    roles = scenario.roles if scenario else {}
    for role, settings in roles.items():
        policy = scenario.policies.get(settings.policy) if scenario else None
        is_learning = settings.trainable and policy and policy.learner
        if is_learning and len(roles) > 1 and f"return/{role}" in names:
            return f"return/{role}"
    return next((name for name in names if name.startswith("agent/")), "")


def _file_cache_key(file: Path) -> str:
    """Return the size and modification time of a file or folder as a key for caches, or "" if it is missing."""
    try:
        status = file.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _run_folders_in(folder: Path) -> list[Path]:
    """Return `folder` if it is a run, else the runs that it holds, in the order of their names."""
    if (folder / "scenario.yaml").is_file():
        return [folder]
    return sorted(file.parent for file in folder.glob("*/scenario.yaml") if file.is_file())


def _open_run(name: str, path: Path) -> ServedRun:
    """Return the run in the folder `path`. If its scenario cannot be loaded, the page shows the error instead.

    Raises:
        RunFolderError: if the cache folder cannot be written.
    """
    home, scenario, problem = RunFolder(path), None, ""
    try:
        scenario = home.scenario()
    except (ScenarioError, RunFolderError) as error:
        problem = str(error)
    games = {game: view.game for game, view in scenario.scenario_by_game().items()} if scenario else {}
    serializer = EpisodeSerializer(scenario, games, TokenDecoder(home))
    tables, distributions = StrategyTables(home, scenario), StepDistributions(home)
    return ServedRun(name, home, EpisodeIndex(path), serializer, tables, distributions, problem)
