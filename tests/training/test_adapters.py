"""Teams whose policies are adapters on one base, from the YAML file to the checkpoint and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file

import marl
from marl.core.types import Deal
from marl.engines.transformers.engine import TransformersEngine
from marl.scenario.checks import missing_requirements
from marl.scenario.load import ScenarioError, load, validate
from marl.training.build import build
from marl.training.restore import restore_simulator
from marl.training.run import Run
from tests.support.evaluated_runs import evaluate_run

BASE = {"kind": "tiny", "hidden": 16, "layers": 1, "warm_up": {"steps": 30, "episodes": 64, "batch": 32, "lr": 2e-2}}
LEARNER = {"kind": "grpo", "lr": 1e-2, "betas": [0.9, 0.99], "proximal": {"coefficient": 1.0, "refresh": 2}}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterable[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        yield


def adapter(**settings: Any) -> dict[str, Any]:
    return {"kind": "adapter", "base": deepcopy(BASE), "rank": 4, **settings}


def team(first: dict[str, Any], second: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two policies at Kuhn poker."""
    roles = {name: {"kind": "player", "policy": name, "sampling": {"max_tokens": 6}} for name in ("planner", "solver")}
    return {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "planner", "player_1": "solver"},
        "roles": roles,
        "policies": {"planner": first, "solver": second},
        "credit": {"baseline": {"kind": "group", "std": False}},
        "schedule": {"steps": 4, "groups": 4, "group_size": 8, "threads": 1},
        "checkpoint": {"every": 2, "keep": 9, "trajectories": 1.0},
    } | more


def both(**more: Any) -> dict[str, Any]:
    one = {"model": adapter(), "learner": LEARNER}
    return team(one, one, **more)


def solver_only() -> dict[str, Any]:
    return team({"model": adapter()}, {"model": adapter(), "learner": LEARNER})


def hashes(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest() for name, tensor in tensors
    }


def engine_of(run: Run) -> TransformersEngine:
    """The one engine of all policies."""
    simulator: Any = run.simulator
    [engine] = {id(engine): engine for engine in simulator.engines.values()}.values()
    assert isinstance(engine, TransformersEngine)
    return engine


def held(run: Run, policy: str) -> dict[str, str]:
    """What the engine speaks with for a policy."""
    weights: Any = engine_of(run).policy_weights
    return hashes(weights.adapter_tensors(policy).items())


def base_of(run: Run) -> dict[str, str]:
    tensors = engine_of(run).network.model.named_parameters()
    return hashes((name, tensor) for name, tensor in tensors)


def weights(run: Path, step: int, policy: str) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"{step:06d}" / "policies" / policy / "adapter_model.safetensors")


def step(run: Run) -> None:
    """What the loop does in a step, by hand."""
    from marl.protocols import Evidence
    from marl.training.samples import collect_samples

    trajectories = run.experience.gather(run.step, run.deals, run.simulator)
    readings = run.read(trajectories)
    judgement = run.credit_stage(Evidence(trajectories, "kuhn_poker", readings, run.simulator))
    batches = collect_samples(trajectories, judgement, run.scenario.roles, readings)
    for name, learner in run.learners.items():
        learner.update(batches.get(name, []))
        run.schedule_publication(name, run.step + 1)
    run.publish()
    run.step += 1


def test_training_one_adapter_moves_no_byte_of_the_others_and_of_the_base() -> None:
    run = build(validate(solver_only()))
    base, planner, solver = base_of(run), held(run, "planner"), held(run, "solver")
    for _ in range(3):
        step(run)
    assert base_of(run) == base
    assert held(run, "planner") == planner
    after = held(run, "solver")
    assert all(after[name] != solver[name] for name in solver)
    published: Any = run.learners["solver"].publish()
    assert after == hashes(published)


def test_policies_on_equal_bases_share_an_engine_and_others_do_not() -> None:
    def engines(**second: Any) -> int:
        simulator: Any = build(validate(team({"model": adapter(), "learner": LEARNER}, second))).simulator
        return len({id(engine) for engine in simulator.engines.values()})

    assert engines(model=adapter(rank=2, targets=["q_proj"])) == 1
    assert engines(model=adapter(base=BASE | {"hidden": 32})) == 2
    assert engines(model=adapter(), engine={"kind": "transformers", "slots": 3}) == 2
    assert engines(model=deepcopy(BASE)) == 2


def test_the_shared_base_knows_what_all_of_its_policies_say() -> None:
    run = build(validate(solver_only()))
    [one, other] = [run.simulator.engines[name].network.model.name_or_path for name in ("planner", "solver")]  # type: ignore[attr-defined]
    assert one == other
    played = run.simulator.play([Deal(f"e{i}", "g", i, run.scenario.seats) for i in range(40)])
    legal = {role: [turn.action is not None for t in played for turn in t.turns if turn.role == role]
             for role in ("planner", "solver")}  # fmt: skip
    assert all(sum(legality) > 0.8 * len(legality) for legality in legal.values()), "taught the format to both"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: None) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "both"
    assert marl.train(validate(both()), folder)
    return folder


def test_two_adapters_learn_each_for_itself(trained: Path) -> None:
    planner, solver = (weights(trained, 4, name) for name in ("planner", "solver"))
    assert planner.keys() == solver.keys()
    assert not any(torch.equal(planner[name], solver[name]) for name in planner)
    assert (trained / "checkpoints/000004/policies/solver/tokenizer.json").is_file()


def test_an_adapter_learns_in_company_what_it_learns_alone() -> None:
    """In the first step, in which all still say what the base says."""
    runs = {name: build(validate(scenario)) for name, scenario in (("both", both()), ("solver", solver_only()))}
    for run in runs.values():
        step(run)
    assert held(runs["both"], "solver") == held(runs["solver"], "solver")
    assert held(runs["both"], "planner") != held(runs["solver"], "planner")


def test_a_resumed_run_is_the_run_that_went_through(trained: Path, tmp_path: Path) -> None:
    scenario = both()
    half = scenario | {"schedule": scenario["schedule"] | {"steps": 2}}
    assert marl.train(validate(half), tmp_path / "run")
    assert marl.train(validate(scenario), tmp_path / "run", resume="auto", force=True)
    for name in ("policies/planner", "policies/solver", "state"):
        files = sorted(path for path in (trained / "checkpoints/000004" / name).iterdir())
        assert files
        for path in files:
            again = tmp_path / "run" / path.relative_to(trained)
            assert again.read_bytes() == path.read_bytes(), path.name
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            for run in (trained, tmp_path / "run")]  # fmt: skip
    one, other = (
        [{k: v for k, v in row.items() if not k.startswith(("time/", "crc32"))} for row in rows_] for rows_ in rows
    )
    assert one == other


def test_a_checkpoint_holds_adapters_and_no_base(trained: Path) -> None:
    state = load_file(trained / "checkpoints/000004/state/state.safetensors")
    assert state
    assert all("lora_" in name for name in state)
    assert not list((trained / "checkpoints").rglob("model.safetensors"))


def test_a_trained_run_is_measured_and_played_with_its_adapters(trained: Path) -> None:
    scenario, simulator = restore_simulator(trained)
    sampler: Any = simulator.engines["solver"]
    assert sampler is simulator.engines["planner"]
    for name in ("planner", "solver"):
        saved = [hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in weights(trained, 4, name).values()]
        assert sorted(hashes(sampler.policy_weights.adapter_tensors(name).items()).values()) == sorted(saved)
    first = restore_simulator(trained, 2)[1].engines["solver"]
    assert first is not sampler
    assert evaluate_run(trained, "random", 8, None)["eval/legal_mass"] > 0.5
    assert evaluate_run(trained, str(trained), 8, None)
    [played] = simulator.play([Deal("e", "g", 0, scenario.seats)])
    assert played.turns


def test_the_saved_folder_gives_the_log_probabilities_that_were_recorded(trained: Path) -> None:
    scenario, simulator = restore_simulator(trained)
    [played] = simulator.play([Deal("e", "g", 3, scenario.seats)])
    for turn in played.turns:
        folder = trained / "checkpoints/000004/policies" / turn.role
        model = AutoPeftModelForCausalLM.from_pretrained(str(folder)).eval()
        ids = torch.tensor([turn.completion.prompt_ids + turn.completion.token_ids])
        start = len(turn.completion.prompt_ids)
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, ids[0, start:, None]).squeeze(1).tolist()
        assert turn.completion.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_base_is_written_once_in_the_file(tmp_path: Path) -> None:
    written = f"""
{yaml.safe_dump({k: v for k, v in both().items() if k != "policies"})}
policies:
  planner: {{model: {{kind: adapter, base: &base {json.dumps(BASE)}}}, learner: {{kind: grpo}}}}
  solver: {{model: {{kind: adapter, base: *base, rank: 2}}}}
"""
    (tmp_path / "team.yaml").write_text(written)
    planner, solver = (load(tmp_path / "team.yaml").policies[name].model for name in ("planner", "solver"))
    assert planner is not None
    assert solver is not None
    assert planner.shared_base() == solver.shared_base()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "policies.planner.model.rank: must be greater than 0"),
        ({"targetz": "x"}, "did you mean 'targets'?"),
        ({"base": {"kind": "adapter", "base": BASE}}, "kind 'adapter' cannot stand here; choices: pretrained, tiny"),
        ({"base": {"kind": "tiny", "hidden": 33}}, "policies.planner.model.base.hidden: 33"),
        ({"base": None}, "policies.planner.model.base"),
    ],
    ids=str,
)
def test_what_an_author_gets_wrong_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        validate(team({"model": adapter(**settings)}, {"model": adapter(), "learner": LEARNER}))
    assert message in str(caught.value)


def test_folders_that_are_not_there_are_named_before_a_weight_is_loaded() -> None:
    planner = {"model": adapter(path="nowhere")}
    solver = {"model": adapter(base="no/such/base"), "learner": LEARNER}
    problems = missing_requirements(validate(team(planner, solver)))
    assert problems == [
        "policies.planner.model.path: 'nowhere': there is no such folder",
        "policies.solver.model.base.path: 'no/such/base': there is no such folder",
    ]


def test_training_goes_on_from_a_saved_adapter(trained: Path) -> None:
    folder = trained / "checkpoints/000004/policies/solver"
    run = build(validate(team({"model": adapter()}, {"model": adapter(path=str(folder)), "learner": LEARNER})))
    saved = {hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in weights(trained, 4, "solver").values()}
    assert set(held(run, "solver").values()) == saved
    published: Any = run.learners["solver"].publish()
    assert set(hashes(published).values()) == saved
