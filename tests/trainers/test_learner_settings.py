import subprocess
import sys

import pytest

from marl.core.config import Sampling
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.settings import Grpo


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregation": "seq_mean_token_sum_norm"}, "norm=None with aggregation='seq_mean_token_sum_norm'"),
        ({"norm": 5}, "norm=5 with aggregation='token_mean'"),
        ({"lr_end": 0.1}, "lr_end=0.1 has no effect with schedule='constant'"),
        ({"schedule": "inverse_sqrt"}, "lr_end above 0, got lr_end=None"),
        ({"schedule": "inverse_sqrt", "lr_end": 1.0}, "lr_end=1.0"),
        ({"schedule": "root"}, "schedule"),
        ({"magnet": {"coefficient": 1, "schedule": "inverse_sqrt"}}, "no effect without final"),
        ({"magnet": {"coefficient": 1, "final": 0, "schedule": "inverse_sqrt"}}, "coefficient=1.0 with final=0.0"),
        ({"magnet": {"coefficient": 1, "final": 2, "schedule": "inverse_sqrt"}}, "final=2.0"),
        ({"aggregation": "median"}, "aggregation"),
        ({"clip": 0.2}, "clip"),
        ({"lr": 0}, "lr"),
        ({"magnet": {"coefficient": 1, "estimator": "k1"}}, "estimator"),
        ({"magnet": {"coefficient": 1, "estimator": "k2"}, "truncated": "recompute"}, "'magnet': 'k2'"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        Grpo(**settings)


def test_truncated_sampling_takes_recompute_and_greedy_sampling_is_never_learned_from():
    cut = Sampling(top_p=0.9)
    assert not Grpo().supports(cut)
    assert Grpo(truncated="recompute").supports(cut)
    assert Grpo().supports(Sampling(temperature=0.7))
    assert not Grpo(truncated="recompute").supports(Sampling(temperature=0.0))


def test_anchors_that_are_not_set_are_not_there():
    assert list(Grpo(magnet=KlAnchor(coefficient=1)).anchors) == ["magnet"]
    assert Sft().kind == "sft"


def test_settings_do_not_import_torch():
    code = (
        "import sys, pkgutil, importlib, marl.trainers\n"
        "for module in pkgutil.walk_packages(marl.trainers.__path__, 'marl.trainers.'):\n"
        "    if module.name.endswith(('settings', 'options', 'presets')): importlib.import_module(module.name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
