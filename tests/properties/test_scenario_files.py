"""Scenario files: any text, and any change of a shipped one, is a scenario or an error that says what is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hostile_text import CHARACTERS, texts, tried, within
from hypothesis import strategies as st

from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import Scenario
from tests.support.paths import SCENARIOS

FILES = sorted(SCENARIOS.rglob("*.yaml"))
SECONDS = 4.0
"""For one file, on a busy machine; most take hundredths."""
_VALUES = (
    *("", "null", "true", "yes", "-1", "0", "1e400", ".nan", ".inf", "-0.0", "99999999999999999999999999", "0o17"),
    *("1_000", "12:30:45", "2024-01-01", "!!python/object:os.system x", "!!binary aGk=", "!!set {a, b}"),
    *("!!timestamp 2024-01-01", "&a [*a]", "*nothing", "<<: {}", "[]", "{}", "[[[[[[]]]]]]", "{a: {b: {c: {}}}}", "'"),
    *('"', "|", ">", "- x", "? x", "%YAML 9", "---", "...", "@x", "`x`", "#", "a: b: c", "kuhn_poker", "{kind: team}"),
    *("{kind: nothing}", "{kind: 'no.such:Thing'}", "{kind: 3}", "[kind, x]", "{file: /nowhere/at/all}"),
    *(
        *("{{ 10**(10**10) }}", "'{{ x'", "'a' * 10**10"),
        "(" * 2000,
        "[" * 2000,
        "{a: " * 2000,
        "x" * 5000,
        *("\ud800", "\x00", "\u202e", "\t"),
    ),
    *("{file: /etc}", "{size: 10000000000}", "10000000000", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", "${HOME}", "~", "'%s'"),
    *("{1: 2}", "{[a]: b}"),
)
_LINES = (
    *("x: &x [1, 2]", "<<: {steps: 3}", "? [a, b]", "- a", "    deep: 1", "game: {kind: nim}", "roles:", "  \tx: 1"),
    *("credit: 7", "}", "*x: 1"),
)


def test_any_text_is_a_scenario_or_an_error(tmp_path: Path, factor: int) -> None:
    file = tmp_path / "scenario.yaml"

    @tried(
        factor * 60,
        st.one_of(texts(), st.text(CHARACTERS), st.lists(st.sampled_from([*_LINES, *_VALUES])).map("\n".join)),
    )
    def _(text: str) -> None:
        attempt(file, text)


def test_any_bytes_are_a_scenario_or_an_error(tmp_path: Path, factor: int) -> None:
    file = tmp_path / "scenario.yaml"

    @tried(factor * 30, st.binary())
    def _(data: bytes) -> None:
        file.write_bytes(data)
        outcome(file)


def test_any_change_of_a_scenario_is_a_scenario_or_an_error(tmp_path: Path, factor: int) -> None:
    file = tmp_path / "scenario.yaml"

    @tried(factor * 50, st.sampled_from(FILES), st.integers(0, 2**32), st.integers(1, 4))
    def _(shipped: Path, seed: int, changes: int) -> None:
        rng, lines = random.Random(seed), shipped.read_text(encoding="utf-8").splitlines()
        for _ in range(changes):
            change(rng, lines)
        attempt(file, "\n".join(lines))


def test_any_override_makes_a_scenario_or_an_error(factor: int) -> None:
    paths = st.lists(
        st.sampled_from(
            [
                *("game", "roles", "policies", "credit", "schedule", "seats", "kind", "steps", "solver", "", "actor"),
                *("learner", "0"),
            ]
        ),
        min_size=1,
        max_size=4,
    )

    @tried(factor * 30, st.sampled_from(FILES), paths.map(".".join), st.one_of(st.sampled_from(_VALUES), texts(most=3)))
    def _(shipped: Path, dotted: str, value: str) -> None:
        outcome(shipped, f"{dotted}={value}")


def change(rng: random.Random, lines: list[str]) -> None:
    """Change one line at random: delete, copy, indent, cut, add, or put another value in."""
    place = rng.randrange(len(lines)) if lines else 0
    line = lines[place] if lines else ""
    key, colon, _ = line.partition(":")
    ways = (
        [],
        [line, line],
        [f"  {line}"],
        [line[2:]],
        [line, rng.choice(_LINES)],
        [f"{key}{colon} {rng.choice(_VALUES)}"],
        [f"{key}{colon} {rng.choice(_VALUES)}"],
        [line[: rng.randint(0, len(line))]],
        [line.replace(rng.choice(line or "x"), rng.choice(("", "{", "'", "\t", "é")), 1)],
        [f"{key}x{colon}{line.partition(':')[2]}"],
    )
    lines[place : place + 1] = rng.choice(ways)


def attempt(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    outcome(file)


def outcome(file: Path, *overrides: str) -> None:
    """Load a scenario, which may be refused by a ScenarioError alone, soon and briefly."""
    message, scenario = "", None
    with within(30.0, SECONDS):
        try:
            scenario = load(file, overrides)
        except ScenarioError as error:
            message = str(error)
    assert isinstance(scenario, Scenario) or 0 < len(message) < 100_000


@pytest.mark.parametrize(
    "text",
    [
        *("&a [*a]", "&a {b: *a}", "{a: &x {<<: *x}}"),
        "a: " + "[" * 9999,
        "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]" for i in range(12)),
    ],
    ids=["list in itself", "mapping in itself", "merge of itself", "deep", "billion laughs"],
)
def test_a_file_that_grows_when_it_is_read_is_refused(text: str, tmp_path: Path) -> None:
    attempt(tmp_path / "scenario.yaml", text)
