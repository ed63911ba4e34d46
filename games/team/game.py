"""The team game plays the stages of a workflow in order, and asks all agents of a stage at once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any, Self

from marl.core.types import TOOL_CALL_PREFIX, EpisodeMeasuresAndNewStarts, Problem
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame
from marl.games.tasks.base import deal_problem
from marl.games.team.blackboard import ANSWER_NAMES, CALL, Blackboard
from marl.games.team.corrections import correction_measures
from marl.games.team.expressions import evaluate_as_number, evaluate_expression, fact_names_in, render_template
from marl.games.team.stages import ModelCallAnswerer, Stage, iter_played_steps
from marl.games.team.static_analysis import secret_fact_names_in_template
from marl.games.team.workflow import WorkflowConfig
from marl.protocols.programs import encode_program_state
from marl.protocols.tasks import encode_verifier_state
from marl.text.json_text import split_json_list
from marl.text.origins import NO_ORIGINS, Origins, TextOrigin, TextWithOrigins, add_origins, origins_of, without_origins


class TeamGame(TextGame):
    """Game of a team that works on a problem. An unreadable answer counts as an empty move and ends no episode."""

    name = "team"
    reset_options = ("split", "index", "problem", "open")

    def __init__(self, config: WorkflowConfig) -> None:
        self.config, self.team_seats, self.task_problems = config, config.team_seats, config.task_problems
        self.blackboard = Blackboard(config.team_seats)
        super().__init__(tuple(config.team_seats.role_of), IllegalMoveHandling(retry=config.unreadable.retry))
        self._played: list[str | None] | None = None
        """Arguments of `step` since the last `reset`, or None before it."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._deal, self._played = (seed, options), []
        super().reset(seed, options)

    def step(self, action: str | None) -> None:
        super().step(action)
        if self._played is not None:
            self._played.append(action)

    def copy(self, seed: int | None = None) -> Self:
        """Return a copy as `TextGame.copy` does, by playing the same deal and answers in a new game.

        The workflow in progress is a generator, which cannot be copied.
        """
        other = type(self)(self.config)
        other.metadata, other.render_mode, other.pictures = self.metadata, self.render_mode, self.pictures
        if self._played is not None:
            other.reset(*self._deal)
            for action in self._played:
                other.step(action)
        self._set_random_numbers_of_copy(other, seed)
        return other

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.dealt_problem = self.current_problem = deal_problem(self.name, self.task_problems, rng, options)
        self.kept_problems: list[Problem] = []
        self._paid_turns: dict[tuple[str, str, str], int] = {}
        """(role, reward component, payee) -> number of turns that the payee had at its last payment."""
        # A problem passed as an option comes from a pool of problems that earlier episodes posed.
        split = "pool" if "problem" in options else options.get("split", "train")
        self.blackboard.reset(self.current_problem, split)
        self._steps = iter_played_steps(self.config.stages, self._evaluate_condition)
        self._posed_at, self._problem_gates = 0, NO_ORIGINS
        self._results_of_calls: list[str] = []
        """Results of the tool calls so far in the current agent's turn; those of one answer are one text."""
        self._observations: dict[str, str] = {}
        """Cache: agent -> its observation before the next move."""
        self._audible: dict[str, tuple[tuple[str, ...], Origins]] = {}
        """Cache: agent -> (agents whose turns it reads before the next move, origins of the conditions for this)."""
        first = self._begin_next_stage()
        if first is None:
            raise ValueError("team: no stage is played: every `when` fails at the start")
        return first

    def start_state_key(self) -> str:
        return self.dealt_problem.key

    def problem_key(self) -> str:
        return self.current_problem.key

    # --- observations: legal moves, heard turns and prompts of an agent --------------------------------------------

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        # Only the first agent of a stage lists its stage mates, so the total work is linear in their number.
        return self._speakers if self._stage_begins else (agent,)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        return None if self._call or self._scored_call else self.stage.legal

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        if self._call:
            return (self._caller,)
        if self._scored_call:
            return self._caller, self.team_seats.agent_answering_tool_calls(self.stage, self._caller)
        if agent not in self._audible:
            speakers, gates = [self.team_seats.read_or_verified_agent(self.stage, agent)], NO_ORIGINS
            for name, condition in self.stage.hears.items():
                for speaker in self.team_seats.agents_by_role_or_name(name):
                    # The condition "true" is by far the most common, and needs no evaluation.
                    heard = True
                    if condition != "true":
                        heard, origins = self._evaluate_condition(condition, agent, speaker)
                        gates |= origins
                    if heard:
                        speakers.append(speaker)
            if self.stage.tools:
                speakers.append(self.team_seats.agent_answering_tool_calls(self.stage, agent))
            self._audible[agent] = tuple(dict.fromkeys(filter(None, speakers))), gates
        return self._audible[agent][0]

    def step_indices_that_decided_turn(self, agent: str) -> tuple[int, ...]:
        if self._call or self._scored_call:
            return ()
        # `heard_agents` fills the cache `_audible`, which is read below.
        self.heard_agents(agent)
        origins = self._stage_gates | self._problem_gates | self._audible[agent][1]
        return tuple(sorted({origin.source for origin in origins if isinstance(origin.source, int)}))

    def describe_observation(self, agent: str) -> str:
        if agent not in self._observations:
            # An agent that scores a call reads what the calling agent was told.
            reader = self._caller if self._scored_call else agent
            self._observations[agent] = self._call or self._render_template(self.stage.tell, reader, track_origins=True)
        return self._observations[agent]

    def example_actions(self, agent: str) -> tuple[str, ...]:
        if self._call or self._scored_call or self.stage.legal is not None:
            return ()
        return self._rendered_example_moves(self.stage.examples, agent)

    def example_moves_by_program_caller(self, agent: str) -> Mapping[str, tuple[str, ...]] | None:
        if self.stage.callers is None:
            return None
        callers = self.team_seats.program_caller_by_role(self.stage, agent)
        return {
            caller: self._rendered_example_moves(self.stage.callers[role].examples, caller)
            for role, caller in callers.items()
        }

    def _rendered_example_moves(self, templates: Sequence[str], agent: str) -> tuple[str, ...]:
        """Return example moves of `agent`, rendered from `templates`, except those that reveal a held-out answer."""
        held_out = self.blackboard.split == "held_out"
        examples: list[str] = []
        for template in templates:
            # In evaluation, an example must not reveal the right answer.
            reveals = {*ANSWER_NAMES} & fact_names_in(template, is_template=True)
            if not (held_out and (reveals or secret_fact_names_in_template(template, self.config.secret_fact_names))):
                examples.append(self._render_template(template, agent))
        return tuple(examples)

    def information_state(self, agent: str) -> str:
        if self._call:
            return self._call
        if self._scored_call:
            *earlier, results = self._results_of_calls
            state = encode_verifier_state(self.current_problem, self._scored_call, earlier, results)
            return add_origins(state, self.blackboard.problem_origins)
        if self.stage.verifies:
            verified = self.team_seats.read_or_verified_agent(self.stage, agent) or ""
            answer = self.blackboard.latest[verified].facts["move"]
            return add_origins(
                encode_verifier_state(self.current_problem, answer or None), self.blackboard.problem_origins
            )
        if self.stage.callers is not None:
            return self._program_information_state(agent, self.stage.callers)
        moves = [f"{speaker}: {self.blackboard.latest[speaker].facts['move']}" for speaker in self.heard_agents(agent)]
        return "\n".join((self.stage.name_in_expressions, self.describe_observation(agent), *moves))

    def _program_information_state(self, agent: str, settings_by_role: Mapping[str, ModelCallAnswerer]) -> str:
        """Return the information state of the program of `agent`: its task without secret facts, and its callers."""
        problem, observation = self.current_problem, self.describe_observation(agent)
        given = {name: fact for name, fact in problem.facts.items() if name not in self.config.secret_fact_names}
        heard: dict[str, str] = {}
        origins = self.blackboard.problem_origins | origins_of(observation)
        for speaker in self.heard_agents(agent):
            latest = self.blackboard.latest[speaker]
            heard[speaker] = latest.facts["move"]
            origins |= latest.origins.get("move", NO_ORIGINS)
        task = {"question": problem.question, "given": given, "observation": without_origins(observation)}
        callers: dict[str, dict[str, Any]] = {}
        for role, caller in self.team_seats.program_caller_by_role(self.stage, agent).items():
            callers[role] = {"agent": caller, "match": settings_by_role[role].match.model_dump(exclude_none=True)}
        return add_origins(encode_program_state(task | {"heard": heard}, callers), origins)

    # --- what follows a move ---------------------------------------------------------------------------------------

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent = self.agent_selection
        self._observations, self._audible = {}, {}
        if self._call or self._scored_call:
            return self._apply_result_or_verdict(agent, action)
        if self.stage.tools and action.startswith(TOOL_CALL_PREFIX):
            call = action.removeprefix(TOOL_CALL_PREFIX)
            count = len(split_json_list(call))
            if self._calls_made + count <= self.stage.calls.most:
                self._call = TextWithOrigins(call, ((0, len(call), TextOrigin(self.steps_taken - 1, "told")),))
                self._caller, self._stage_begins = agent, False
                self._calls_made += count
                return self.team_seats.agent_answering_tool_calls(self.stage, agent)
        # The move is recorded first, then may replace the current problem; the stage's rewards are paid last.
        stage, partner = self.stage, self.team_seats.read_or_verified_agent(self.stage, agent)
        step = self.steps_taken - 1
        record = self.blackboard.record_move if stage.callers is None else self.blackboard.record_program_answer
        facts = record(stage, agent, action, step)
        if stage.verifies:
            self.blackboard.record_verdict(partner or "", action, stage.scores, step)
        if stage.poses:
            posed_problem = self.task_problems.parse_posed_problem(action) if action else None
            facts["posed"] = float(posed_problem is not None)
            self._posed_at, self._problem_gates = step, NO_ORIGINS
            self._set_posed_or_dealt_problem(posed_problem)
        self._pay_due_rewards(stage.name_in_expressions, agent, partner)
        self._calls_made, self._results_of_calls = 0, []
        self._speakers, self._stage_begins = self._speakers[1:], False
        following = self._speakers[0] if self._speakers else self._begin_next_stage()
        if following is None:
            self._pay_due_rewards(stage_name=None)
            return {}
        return following

    def _apply_result_or_verdict(self, agent: str, action: str) -> NextAgent:
        """Record the results of tool calls, or the verdict on them, and return the next agent."""
        stage = self.stage
        self.blackboard.latest[agent].facts["spoke"] += 1
        if self._call:
            calls = split_json_list(str(self._call))
            self._results_of_calls.append("\n".join(split_json_list(action)) if len(calls) > 1 else action)
            self.blackboard.record_calls(self._caller, len(calls), self.steps_taken - 1)
            self._scored_call, self._call = str(self._call), ""
            if scoring_agent := self.team_seats.agent_scoring_tool_calls(stage, self._caller):
                return scoring_agent
        else:
            self.blackboard.record_verdict(self._caller, action, stage.calls.scores, self.steps_taken - 1)
        self._scored_call = ""
        self._pay_due_rewards(CALL, self._caller)
        return self._caller

    def _begin_next_stage(self) -> str | None:
        """Begin the next stage and return its first agent, or None at the end of the workflow."""
        for step, gates in self._steps:
            if isinstance(step, Stage):
                self.stage_name = step.name_in_expressions
                self.stage, self._speakers, self._stage_gates = step, self.team_seats.stage_agents(step), gates
                self._caller, self._call, self._scored_call = "", "", ""
                self._calls_made, self._stage_begins = 0, True
                return self._speakers[0]
            if self.current_problem is not self.dealt_problem:
                is_kept, origins = self._evaluate_condition(step.keep)
                self._problem_gates |= origins
                if is_kept:
                    self.kept_problems.append(self.current_problem)
                else:
                    self._set_posed_or_dealt_problem(None)
        return None

    def _set_posed_or_dealt_problem(self, posed_problem: Problem | None) -> None:
        """Make `posed_problem` the current problem or, if `posed_problem` is None, the dealt problem."""
        self.current_problem = posed_problem or self.dealt_problem
        self.blackboard.set_problem(self.current_problem, self._posed_at if posed_problem else None)
        if not posed_problem:
            self._problem_gates |= {TextOrigin(self._posed_at, "posed")}

    def _pay_due_rewards(self, stage_name: str | None, agent: str = "", partner_agent: str | None = None) -> None:
        """Pay the reward components due after a turn of `agent`, with its `partner_agent`, in the stage `stage_name`.

        If `stage_name` is None, pay the components due at the end of the episode.

        An agent without a turn is neither paid nor charged. A partner is paid again only after a further turn.
        """
        for role, components in self.config.rewards.items():
            agents = self.team_seats.agents_of[role]
            payees = tuple(name for name in (agent, partner_agent) if name in agents) or agents
            due = [(name, component.value) for name, component in components.items() if component.after == stage_name]
            for (name, amount), payee in product(due, payees):
                # Before its first answer, a calling agent has only made calls.
                turns = self.blackboard.latest[payee].facts["calls" if stage_name == CALL else "spoke"]
                paid_turns = self._paid_turns.get((role, name, payee), 0) if payee == partner_agent else 0
                if turns > paid_turns:
                    self._paid_turns[role, name, payee] = turns
                    reward = self._evaluate_number(f"rewards.{role}.{name}", amount, payee)
                    self.add_rewards({payee: reward}, name, amount)

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        measures: dict[str, float] = {}
        for name, expression in self.config.measures.items():
            measures[name] = self._evaluate_number(f"measures.{name}", expression)
        # The workflow's own measures come first, because the first one is a run's main figure.
        corrections = correction_measures(self.config.correction_pairs, self.team_seats, self.blackboard.latest)
        measures = measures | {name: value for name, value in corrections.items() if name not in measures}
        return EpisodeMeasuresAndNewStarts(
            measures, tuple({"problem": asdict(problem)} for problem in self.kept_problems)
        )

    def _evaluate_number(self, field: str, expression: str, agent: str | None = None) -> float:
        """Return the value of `expression`, with `agent` as `own`; a ValueError begins with the name `field`."""
        try:
            return evaluate_as_number(expression, self.blackboard.select_facts(fact_names_in(expression), agent))
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from error

    def _evaluate_condition(
        self, condition: str, agent: str | None = None, speaker: str | None = None
    ) -> tuple[bool, Origins]:
        """Return the truth of `condition`, and the turns from which its facts come.

        In the condition, `own` means `agent` and `it` means `speaker`.
        """
        facts = self.blackboard.select_facts(fact_names_in(condition), agent, speaker, track_origins=True)
        truth, origins = evaluate_expression(condition, facts)
        return bool(truth), origins

    def _render_template(self, template: str, agent: str, *, track_origins: bool = False) -> str:
        """Return `template` with the facts filled in (`own` is `agent`); `track_origins` keeps the origins of spans."""
        names = fact_names_in(template, is_template=True)
        text = render_template(template, self.blackboard.select_facts(names, agent, track_origins=track_origins))
        return TextWithOrigins(text) if track_origins and not isinstance(text, TextWithOrigins) else text

    def _retry_or_replace_illegal_move(self, agent: str) -> str | None:
        if self._attempt < self.illegal.retry:
            return super()._retry_or_replace_illegal_move(agent)
        if penalty := self.config.unreadable.penalty:
            self.add_rewards({agent: -penalty}, "unreadable", "unreadable answer")
        return ""
