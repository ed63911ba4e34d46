"""Runs as they lie on disk, made without a model: hands of Kuhn poker, judged by the real rule."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

import marl
from marl.core.config import Sampling
from marl.core.graph import Trajectory
from marl.core.types import (
    Completion,
    Deal,
    EpisodeMeasuresAndNewStarts,
    Message,
    Request,
    Reward,
    SpanFromEarlierTurn,
    Turn,
)
from marl.credit_stage.records import with_token_statistics
from marl.credit_stage.stage import CreditStage
from marl.games.kuhn_poker import MOVES, KuhnEquilibrium, KuhnPokerConfig
from marl.protocols import Evidence, TokenLogprobsAndEntropies
from marl.runs.run_folder import RunFolder, scenario_to_yaml
from marl.runs.run_format import FORMAT
from marl.runs.strategies import StrategyRow
from marl.scenario.load import load, validate
from tests.support.paths import KUHN
from tests.support.run_processes import kuhn_scenario

WORDS = ("<eos>", "[", "]", "check", "bet", "fold", "call")
HOSTILE = (
    '<img src=x onerror="window.broken=1"><script>window.broken=1</script>\x1b[31mred\x1b[0m \u202eevil\u202c '
    "zero\u200bwidth </script><!-- ${window.broken=1} {{constructor}} javascript:alert(1)"
)
"""What a model may say: markup, scripts, escape sequences, signs that turn the text around or are not seen."""
OPPOSITE = "שלום עולם [bet]"
"""Text that is written from right to left."""
_FOUR_STEPS = {"steps": 4, "groups": 2, "group_size": 2, "threads": 1}


def kuhn_run(folder: Path, *overrides: str, steps: int = 2, seed: int = 0, said: str = "") -> Path:
    """A run with every step recorded: two starts, four hands of each. `said`: what the last turn of one answered."""
    folder.mkdir(parents=True)
    scenario = load(KUHN, [f"schedule.seed={seed}", f"schedule.steps={steps}", *overrides])
    (folder / "scenario.yaml").write_text(scenario_to_yaml(scenario))
    home, rng = RunFolder(folder), random.Random(seed)
    judge = CreditStage(scenario.credit)
    for step in range(1, steps + 1):
        hands = [
            kuhn_episode(f"{step:06d}.{i}.{k}", cards, rng) for i, cards in enumerate(("KQ", "JK")) for k in range(4)
        ]
        hands[2] = with_segments(hands[2])
        if said and step == steps:
            hands[0] = with_answer(hands[0], said)
        home.record_trajectories(step, hands)
        record = judge(Evidence(hands, "kuhn_poker")).to_credit_record(hands, {"player": "actor"})
        home.record_credit(step, with_token_statistics(record, hands, dict(map(figures_of, hands[0].turns))))
        home.record_strategies(step, strategy(step))
    home.record_held_out_episodes(0, [kuhn_episode("held_out.0", "QJ", rng)])
    home.record_held_out_episodes(steps, [kuhn_episode("held_out.0", "QJ", rng), kuhn_episode("held_out.1", "KJ", rng)])
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows(steps, rng)))
    (folder / "environment.json").write_text(json.dumps({"format": FORMAT, "python": "3", "packages": {"torch": "2"}}))
    save_tokenizer(folder / "checkpoints" / f"{steps:06d}" / "policies" / "actor")
    return folder


def with_role_worth(run: Path) -> Path:
    """The same run, whose last evaluation counted a critic's corrections and, as a measure of the game, fixed bugs, and
    which was measured without the critic."""
    row = {"step": 3, "eval/held_out/episodes": 40.0, "eval/held_out/critic_fixes": 0.25}
    row |= {"eval/held_out/critic_fixes_episodes": 32.0, "eval/held_out/critic_breaks": 0.1}
    row |= {"eval/held_out/role/critic/turns": 40.0, "eval/held_out/bug_fixes": 2.5}
    with RunFolder(run).metrics_file.open("a") as file:
        file.write(f"{json.dumps(row)}\n")
    figures = {"eval/held_out/episodes": 40.0, "eval/held_out/success": 0.5, "eval/without/critic/success": 0.375}
    figures |= {"eval/worth/critic/success": 0.125, "eval/worth/critic/success_low": -0.1}
    figures |= {"eval/worth/critic/success_high": 0.3, "eval/without/critic/success_low": 0.2}
    for name, present, absent in (("critic_fixes", 0.25, 0.0), ("bug_fixes", 2.5, 2.0)):
        figures |= {f"eval/held_out/{name}": present, f"eval/without/critic/{name}": absent}
        figures[f"eval/worth/critic/{name}"] = present - absent
    (run / "without").mkdir()
    (run / "without" / "critic.json").write_text(json.dumps({"checkpoint": 3, "figures": figures}))
    return run


def with_forecasts(run: Path) -> Path:
    """The same run with two evaluations of a critic's scores, whose correlation is undefined in the first."""
    forecast = "eval/held_out/forecast/verdict"
    curve = {f"{forecast}/outcome_in_{number}": outcome for number, outcome in ((1, 0.0), (3, 0.5), (5, 0.75))}
    rows = [
        {"step": 3, f"{forecast}/brier": 0.26, f"{forecast}/brier_skill": -0.04, f"{forecast}/calibration_error": 0.2},
        {"step": 4, f"{forecast}/brier": 0.2, f"{forecast}/brier_skill": 0.2, f"{forecast}/calibration_error": 0.1}
        | {f"{forecast}/correlation": 0.5, **curve},
    ]
    with RunFolder(run).metrics_file.open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    return run


def figures_of(played: Turn) -> tuple[tuple[str, int], TokenLogprobsAndEntropies]:
    """What an update would have computed: the learner finds the second token less likely than the sampler did."""
    return played.id, TokenLogprobsAndEntropies((-0.1, -0.75, -0.2, 0.0), (0.25, 1.0, 2.5, 0.0))


def strategy(step: int) -> list[StrategyRow]:
    """Kuhn's equilibrium, with probabilities that are `step` hundredths lower."""
    states = [("player_0", betting) for betting in ("", "check bet")]
    states += [("player_1", betting) for betting in ("check", "bet")]
    rows = []
    for agent, betting in states:
        for card in "JQK":
            state = f"{card} {betting}".strip()
            exact = KuhnEquilibrium().move_probabilities(state, MOVES[betting])
            rows.append(StrategyRow("", agent, state, 0, {m: p * (1 - step / 100) for m, p in exact.items()}))
    return rows


def kuhn_episode(name: str, cards: str, rng: random.Random) -> Trajectory:
    """A hand of Kuhn poker, played at random, with tokens as a model would have sampled them."""
    game = KuhnPokerConfig().build()
    game.reset(0, {"cards": cards})
    seats = {"player_0": "player", "player_1": "player"}
    trajectory = Trajectory(Deal(name, name.rpartition(".")[0], 0, seats), game.start_state_key())
    while not any(game.terminations.values()):
        agent, index = game.agent_selection, len(trajectory.turns)
        legal = game.infos[agent]["legal"] or ()
        move = rng.choice(legal)
        trajectory.add(kuhn_turn(trajectory, agent, legal, move, game), [each.id for each in trajectory.turns[-1:]])
        game.step(move)
        for paid in game.agents if any(game.terminations.values()) else ():
            reward = Reward(paid, game.rewards[paid], (name, index), "outcome", "result of the game")
            trajectory.rewards.append(reward)
    trajectory.end = "terminated"
    trajectory.findings = EpisodeMeasuresAndNewStarts({"chips": abs(trajectory.returns["player_0"])})
    return trajectory


def kuhn_turn(trajectory: Trajectory, agent: str, legal: Sequence[str], move: str, game: object) -> Turn:
    """One decision: the prompt tells of the turn before it."""
    index = len(trajectory.turns)
    observed, info = game.observe(agent), game.infos[agent]  # type: ignore[attr-defined]
    before: list[Any] = [(earlier.id, "heard", 0, 0, 6) for earlier in trajectory.turns[-1:]]
    request = Request(
        *("actor", (Message("user", observed["text"]),), Sampling()),
        options={each: f"[{each}]" for each in legal},
        state=info["state"],
        marks=tuple(SpanFromEarlierTurn(*mark) for mark in before),
    )
    ids = (1, WORDS.index(move), 2, 0)
    completion = Completion(
        *(f"[{move}]", (3, 4), ids, (-0.1, -0.7, -0.2, 0.0), "stop"),
        versions=(1, 1),
        mark_tokens=((0, 1),) * len(before),
    )
    nth = sum(each.agent == agent for each in trajectory.turns)
    return Turn((trajectory.id, index), agent, nth, 0, "player", request, completion, move)


def with_answer(trajectory: Trajectory, text: str) -> Trajectory:
    """The same hand, in which the last turn answered `text`, which cannot be read, to an equally bad prompt."""
    made = Trajectory(trajectory.deal, trajectory.start)
    *rest, last = trajectory.turns
    request = replace(last.request, messages=(*last.request.messages, Message("user", text)), marks=())
    changed = replace(last, request=request, completion=replace(last.completion, text=text), action=None)
    for each in (*rest, changed):
        made.add(each, trajectory.sources(each.id, ["heard", "self"]))
    made.rewards = [replace(reward, cause=text) for reward in trajectory.rewards]
    made.end, made.findings = trajectory.end, trajectory.findings
    return made


def with_segments(trajectory: Trajectory) -> Trajectory:
    """The same hand, in which the answer of the first turn has two segments, of three tokens and of one."""
    first = trajectory.turns[0]
    changed = replace(first, completion=replace(first.completion, segments=(2, 3)))
    made = Trajectory(trajectory.deal, trajectory.start)
    for each in (changed, *trajectory.turns[1:]):
        made.add(each, trajectory.sources(each.id, ["heard", "self"]))
    made.rewards, made.end, made.findings = trajectory.rewards, trajectory.end, trajectory.findings
    return made


def long_episode(name: str, turns: int, tokens: int) -> Trajectory:
    """An episode of many turns, of which the last one has a long answer."""
    hand = kuhn_episode(name, "KQ", random.Random(0))
    first = hand.turns[0]
    made = Trajectory(hand.deal, hand.start)
    for index in range(turns):
        turn = replace(first, id=(name, index), agent=f"player_{index % 2}", nth=index // 2)
        if index == turns - 1:
            ids = (1,) * tokens
            turn = replace(turn, completion=replace(turn.completion, token_ids=ids, logprobs=(-0.5,) * tokens))
        made.add(turn, [(name, index - 1)] if index else [])
    made.rewards = [Reward("player_0", 1.0, (name, turns - 1), "outcome", "result of the game")]
    made.end, made.findings = "terminated", hand.findings
    return made


def rows(steps: int, rng: random.Random) -> Iterator[dict[str, float]]:
    """Metrics of every step; an alarm holds in the second one."""
    for step in range(1, steps + 1):
        yield {
            **{"step": step, "episode/return/player_0": rng.random(), "role/player/reward/outcome": 0.0},
            **{
                "policy/actor/loss": rng.random(),
                "policy/actor/entropy": 0.5,
                "step/tokens": 100.0 * step,
                "time/step": 0.5,
            },
            **({"alarm/player/constant": 1.0} if step == 2 else {}),
            "time/step": 0.5,
        }


def train_without_checksums(folder: Path) -> Path:
    """Train four small steps; keep the checkpoint of step 2 alone, and clear the checksums in its manifest."""
    marl.train(
        validate(kuhn_scenario(schedule=_FOUR_STEPS, evaluate={}, checkpoint={"every": 2, "trajectories": 1.0})), folder
    )
    shutil.rmtree(folder / "checkpoints" / "000004")
    for left in (folder / "credit", folder / "strategies"):
        shutil.rmtree(left, ignore_errors=True)
    (folder / ".lock").unlink()
    manifest = folder / "checkpoints" / "000002" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"sha256": {}, "tensors": {}}))
    return folder


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a word for each token."""
    folder.mkdir(parents=True)
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
    made.pre_tokenizer = Split(" ", "removed")

    made.save(str(folder / "tokenizer.json"))
