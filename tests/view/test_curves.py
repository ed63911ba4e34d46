"""Curves in text and as a picture."""

import json
import re
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from marl.core.errors import RunFolderError
from marl.scenario.load import ScenarioError
from marl.view.colours import EDGE_COLOURS, line_style_by_name
from marl.view.curve_data import CurvePoint, CurveSelection, select_curves
from marl.view.curves import plot_curves, sparkline, text_chart
from marl.view.page.assets import read_page_asset
from marl.view.pictures import curves_figure, save_curves


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([3.0], "▁"), ([0.0, 0.0], "▁▁"), ([-2.0, -2.0, -2.0], "▁▁▁"), ([0, 7], "▁█"), ([-1, 0, 1], "▁▅█")],
)
def test_a_spark_spans_its_values(values: list[float], drawn: str) -> None:
    assert sparkline(values, 10) == drawn


def test_a_spark_is_no_wider_than_asked() -> None:
    assert sparkline([float(i) for i in range(100)], 8) == "▁▂▃▄▅▆▇█"


def test_a_chart_stands_on_zero() -> None:
    lines = text_chart([(0, 2.0), (5, 1.0), (10, 0.0)], 60, 2).split("\n")
    assert lines == ["   2.000 ┤█  ", "   1.000 ┤██ ", "         └───", "          0 10"]


@pytest.mark.parametrize("values", [[0.0], [2.5], [-2.5], [1.0] * 5, [0.0] * 5, [-1.0] * 5, [-3.0, -1.0], [-1.0, 1.0]])
def test_a_chart_of_any_values_has_its_size_and_a_scale_that_holds_them(values: list[float]) -> None:
    lines = text_chart(list(enumerate(values)), 40, 5).split("\n")
    assert len(lines) == 7
    top = float(lines[0].split("┤")[0])
    assert top >= max(values)
    assert all(len(line) == 10 + len(values) for line in lines[:6])


def test_a_chart_of_one_value_names_one_step() -> None:
    assert text_chart([(3, 1.0)]).split("\n")[-1].strip() == "3"


def run(folder: Path, *rows: dict[str, float]) -> Path:
    folder.mkdir()
    (folder / "scenario.yaml").write_text("{}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_plot_writes_a_picture_and_draws_the_main_curve_in_text(tmp_path: Path) -> None:
    rows = [{"step": i, "policy/a/loss": 2.0, "eval/nashconv": 1 / (i + 1), "eval/legal_mass": 1.0} for i in range(5)]
    first, second = run(tmp_path / "first", *rows), run(tmp_path / "second", *rows[:2])
    text = plot_curves([first, second], [], None)
    assert text.startswith("eval/nashconv\n")
    assert (first / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert text.endswith(str(first / "curves.png"))


def test_plot_makes_the_folders_of_its_picture_and_writes_the_format_of_its_name(tmp_path: Path) -> None:
    folder = run(tmp_path / "r", {"step": 0, "eval/legal_mass": 1.0})
    out = tmp_path / "deep" / "er" / "one.svg"
    assert plot_curves([folder], ["eval/legal_mass"], out).endswith(str(out))
    assert out.read_text().startswith("<?xml")
    with pytest.raises(RunFolderError, match=r"scenario\.yaml/x\.png cannot be written"):
        plot_curves([folder], [], folder / "scenario.yaml" / "x.png")


def test_plot_says_what_there_is_to_draw(tmp_path: Path) -> None:
    folder = run(tmp_path / "r", {"step": 0, "eval/nashconv": 1.0})
    with pytest.raises(ScenarioError, match=r"--metric loss: not in these runs; they have: eval/nashconv"):
        plot_curves([folder], ["loss"], None)
    with pytest.raises(ScenarioError, match=r"--out x\.bmp: no such format '\.bmp'; choices: \.pdf, \.png, \.svg"):
        plot_curves([folder], [], Path("x.bmp"))
    with pytest.raises(ScenarioError, match="no run here"):
        plot_curves([tmp_path], [], None)
    with pytest.raises(ScenarioError, match="nothing to plot yet"):
        plot_curves([run(tmp_path / "empty")], [], None)


def test_success_returns_and_losses_come_first_then_exact_figures(tmp_path: Path) -> None:
    row = {
        "step": 1,
        "policy/a/loss": 1.0,
        "eval/nashconv": 1.0,
        "time/step": 2.0,
        "episode/return/judge": 0.0,
        "episode/return/solver": 0.5,
        "eval/held_out/success": 0.5,
        "eval/held_out/success_low": 0.4,
        "eval/held_out/success_high": 0.6,
        "eval/held_out/episodes": 9.0,
    }
    out = tmp_path / "all.svg"
    plot_curves([run(tmp_path / "r", row)], [], out)
    titles = re.findall("<!-- (.*/.*) -->", out.read_text())
    assert titles == ["eval/held_out/success", "episode/return/solver", "policy/a/loss", "eval/nashconv"]


def test_what_is_too_much_for_one_picture_is_named(tmp_path: Path) -> None:
    row = {"step": 1} | {f"episode/return/agent_{i:02}": 1.0 for i in range(15)}
    text = plot_curves([run(tmp_path / "r", row)], [], tmp_path / "many.svg")
    omitted = ", ".join(f"episode/return/agent_{i}" for i in (12, 13, 14))
    assert f"not drawn, name them by --metric: {omitted}\n" in text


def test_runs_whose_folders_are_called_alike_are_both_drawn(tmp_path: Path) -> None:
    runs = [tmp_path / place / "run" for place in "ab"]
    for folder in runs:
        folder.parent.mkdir()
        run(folder, {"step": 0, "x": 1.0})
    plot_curves(runs, ["x"], tmp_path / "both.svg")
    assert all(f"<!-- {folder} -->" in (tmp_path / "both.svg").read_text() for folder in runs)


def test_a_run_has_one_colour_in_all_panels_and_there_is_one_legend() -> None:
    points = [CurvePoint(0, 1.0), CurvePoint(1, 2.0)]
    figure: Any = curves_figure({"loss": {"a": [], "b": points}, "success": {"a": points, "b": points}})
    (legend,) = figure.legends
    colours = {line.get_label(): line.get_color() for line in legend.get_lines()}
    assert colours.keys() == {"a", "b"}
    first, second = ([line.get_color() for line in axis.lines if len(line.get_xdata())] for axis in figure.axes)
    assert first == [colours["b"]]
    assert second == [colours["a"], colours["b"]]
    assert not any(axis.get_legend() for axis in figure.axes)


def test_an_interval_is_a_band_around_its_curve() -> None:
    figure: Any = curves_figure({"success": {"a": [CurvePoint(0, 0.5, 0.4, 0.7), CurvePoint(9, 0.6, 0.5, 0.8)]}})
    (band,) = figure.axes[0].collections
    corners = band.get_paths()[0].vertices
    assert {(x, y) for x, y in corners} == {(0, 0.4), (0, 0.7), (9, 0.5), (9, 0.8)}
    assert not figure.legends


def test_an_exact_figure_that_does_not_count_is_drawn_hollow_and_dashed() -> None:
    figure: Any = curves_figure(
        {"eval/nashconv": {"a": [CurvePoint(0, 6.0, valid=False), CurvePoint(1, 0.5), CurvePoint(2, 0.4)]}}
    )
    dashed, hollow, sound = figure.axes[0].lines
    assert (dashed.get_linestyle(), list(dashed.get_ydata())) == ("--", [6.0, 0.5, 0.4])
    assert (hollow.get_markerfacecolor(), list(hollow.get_ydata())) == ("white", [6.0])
    assert list(sound.get_ydata())[1:] == [0.5, 0.4]
    assert isnan(sound.get_ydata()[0])
    assert [line.get_label() for line in figure.legends[0].get_lines()] == ["does not count: legal mass below 0.98"]


def test_the_text_says_how_many_evaluations_do_not_count(tmp_path: Path) -> None:
    rows = [{"step": i, "eval/nashconv": v, "eval/legal_mass": m} for i, (v, m) in enumerate([(0.5, 1.0), (6.0, 0.0)])]
    text = plot_curves([run(tmp_path / "run", *rows)], ["eval/nashconv"], None)
    assert "6.000" in text
    assert "1 of 2 do not count: legal mass below 0.98\n" in text


def test_a_single_point_is_marked_and_many_panels_are_drawn(tmp_path: Path) -> None:
    figure = curves_figure({name: {"run": [CurvePoint(0, -1.0)]} for name in "abcde"})
    assert [axis.lines[0].get_marker() for axis in figure.axes[:5]] == ["o"] * 5
    save_curves(tmp_path / "c.png", {name: {"run": [CurvePoint(0, -1.0)]} for name in "abc"})
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_a_reward_that_was_not_paid_is_a_gap_and_an_evaluation_that_was_not_made_is_none(tmp_path: Path) -> None:
    rows = [{"step": step, "role/solver/turns": 1.0} for step in range(1, 5)]
    rows[0] |= {"role/solver/reward/correct": 1.0, "eval/random/win": 0.5}
    rows[2] |= {"role/solver/reward/correct": 0.5}
    rows[3] |= {"eval/random/win": 0.6}
    (tmp_path / "scenario.yaml").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves, _ = select_curves([tmp_path], CurveSelection(["role/solver/reward/correct", "eval/random/win"]))
    (reward,), (win,) = (curves[name].values() for name in ("role/solver/reward/correct", "eval/random/win"))
    assert [(point.step, point.measured) for point in reward] == [(1, True), (2, False), (3, True), (4, False)]
    assert [point.step for point in win] == [1, 4]
    figure: Any = curves_figure(curves)
    drawn = figure.axes[0].lines[0].get_ydata()
    assert [isnan(value) for value in drawn] == [False, True, False, True]


def test_a_run_and_a_role_keep_their_colour_whatever_is_drawn(tmp_path: Path) -> None:
    runs = {}
    for name in ("a", "b"):
        runs[name] = tmp_path / name
        runs[name].mkdir()
        row = {"step": 1, "role/solver/turns": 1.0, "role/critic/turns": 1.0}
        (runs[name] / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    every = line_style_by_name(["a", "b", "a: critic", "a: solver", "b: solver"], runs)
    assert line_style_by_name(["b"], runs)["b"] == every["b"]
    assert (
        line_style_by_name(["solver"], runs)["solver"].colour == every["a: solver"].colour == every["b: solver"].colour
    )
    assert every["a: solver"].dash != every["b: solver"].dash
    assert every["a"].colour != every["b"].colour
    assert every["b"].runs == ["b"]
    assert line_style_by_name(["a, b"], runs)["a, b"].runs == ["a", "b"]


def test_an_edge_has_the_same_colour_on_the_page_and_in_a_picture() -> None:
    on_page = re.findall(r'^  (\w+): \["(#\w+)", "', read_page_asset("words.js").decode(), re.MULTILINE)
    assert dict(on_page) == EDGE_COLOURS


def test_a_picture_for_a_paper_is_a_vector_as_wide_as_a_column_with_the_legend_beside_the_curves(
    tmp_path: Path,
) -> None:
    rows = [{"step": i, "role/solver/tokens": float(i), "eval/nashconv": 1.0 / (i + 1)} for i in range(5)]
    runs = [run(tmp_path / name, *rows) for name in ("first", "second")]
    text = plot_curves(runs, ["role/solver/tokens"], None, style="paper")
    assert text.endswith(str(runs[0] / "curves.pdf"))
    # ICML: a column is 3.25 inches, both are 6.75; 72 points an inch.
    pdf = (runs[0] / "curves.pdf").read_bytes()
    assert re.findall(rb"/MediaBox \[ 0 0 (\d+)", pdf) == [b"234"]
    assert b"/Type3" not in pdf
    plot_curves(runs, ["role/solver/tokens", "eval/nashconv"], tmp_path / "two.svg", style="paper")
    svg = (tmp_path / "two.svg").read_text()
    assert 'width="486pt"' in svg
    assert {"tokens", "step", "first", "second"} <= set(re.findall("<!-- (.*?) -->", svg))
    with pytest.raises(ScenarioError, match=r"--out x\.png: no format of --style paper '\.png'; choices: \.pdf, \.svg"):
        plot_curves(runs, [], Path("x.png"), style="paper")


def test_no_legend_lies_over_a_curve_and_no_covered_line_is_hidden() -> None:
    points = [CurvePoint(step, 1.0 / (1 + step)) for step in range(10)]
    other = [CurvePoint(step, 1.0) for step in range(10)]
    curves = {"loss": {"under": points, "over": points, "apart": other}}
    for style in ("screen", "paper"):
        figure: Any = curves_figure(curves, style=style)
        figure.draw_without_rendering()
        (legend,), (axis,) = figure.legends, figure.axes
        assert legend.get_window_extent().y1 < axis.get_tightbbox().y0
        under, over, apart = (line.get_linewidth() for line in axis.lines)
        assert under > 2 * over
        assert over == apart
