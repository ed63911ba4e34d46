"""`marl check`: a dry run that says what a run would do, and refuses what would end it or keep it from learning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import KUHN, ROOT, SCENARIOS

KUHN_PLAN = """\
scenarios/kuhn_self_play.yaml: fine; game kuhn_poker, trains actor

role    seats               policy  speaks by                learns by  turns  reads  writes
player  player_0, player_1  actor   tiny llama, 14k weights  grpo         544     14       6
turns: in a step, if roles speak as often as in random play
reads, writes: tokens of a prompt, on average, and of an answer, at most

step    256 episodes of 2 to 3 turns: 128 starts, 2 from each
        about 7.6k tokens read and up to 3.3k written
run     2,000 steps: 512k episodes
memory  about 49 MB (marl check --device cpu|cuda:0|80GiB says more)
        actor: ...

player reads first (14 tokens)
  user       card Q . betting none . moves [check] [bet]
  says       [check], [bet]
"""
SOLVE = {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}"]}
CHECK = {"role": "verifier", "verifies": "solver", "scores": ["correct"]}


def scenario(folder: Path, *stages: dict[str, Any], **more: Any) -> Path:
    """Write a scenario in which a solver learns sums, and others may speak."""
    game = {"kind": "team", "task": "arithmetic", "stages": stages or (SOLVE, CHECK)}
    game["rewards"] = {"solver": {"readable": "own.readable"}}
    roles = {"solver": {"kind": "solver", "policy": "actor"}, "verifier": {"kind": "verifier", "policy": "checker"}}
    data = {
        "game": game | more.pop("game", {}),
        "roles": {name: role for name, role in (roles | more.pop("roles", {})).items() if role},
        "policies": {
            "actor": {"model": {"kind": "tiny", "warm_up": {}}, "learner": "grpo"},
            "checker": {"engine": {"kind": "verifiers", "checks": {"correct": "exact"}}},
        },
        "schedule": {"steps": 3, "groups": 2, "group_size": 4},
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data | more, sort_keys=False))
    return path


def test_a_run_larger_than_the_machine_is_not_fine(run: Any) -> None:
    huge = ["policies.actor.model.hidden=2048", "policies.actor.model.layers=64"]
    status, said, complaint = run("check", KUHN, *huge)
    assert (status, complaint) == (0, "")
    verdict, warning = said.splitlines()[:2]
    assert verdict == f"{KUHN}: valid, but read 1 warning; game kuhn_poker, trains actor"
    assert re.fullmatch(
        r"WARNING memory: about \d+ GB, more than the .* of this machine; marl check --device .*", warning
    )
    status, said, _ = run("check", KUHN, *huge, "--device", "2GiB")
    assert (status, "fine" in said) == (1, False)
    assert re.search(r"^WARNING memory: about \d+ GB, more than the 1\.4 GB that 2GiB leaves to the run$", said, re.M)
    status, said, complaint = run("check", KUHN, "--device", "2GiB")
    assert (status, complaint, said.partition(";")[0]) == (0, "", f"{KUHN}: fine")


def test_check_says_who_learns_what_is_read_and_how_much_is_played_and_held(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    status, text, errors = run("check", KUHN.relative_to(ROOT))
    assert (status, errors) == (0, "")
    assert re.sub(r"(actor: ).*", r"\1...", text) == KUHN_PLAN


def test_check_plays_without_loading_torch() -> None:
    code = f"""
import sys
from marl.commands.cli import main
sys.argv = ["marl", "check", {str(SCENARIOS / "train_solver_only_adapters.yaml")!r}]
try:
    main()
except SystemExit as left:
    assert not left.code
print([name for name in ("torch", "transformers", "vllm", "ray") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")


def test_long_prompts_are_cut_unless_they_are_asked_for(run: Any, tmp_path: Path) -> None:
    prompt = "\n".join(f"rule {number}" for number in range(30)) + "\n{{ observation }}"
    path = scenario(tmp_path, roles={"solver": {"kind": "solver", "policy": "actor", "prompt": prompt}})
    text = run("check", path)[1]
    assert "\n             rule 7\n             ... 23 lines more; --prompts shows them\n  says       <answer>" in text
    assert "             rule 29\n" in run("check", "--prompts", path)[1]


def test_a_prompt_cannot_command_the_terminal(run: Any, tmp_path: Path) -> None:
    prompt = "\x1b]0;owned\x07{{ observation }}"
    path = scenario(tmp_path, roles={"solver": {"kind": "solver", "policy": "actor", "prompt": prompt}})
    assert "  user       \\x1b]0;owned\\x07" in run("check", "--prompts", path)[1]


def test_a_challenger_is_shown_the_form_of_a_problem(run: Any, tmp_path: Path) -> None:
    pose = {"role": "challenger", "poses": True, "when": "split == 'train'", "examples": ["{{ question }}"]}
    challenger = {"challenger": {"kind": "challenger", "policy": "actor", "trainable": False}}
    text = run("check", scenario(tmp_path, pose, SOLVE, CHECK, roles=challenger))[1]
    assert (
        "  is to say  a problem: 2 numbers from 0 to 99 with + between them and nothing else, such as '99 + 0'" in text
    )


def test_a_tracker_that_is_not_installed_is_refused(run: Any, tmp_path: Path) -> None:
    status, _, errors = run("check", scenario(tmp_path, track=["trackio"]))
    assert (status, errors) == (
        2,
        f"marl: {tmp_path / 'mine.yaml'}: 1 problem\n  track: 'trackio' is not installed; pip install "
        "'marl-llm[tracking]', or remove it\n",
    )


@pytest.mark.parametrize("command", ["check", "train"])
def test_what_settings_alone_show_is_refused_before_anything_is_played(run: Any, tmp_path: Path, command: str) -> None:
    wrong = {
        "evaluate": {"held_out": 5, "keep_best": "sucess"},
        "roles": {"solver": {"kind": "solver", "policy": "actor", "sampling": {"stop": [""]}}},
    }
    status, _, errors = run(command, scenario(tmp_path, game={"measures": {"success": "solver.correct"}}, **wrong))
    assert status == 2
    assert "roles.solver.sampling.stop: '' ends every answer before its first token; remove it" in errors
    assert "evaluate.keep_best: nothing measures 'eval/held_out/sucess'; did you mean 'eval/held_out/success'" in errors


def test_what_only_play_shows_is_refused_and_not_looked_for_in_a_quick_check(run: Any, tmp_path: Path) -> None:
    two_digits = "own.readable / (len(own.move) - 2)"
    path = scenario(tmp_path, game={"rewards": {"solver": {"odd": two_digits}}})
    status, _, errors = run("check", path)
    assert status == 2
    assert f"marl: {path}: a random episode failed: game TeamGame raised ValueError: rewards.solver.odd: " in errors
    assert run("check", "--quick", path)[:2] == (0, f"{path}: fine; game team, trains actor\n")
