"""An episode's graph as a picture: every edge of every kind is an arrow, and hostile texts are shown as they are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from marl.core.graph import Trajectory, write_trajectories
from marl.core.types import Completion
from marl.scenario.load import ScenarioError
from marl.view.colours import NEGATIVE_COLOUR, POSITIVE_COLOUR
from marl.view.graph_picture import check_picture_suffix, draw_graph
from marl.view.page.assets import read_page_asset
from tests.support.command_line import marl_output
from tests.support.handmade_episodes import make_episode


def fork_and_join() -> Trajectory:
    """One asks two, who are heard by a fourth; the first also decided that the fourth speaks."""
    whole, graph = make_episode("e.0", ("ann", "bob", "cat", "dan")), Trajectory(make_episode("e.0", ("ann",)).deal, "")
    said = ["plan $x$ <b>", "left", None, "a long answer that does not fit"]
    turns = [replace(turn, action=action) for turn, action in zip(whole.turns, said, strict=True)]
    ids = [turn.id for turn in turns]
    reads = {0: {}, 1: {0: {"told"}}, 2: {0: {"heard", "posed"}}, 3: {0: {"gated"}, 1: {"heard"}, 2: {"heard"}}}
    for place, turn in enumerate(turns):
        kinds = {ids[source]: frozenset(names) for source, names in reads[place].items()}
        graph.add(turn, [*kinds], kinds)
    return graph


def test_every_edge_of_every_kind_is_an_arrow(tmp_path: Path) -> None:
    file = tmp_path / "graph.svg"
    draw_graph(fork_and_join(), file)
    arrows = set(re.findall(r'id="(\d+-\d+-\w+)"', file.read_text()))
    assert arrows == {"0-1-told", "0-2-heard", "0-2-posed", "0-3-gated", "1-3-heard", "2-3-heard"}


def test_a_box_has_the_colour_and_the_number_of_its_advantage_and_a_verifiers_scores(tmp_path: Path) -> None:
    episode, whole = Trajectory(make_episode("e.0", ("ann",)).deal, ""), make_episode("e.0", ("ann", "bob", "check"))
    verdict = Completion('{"scores": {"correct": 1.0}, "why": {}}', (), (), (), "stop")
    for turn in whole.turns:
        episode.add(replace(turn, completion=verdict, action=verdict.text) if turn.agent == "check" else turn, [])
    ann, bob, _ = (turn.id for turn in episode.turns)
    file = tmp_path / "graph.svg"
    draw_graph(episode, file, {ann: 0.5, bob: -1.0}, {"player": "#d55e00"})
    drawn = file.read_text()
    texts = "\n".join(re.findall("<!-- (.*?) -->", drawn, re.DOTALL)).split("\n")
    assert {"0: a", "+0.5", "1: a", "-1", "2: correct 1", "no credit", "ann"} <= set(texts)
    # The page's opacity of 0.45 over white, by hand: of its orange, and half of it of its blue.
    assert "#f4c28c" in drawn
    assert "#c6dfee" in drawn
    assert "fill: #d55e00" in drawn


def test_advantages_have_the_same_colours_in_a_picture_as_on_the_page() -> None:
    page = read_page_asset("graph.js").decode()
    for colour in (POSITIVE_COLOUR, NEGATIVE_COLOUR):
        channels = ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
        assert f"rgba({channels}, ${{strength}})" in page


def test_the_first_selected_episode_of_a_run_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = tmp_path / "run", tmp_path / "graph.png"
    (run / "trajectories").mkdir(parents=True)
    (run / "scenario.yaml").write_text("{}")
    write_trajectories(run / "trajectories" / "000004.jsonl.zst", [fork_and_join()])
    assert marl_output(monkeypatch, capsys, "show", run, "--graph", file).strip() == str(file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(ScenarioError, match=r"--graph g.gif: no such format '.gif'; choices: .pdf, .png, .svg"):
        check_picture_suffix(Path("g.gif"))
