"""Instructions that learn: versions, the front, what a proposer reads, and limits of tokens that are never exceeded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl.core.config import Sampling
from marl.core.spending import SpendingLimit, SpendingLimitReachedError
from marl.core.types import Advantage, Deal, JudgedText, Message, Sample
from marl.engines.scripted import Random, ScriptedEngine
from marl.evaluation.trials import ScenarioInstructionTrials
from marl.protocols import LearnerSurroundings
from marl.protocols.learning import VERSIONS_FILE
from marl.roles.programs import CallerRole
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load, validate
from marl.scenario.schema import Scenario
from marl.trainers.prompts.proposals import proposal_request, read_proposal
from marl.trainers.prompts.versions import PromptVersion, front_weights, rung_ends
from marl.training.build import build
from marl.training.placement import simulator_from_engines
from marl.training.restore import restore_simulator
from marl.training.session import NewOrResumedRunStart, train_in_folder
from marl.view.prompt_versions import prompt_version_lines
from tests.support.paths import SCENARIOS

SEARCH = SCENARIOS / "prompt_search.yaml"
FOUND = {"initials", "reverse words", "join with -", "repeat twice"}
"""Rules that the editor of the scenario needs; it must not have `be brief`."""


def short_scenario() -> dict[str, Any]:
    """Two searches of the scenario, without the processes of its verifier."""
    given = yaml.safe_load(SEARCH.read_text())
    given["game"] |= {
        "stages": [{"role": "editor"}],
        "rewards": {"editor": {"correct": "own.readable * (own.move == answer)"}},
    }
    del given["game"]["measures"], given["roles"]["verifier"], given["policies"]["checker"], given["evaluate"]
    given["policies"]["editor"]["learner"]["trials"] = 32
    return given | {"schedule": {"steps": 2, "groups": 4, "group_size": 2}, "checkpoint": {"every": 2}}


def trained(folder: Path, scenario: Scenario) -> dict[str, Any]:
    """Train `scenario` in `folder`, and return the record of versions in its last checkpoint."""
    assert train_in_folder(scenario, folder, NewOrResumedRunStart(), [])
    return versions_of(folder, scenario.schedule.steps)


def versions_of(run: Path, step: int) -> dict[str, Any]:
    return json.loads((run / "checkpoints" / f"{step:06d}" / "policies" / "editor" / VERSIONS_FILE).read_text())


def prompt_lines(run: Path) -> list[str]:
    return [line.plain for line in prompt_version_lines(run, None, whole=True)]


def rules_of(version: dict[str, Any]) -> set[str]:
    return set(version["instructions"]["editor"].split("; "))


def is_best(rules: set[str]) -> bool:
    return rules >= FOUND and "be brief" not in rules


def test_the_front_leaves_out_versions_that_another_one_matches_everywhere_and_beats_somewhere() -> None:
    # By hand: 2 is best on starts 0 and 1, 3 on starts 2 and 3; 1 is dominated by 2; 4 ties on start 3 only.
    scores: dict[int, list[float | None]] = {1: [1, 0, 0, 0], 2: [1, 1, 0, 0], 3: [0, 0, 1, 1], 4: [0, 0, 0.5, 1]}
    assert front_weights(scores) == {2: 2, 3: 2}


def test_a_start_without_an_outcome_decides_nothing_on_the_front() -> None:
    assert front_weights({0: [None, 0.0], 1: [0.0, 1.0], 2: [5.0, 0.5]}) == {1: 1}


@pytest.mark.parametrize(
    ("candidates", "starts", "ends"),
    [
        (8, 64, [4, 4, 16, 64]),
        (4, 64, [4, 16, 64]),
        (1, 64, [16, 64]),
        (8, 256, [4, 16, 64, 256]),
        (8, 2, [1, 1, 1, 2]),
    ],
)
def test_every_rung_has_four_times_the_starts_of_the_one_before(candidates: int, starts: int, ends: list[int]) -> None:
    assert rung_ends(candidates, starts) == ends


def test_a_version_names_the_lines_that_it_changed() -> None:
    parent = PromptVersion(0, None, 0, "", {"editor": "Be exact.\nAnswer in English."}, "initial")
    child = PromptVersion(1, 0, 1, "editor", {"editor": "Be exact.\nAnswer in French."}, "kept")
    assert child.diff(parent)[-2:] == ["-Answer in English.", "+Answer in French."]


def sample(answer: str, advantage: float, scores: tuple[str, ...] = ()) -> Sample:
    judged = JudgedText((Message("system", "Rules."), Message("user", "2 + 2?")), answer, scores)
    given = ("a", 0), "editor_0", "editor", "g", 0, "no", (), (), ()
    return Sample(*given, Sampling(), (0, 0), 0.0, Advantage(advantage), judged=judged)  # type: ignore[arg-type]


def test_the_proposer_reads_the_best_and_the_worst_turns_with_scores_and_reasons() -> None:
    turns = [sample(f"answer {i}", i / 10, (f"correct: {i} (own.correct)",)) for i in range(6)]
    request = proposal_request("writer", "editor", "Rules.", turns, Sampling(), 7)
    user = request.messages[-1].content
    assert request.policy == "writer"
    assert request.seed == 7
    assert "<present>\nRules.\n</present>" in user
    assert [f"answer {i}" in user for i in range(6)] == [True, True, False, False, True, True]
    assert "correct: 5 (own.correct)" in user
    assert "Advantage: +0.5" in user


@pytest.mark.parametrize(
    ("answer", "instructions"),
    [
        (
            "<think>hm <instructions>a</instructions></think><instructions>\nBe exact.\n</instructions> done",
            "Be exact.",
        ),
        ("<instructions>a</instructions> or <instructions>b</instructions>", "b"),
        ("Be exact.", None),
        ("<instructions>\n</instructions>", None),
        ("<instructions>a", None),
    ],
)
def test_instructions_stand_between_tags(answer: str, instructions: str | None) -> None:
    assert read_proposal(answer) == instructions


def test_a_limit_counts_open_requests_at_their_most_and_answers_at_what_they_took() -> None:
    limit = SpendingLimit(tokens=10)
    limit.check(6, 0)
    limit.reserve(0, 6, 0)
    with pytest.raises(SpendingLimitReachedError):
        limit.check(5, 0)
    limit.settle(0, 2, 0)
    limit.check(8, 0)
    limit.reserve(1, 8, 0)
    limit.forfeit([1])
    assert (limit.spent_tokens, limit.reached) == (10, True)


def kuhn_of_random_players(max_tokens: int) -> tuple[Scenario, RolloutSimulator]:
    roles = {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": max_tokens}}}
    given = {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": roles,
        "policies": {"actor": {"engine": {"kind": "random"}}},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    scenario = validate(given, "test", to_train=False)
    return scenario, simulator_from_engines(scenario, {"actor": ScriptedEngine(Random())})


@pytest.mark.parametrize("tokens", [0, 1, 7, 20, 100, 10_000])
def test_trials_never_sample_more_tokens_than_their_limit(tokens: int) -> None:
    # A random player says one token a turn, and each request reserves four.
    scenario, simulator = kuhn_of_random_players(4)
    limit = SpendingLimit(tokens=tokens)
    scores = ScenarioInstructionTrials(scenario, simulator, "actor", str).play({}, range(40), limit)
    assert limit.spent_tokens <= tokens
    assert limit.reached == (None in scores)
    assert limit.reached == (tokens < 1000)


def test_equal_starts_have_equal_outcomes_in_whatever_order_they_are_played() -> None:
    scenario, simulator = kuhn_of_random_players(4)
    trials = ScenarioInstructionTrials(scenario, simulator, "actor", str)
    scores = trials.play({}, range(12), SpendingLimit())
    assert trials.play({}, [7, 3], SpendingLimit()) == [scores[7], scores[3]]


def test_learned_instructions_reach_variants_that_were_made_before() -> None:
    scenario, simulator = kuhn_of_random_players(4)
    greedy = simulator.with_greedy_decoding()
    simulator.casting.instructions["player"] = "Never fold."
    deals = [Deal("e", "e", 0, scenario.seats)]
    for played in (simulator.play(deals), greedy.play(deals)):
        assert played[0].turns[0].request.messages[0] == Message("system", "Never fold.")


def test_a_proposal_that_cannot_be_played_is_dropped_with_the_reason() -> None:
    role = load(SEARCH).roles["editor"]
    for wrong in ("{{ nobody }}", "{% if %}", "{{ legal.missing }}", "{% for i in range(10**9) %}x{% endfor %}"):
        with pytest.raises(ValueError, match=r"template"):
            role.with_instructions(wrong)
    assert role.with_instructions("Be exact, {{ agent }}.").learnable_instructions == "Be exact, {{ agent }}."


BAD = [
    ("proposer=nobody", "policies.editor.learner.proposer: no policy 'nobody'; choices: checker, writer"),
    ("proposer=editor", "policies.editor.learner.proposer: 'editor' would rewrite its own instructions"),
    ("proposer=checker", "policies.editor.learner.proposer: engine 'verifiers' of policies.checker writes no text"),
    ("budget.cost=5", "policies.editor.learner.budget.cost: 5, but no engine names a `price`"),
    ("candidates=0", "policies.editor.learner.candidates"),
    ("trials=1", "policies.editor.learner.trials"),
    ("budget.tokens=0", "policies.editor.learner.budget.tokens"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_settings_that_do_not_fit_are_named_before_anything_is_loaded(change: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        load(SEARCH, [f"policies.editor.learner.{change}"])
    assert message in str(error.value)


def test_a_role_without_instructions_cannot_learn_them() -> None:
    scenario = load(SEARCH)
    learner, engines = scenario.policies["editor"].learner, {n: p.engine for n, p in scenario.policies.items()}
    assert learner
    caller = CallerRole(policy="editor")  # a program writes the prompts of this role
    (problem,) = learner.scenario_conflicts(LearnerSurroundings("editor", {"caller": caller}, engines, {}))
    assert "roles.caller of kind 'caller' has no instructions" in problem


def test_one_search_adopts_a_rule_that_is_needed_and_the_checkpoint_plays_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    record = trained(run, validate(short_scenario(), "test"))
    versions, incumbent = record["versions"], record["versions"][record["incumbent"]]
    assert incumbent["status"] == "adopted"
    assert rules_of(incumbent) & FOUND
    assert incumbent["gain"][0] > 0
    assert len(incumbent["scores"]) in (16, 32)  # one look, or two
    assert incumbent["diff"][-1].startswith("+Rules.; ")
    assert [version["number"] for version in versions] == list(range(len(versions)))
    assert all(version["reason"] for version in versions[1:])
    scenario, simulator = restore_simulator(run)
    assert scenario.roles["editor"].learnable_instructions == incumbent["instructions"]["editor"]
    turn = simulator.play([Deal("e", "e", 0, scenario.seats)])[0].turns[0]
    assert turn.request.messages[0].content == incumbent["instructions"]["editor"]
    lines = [line.plain for line in prompt_version_lines(run, None, whole=False)]
    assert f"version {record['incumbent']} is in use" in lines[0]
    assert incumbent["diff"][-1] in [line.strip() for line in lines]
    assert sum(line.startswith("version ") for line in prompt_lines(run)) == len(versions)
    # A run that goes on plays with the adopted version at once.
    again = build(validate(short_scenario(), "test"))
    again.load_state_dict(RunFolder(run).rewind_to_checkpoint(2) or {})
    assert again.simulator.casting.instructions == incumbent["instructions"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_known_best_instructions_are_found(tmp_path: Path, seed: int) -> None:
    record = trained(tmp_path / "run", load(SEARCH, [f"schedule.seed={seed}"]))
    best = record["versions"][record["incumbent"]]
    assert is_best(rules_of(best))
    assert set(best["scores"]) == {1.0}
