"""Layers that an adapter cannot adapt, and bases that do not exist, are named before weights are loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import marl
from marl.evaluation.dry_run import play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors
from marl.models.adapter import Adapter
from marl.models.pretrained import Pretrained
from marl.models.tiny import Tiny
from marl.scenario.load import ScenarioError
from tests.support.paths import KUHN

CHOICES = (
    "choices: down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, or all-linear; also the output's and the "
    "embeddings, paths, and patterns"
)
MISSPELT = f"targets: no layer is called 'q_prj'; did you mean 'q_proj'? {CHOICES}"
GOOD_TARGETS = [
    *("all-linear", ("q_proj", "lm_head"), ("layers.0.mlp.up_proj", "embed_tokens"), r".*\.(up|down)_proj"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Tiny().cached_folder(["a b"])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_proj", "q_prj"), MISSPELT),
        (("self_attn",), f"targets: 'self_attn' means model.layers.0.self_attn, which cannot be adapted; {CHOICES}"),
        (("norm",), f"targets: 'norm' means model.norm, which cannot be adapted; {CHOICES}"),
        ("q_proj", f"targets: 'q_proj', a pattern, matches no full path; write [q_proj]; {CHOICES}"),
    ],
)
def test_layers_that_a_base_lacks_are_named_with_the_choices(
    targets: str | tuple[str, ...], message: str, folder: Path
) -> None:
    for base in (Tiny(), Pretrained(path=str(folder))):
        assert list(Adapter(base=base, targets=targets).unmet_requirements()) == [message]


@pytest.mark.parametrize("targets", GOOD_TARGETS, ids=str)
def test_layers_that_a_base_has_pass(targets: str | tuple[str, ...], folder: Path) -> None:
    for base in (Tiny(), Pretrained(path=str(folder))):
        assert not list(Adapter(base=base, targets=targets).unmet_requirements())


def test_the_configuration_decides_where_saved_weights_have_other_names(folder: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed"
    shutil.copytree(folder, renamed)
    tensors = {
        name.replace("q_proj", "query"): tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, renamed / "model.safetensors", metadata={"format": "pt"})
    base = Pretrained(path=str(renamed))
    assert not list(Adapter(base=base, targets=("q_proj",)).unmet_requirements())
    assert list(Adapter(base=base, targets=("q_prj",)).unmet_requirements()) == [MISSPELT]


def refused(model: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        marl.load(KUHN, [f"policies.actor.model={model}"])
    return [line.strip() for line in str(caught.value).split("\n")[1:]]


def test_a_scenario_with_a_misspelt_layer_is_refused_with_field_value_and_choices() -> None:
    assert refused("{kind: adapter, base: {kind: tiny}, targets: [q_prj]}") == [f"policies.actor.model.{MISSPELT}"]


def test_a_base_that_is_only_in_the_hubs_cache_is_checked_by_random_play(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = marl.load(KUHN, ["policies.actor.model={kind: adapter, base: org/model, targets: [q_prj]}"])
    monkeypatch.setattr("marl.models.hub.cached_hub_folder", lambda name: folder)
    assert f"policies.actor.model.{MISSPELT}" in list(scenario_errors(play_dry_run(scenario)))


@pytest.mark.parametrize("field", ["base.path", "path"])
def test_a_policy_is_no_model(field: str) -> None:
    model = "{kind: adapter, base: policies.solver}" if field == "base.path" else "policies.solver"
    assert refused(model) == [
        f"policies.actor.model.{field}: 'policies.solver' names a policy, whose weights no other policy can take; "
        "choices: a folder, a name on the hub, {kind: tiny}, or a policy of another run by {kind: trained, run: RUN, "
        "policy: POLICY}"
    ]


def test_a_base_that_is_a_kind_is_named_as_a_whole() -> None:
    assert refused("{kind: adapter, base: tiny}") == [
        "policies.actor.model.base: 'tiny' is a kind of model, not a folder; write model: {kind: tiny}"
    ]
