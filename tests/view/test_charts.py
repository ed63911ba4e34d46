"""Curves in text and as a picture."""

import json
from pathlib import Path

import pytest

from marl.scenario.load import ScenarioError
from marl.view.curves import chart, draw, plot, spark


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([3.0], "▁"), ([0.0, 0.0], "▁▁"), ([-2.0, -2.0, -2.0], "▁▁▁"), ([0, 7], "▁█"), ([-1, 0, 1], "▁▅█")],
)
def test_a_spark_spans_its_values(values: list[float], drawn: str) -> None:
    assert spark(values, 10) == drawn


def test_a_spark_is_no_wider_than_asked() -> None:
    assert spark([float(i) for i in range(100)], 8) == "▁▂▃▄▅▆▇█"


def test_a_chart_stands_on_zero() -> None:
    lines = chart([(0, 2.0), (5, 1.0), (10, 0.0)], 60, 2).split("\n")
    assert lines == ["   2.000 ┤█  ", "   1.000 ┤██ ", "         └───", "          0 10"]


@pytest.mark.parametrize("values", [[0.0], [2.5], [-2.5], [1.0] * 5, [0.0] * 5, [-1.0] * 5, [-3.0, -1.0], [-1.0, 1.0]])
def test_a_chart_of_any_values_has_its_size_and_a_scale_that_holds_them(values: list[float]) -> None:
    lines = chart(list(enumerate(values)), 40, 5).split("\n")
    assert len(lines) == 7
    top = float(lines[0].split("┤")[0])
    assert top >= max(values)
    assert all(len(line) == 10 + len(values) for line in lines[:6])


def test_a_chart_of_one_value_names_one_step() -> None:
    assert chart([(3, 1.0)]).split("\n")[-1].strip() == "3"


def run(folder: Path, *rows: dict[str, float]) -> Path:
    folder.mkdir()
    (folder / "scenario.yaml").write_text("{}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_plot_writes_a_picture_and_draws_the_curve_in_text(tmp_path: Path) -> None:
    rows = [{"step": i, "eval/nashconv": 1 / (i + 1), "eval/legal_mass": 1.0} for i in range(5)]
    first, second = run(tmp_path / "first", *rows), run(tmp_path / "second", *rows[:2])
    text = plot([first, second], [], None)
    assert text.startswith("eval/nashconv\n")
    assert (first / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert text.endswith(str(first / "curves.png"))
    plot([second], ["eval/legal_mass"], tmp_path / "other.png")
    assert (tmp_path / "other.png").is_file()


def test_plot_says_what_there_is_to_draw(tmp_path: Path) -> None:
    folder = run(tmp_path / "r", {"step": 0, "eval/nashconv": 1.0})
    with pytest.raises(ScenarioError, match=r"--metric loss: not in these runs; they have: eval/nashconv"):
        plot([folder], ["loss"], None)
    with pytest.raises(ScenarioError, match="no run here"):
        plot([tmp_path], [], None)
    with pytest.raises(ScenarioError, match="nothing to plot yet"):
        plot([run(tmp_path / "empty")], [], None)


def test_a_single_point_and_many_panels_are_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "c.png", {name: {"run": [(0, -1.0)]} for name in "abc"})
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_an_exact_figure_that_does_not_count_is_not_drawn(tmp_path: Path) -> None:
    rows = [{"step": i, "eval/nashconv": v, "eval/legal_mass": m} for i, (v, m) in enumerate([(0.5, 1.0), (6.0, 0.0)])]
    text = plot([run(tmp_path / "run", *rows)], ["eval/nashconv"], None)
    assert "0.500" in text
    assert "6.000" not in text
