"""A team as a program of its own plays, pays and learns like the native team."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from marl.commands.cli import app
from marl.core.config import Sampling
from marl.core.graph import Trajectory
from marl.core.types import Deal, Message
from marl.credit.assign.counterfactual import DifferenceReward, LeaveOneAgentOut, Shapley
from marl.credit.assign.reward_rules import RewardFlowAssign
from marl.engines.program.settings import Program
from marl.protocols import AssignConfig, Evidence
from marl.rollout.casting import ProgramCallPrompt, RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import load
from marl.training.build import build
from tests.support.paths import SCENARIOS
from tests.support.small_team_scenarios import small_scenario

FOLDER = Path(__file__).parent
LOOP = SCENARIOS / "programs" / "loop.yaml"
TEAM = ("planner", "solver", "critic")


def spoken(trajectory: Trajectory) -> list[tuple[object, ...]]:
    """What each agent but the program read, said and did, in the order of the agents."""
    programs = {"loop", "debate", "pair"}
    return [
        (turn.agent, turn.completion.prompt_ids, turn.completion.token_ids, turn.action)
        for turn in trajectory.turns
        if turn.agent not in programs and not turn.agent.startswith("verifier")
    ]


def edges(trajectory: Trajectory) -> set[tuple[str, str, frozenset[str]]]:
    agents = {turn.id: f"{turn.agent} {turn.nth}" for turn in trajectory.turns}
    named = {(agents[u], agents[v], kinds) for u, v, kinds in trajectory.graph.edges(data="kinds")}
    return {edge for edge in named if not edge[1].startswith("loop")}


def edges_of_words(trajectory: Trajectory) -> set[tuple[str, str, str]]:
    """Edges between the agents that a program asks, but for those of decisions, of which a program says nothing."""
    rules = ("debate", "pair", "verifier")
    named = {edge for edge in edges(trajectory) if not edge[0].startswith(rules) and not edge[1].startswith(rules)}
    return {(source, reader, kind) for source, reader, kinds in named for kind in kinds if kind != "gated"}


class PlayedTwice(NamedTuple):
    """Equal starts, played natively and as a program by the same weights at temperature 0."""

    native: RolloutSimulator
    looped: RolloutSimulator
    pairs: list[tuple[Trajectory, Trajectory]]


def taught(name: str) -> list[str]:
    """Overrides by which the models of scenario `name` say more than one thing."""
    policies = load(SCENARIOS / f"{name}.yaml").policies
    learning = [policy for policy, settings in policies.items() if settings.model and name != "team_arithmetic"]
    return [f"policies.{policy}.model.warm_up.steps=150" for policy in learning]


def play_twice(name: str, program_file: Path, cache: Path) -> PlayedTwice:
    """Play the team of scenario `name` natively, and as the program of `program_file`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(cache))
        run = build(small_scenario(name, *taught(name)))
    scenario = load(program_file)
    casting = RoleRequestBuilder(scenario.roles, 0).with_greedy_decoding()
    program = scenario.policies["program"].engine.build(None)
    native = run.simulator.with_greedy_decoding()
    assert isinstance(native, RolloutSimulator)
    looped = RolloutSimulator(scenario.game, casting, {**native.engines, "program": program})
    episodes: list[list[Trajectory]] = []
    for simulator, seats in ((native, run.scenario.seats), (looped, scenario.seats)):
        deals: list[Deal] = []
        for number, options in enumerate(scenario.game.held_out_reset_options(16)):
            deals.append(Deal(f"e{number}", f"e{number}", number, seats, "eval", options=options))
        episodes.append(simulator.play(deals))
    return PlayedTwice(native, looped, list(zip(*episodes, strict=True)))


@pytest.fixture(scope="module")
def played(made: Path) -> PlayedTwice:
    return play_twice("team_arithmetic", LOOP, made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["debate", "solver_critic"])
def test_a_debate_and_a_critic_as_programs_are_those_of_the_native_teams(name: str, made: Path) -> None:
    played = play_twice(name, FOLDER / "as_programs" / f"{name}.yaml", made)
    assert len(played.pairs) == 16
    compared = 0
    for natively, as_program in played.pairs:
        # A program's turns are numbered by their edges, which empty answers do not have.
        for native_turn, turn in zip(sorted(spoken(natively)), sorted(spoken(as_program)), strict=True):
            assert turn[:3] == native_turn[:3]
            # Natively, a critic may say yes and no alone.
            assert turn[3] == native_turn[3] or (turn[0] == "critic" and native_turn[3] is None)
        critic_turns = [turn for turn in natively.turns if turn.agent == "critic"]
        for agent, amount in natively.returns.items():
            # Natively, a critic is paid after each of its turns.
            if agent != "critic" or len(critic_turns) == 1:
                assert as_program.returns.get(agent, 0.0) == pytest.approx(amount)
        texts = [turn.completion.text.strip() for turn in natively.turns if turn.completion.token_ids]
        found = edges_of_words(as_program)
        if name == "debate":
            # A call of the second round that arrives late may quote an equal answer of this round.
            is_clear = not any(source.endswith(" 1") for source, _, _ in found)
        else:
            is_clear = len({*texts}) == len(texts)
        # An empty answer is quoted by no prompt.
        if all(texts) and is_clear:
            assert found == edges_of_words(natively)
            compared += 1
    assert compared


def test_at_temperature_0_ids_edges_and_rewards_of_a_program_are_those_of_the_native_team(played: PlayedTwice) -> None:
    assert len(played.pairs) == 16
    compared = 0
    for natively, as_program in played.pairs:
        assert spoken(as_program) == spoken(natively)
        assert as_program.returns == natively.returns
        for measure in ("success", "solver"):
            assert as_program.findings.measures[measure] == natively.findings.measures[measure]
        # An empty answer is quoted by no prompt.
        if all(turn.completion.text.strip() for turn in natively.turns):
            assert edges(as_program) == edges(natively)
            compared += 1
    assert compared >= 8


def credit_of(rule: AssignConfig, simulator: RolloutSimulator, episode: Trajectory) -> dict[tuple[str, int], float]:
    """(agent, its nth turn) -> credit, for the team."""
    evidence = Evidence([episode], "team", simulator=simulator, rule_based_roles=frozenset({"loop", "verifier"}))
    credit, turns = rule.build()(evidence), evidence.turns()
    named = {(turns[turn_id].agent, turns[turn_id].nth): advantage.value for turn_id, advantage in credit.items()}
    return {key: value for key, value in named.items() if key[0] in TEAM}


RULES = [RewardFlowAssign(teams=(TEAM,)), LeaveOneAgentOut(), Shapley(teams=(TEAM,)), DifferenceReward()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_credit_of_a_program_is_that_of_the_native_team(played: PlayedTwice, rule: AssignConfig) -> None:
    paid = [pair for pair in played.pairs if any(pair[0].returns.values())]
    credited_agents: set[str] = set()
    for natively, as_program in paid[:6]:
        expected = credit_of(rule, played.native, natively)
        credited_agents |= {agent for (agent, _), value in expected.items() if value}
        assert set(expected) == {(agent, 0) for agent in TEAM}
        assert credit_of(rule, played.looped, as_program) == pytest.approx(expected, abs=1e-9)
    assert credited_agents


def test_a_program_with_a_clock_in_its_prompts_is_reported_as_diverged(played: PlayedTwice, tmp_path: Path) -> None:
    source = LOOP.with_name("arithmetic_loop.py").read_text()
    clocked = source.replace('task["question"]', 'task["question"] + f" at {time.time_ns()}"')
    (tmp_path / "clocked_loop.py").write_text(clocked.replace("import json\n", "import json\nimport time\n"))
    program: Any = Program(call="clocked_loop:main", folder=tmp_path, workers=1).build(None)
    simulator = RolloutSimulator(load(LOOP).game, played.looped.casting, {**played.looped.engines, "program": program})
    [episode] = simulator.play([played.pairs[0][1].deal])
    assert credit_of(LeaveOneAgentOut(), simulator, episode) == {}
    program.close()
    assert simulator.unverified > 0
    assert "diverged" in " ".join(simulator.take_failure_messages())


def test_marl_play_prints_how_each_call_was_recognised_whether_it_continued_and_its_time() -> None:
    played = CliRunner().invoke(app, ["play", str(LOOP), "--random", "--trust"], catch_exceptions=False)
    lines = [line.split("called")[1].strip() for line in played.output.splitlines() if line.startswith("    called")]
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(r"agent known by model; new prompt; [\d.]+ ms", line)
    read = [line.split("reads")[1].strip() for line in played.output.splitlines() if line.startswith("    reads")]
    assert read == ["planner's turn 0 (heard)", "solver's turn 1 (heard)", "critic's turn 2 (heard)"]


def test_a_caller_whose_policy_does_not_learn_samples_as_the_program_asks() -> None:
    scenario = load(LOOP, ["policies.critic.learner=null"])
    assert {name: scenario.roles[name].trainable for name in TEAM} == {"planner": True, "solver": True, "critic": False}
    assert load(LOOP, ["policies.critic.learner=null", "roles.critic.trainable=true"]).roles["critic"].trainable
    scenario = load(LOOP, ["policies.critic.learner=null", 'roles.solver.sampling.stop=["]"]'])
    casting = RoleRequestBuilder(scenario.roles, 0)
    asked = Sampling(temperature=0.25, max_tokens=10_000, stop=("END",))
    prompt = ProgramCallPrompt((Message("user", "add"),), (), (), (), asked)
    sampled = {name: casting.build_call_request(name, prompt, (), 0).sampling for name in ("solver", "critic")}
    assert (sampled["solver"].temperature, sampled["solver"].max_tokens) == (1.0, 8)
    assert (sampled["critic"].temperature, sampled["critic"].max_tokens) == (0.25, 8)
    assert (sampled["solver"].stop, sampled["critic"].stop) == (("]", "END"), ("END",))
