"""Model cards: foreign text stays text, whatever it spells, and metadata is what a hub reads."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from marl.core.config import Sampling
from marl.export.generation_config import select_generation_role, transformers_generate_kwargs
from marl.export.markdown import CARD_FILE, escape_inline_markdown, fenced_block, yaml_front_matter
from marl.export.model_card import ModelCardFacts, write_model_card
from marl.export.saved_policy import SavedPolicy
from marl.export.settings_text import non_default_settings
from marl.runs.run_folder import RunFolder
from marl.runs.run_format import FORMAT
from marl.scenario.load import load, validate
from tests.support.recorded_runs import HOSTILE, kuhn_run

EVIL = (
    f"---\nlicense: mit\n---\n# Title\n| a | b |\n|---|---|\n```\n<b>x</b>\n~~~\n[link](http://evil.example) {HOSTILE}"
)
ALLOWED = frozenset(
    (
        *("h1", "h2", "p", "pre", "code", "ul", "li", "img"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    )
)


class Rendered(HTMLParser):
    """A card as a hub shows it: its elements and its text."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def facts(run: Path, folder: Path, **more: object) -> ModelCardFacts:
    learnt = SavedPolicy(run, "actor", 2, folder, "AutoModelForCausalLM", None)
    return ModelCardFacts(learnt, learnt, RunFolder(run).scenario(), "player", "somebody/kuhn")


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    run = kuhn_run(tmp_path / "x](http:y) | <script>1", said=EVIL)
    settings = yaml.safe_load((run / "scenario.yaml").read_text())
    settings["roles"]["player"]["instructions"] = EVIL.replace("{{", "").replace("}}", "")
    (run / "scenario.yaml").write_text(yaml.safe_dump(settings))
    (run / "environment.json").write_text(json.dumps({"format": FORMAT, "machine": EVIL, "packages": {"torch": EVIL}}))
    with (run / "metrics.jsonl").open("a") as rows:
        rows.write(json.dumps({"step": 2, f"eval/{EVIL}/win": 0.5}) + "\n")
    write_model_card(facts(run, tmp_path), tmp_path)
    card = ModelCard.load(tmp_path / CARD_FILE)
    assert "license" not in card.data.to_dict()
    shown = Rendered(card.text)
    assert {tag for tag, _ in shown.elements} <= ALLOWED
    assert [attributes["src"] for tag, attributes in shown.elements if tag == "img"] == ["curves.png"]
    assert shown.text.count('<img src=x onerror="window.broken=1"><script>window.broken=1</script>') >= 4
    assert "\x1b" not in card.text
    assert "\u202e" not in card.text
    assert shown.text.count("\nTitle") == 0
    headings = [line for line in card.text.splitlines() if re.match("# ", line)]
    assert headings[0].startswith("# actor of x\\](http:y) \\| &lt;script&gt;1")


def test_pieces_of_markdown_hold_what_they_are_given() -> None:
    for text in (EVIL, "a`b``c", "*x* _y_ ~z~ $1$ ^2^ @you #3 !"):
        assert (
            Rendered(escape_inline_markdown(text)).text.split()
            == re.sub("\x1b", r"\\x1b", text).replace("\u202e", "\\u202e").replace("\u202c", "\\u202c").split()
        )
        fenced = Rendered(fenced_block(text))
        assert [tag for tag, _ in fenced.elements] == ["pre", "code"]
        assert "Title" not in text or "# Title" in fenced.text
    values: dict[str, object] = {"tags": ["---", "a: b", EVIL]}
    *_, data, rest = yaml_front_matter(values).split("---\n", 1)[1].rpartition("---")
    assert rest == "" or yaml.safe_load(data) == values


def test_metadata_names_what_is_on_a_hub_and_nothing_of_this_machine(tmp_path: Path) -> None:
    run = kuhn_run(tmp_path / "run")
    settings = yaml.safe_load((run / "scenario.yaml").read_text())
    model = {"kind": "pretrained", "path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    secret = str(tmp_path / "models" / "secret-place")
    for path, base in ((model["path"], model["path"]), ("./models", None), ("~/models", None), (secret, None)):
        settings["policies"]["actor"]["model"] = model | {"path": path}
        (run / "scenario.yaml").write_text(yaml.safe_dump(settings))
        write_model_card(facts(run, tmp_path), tmp_path)
        card = ModelCard.load(tmp_path / CARD_FILE)
        assert card.data.to_dict().get("base_model") == base
        assert str(tmp_path) not in card.content
    assert ".../secret-place" in card.content
    assert 'from_pretrained("somebody/kuhn")' in card.content


def test_settings_are_shown_where_they_differ_from_defaults() -> None:
    scenario = load(Path("scenarios/kuhn_self_play.yaml"), [])
    shown = non_default_settings(scenario.schedule)
    assert shown == {"steps": 2000, "groups": 128, "group_size": 2, "threads": 1}
    learner = scenario.policies["actor"].learner
    assert learner is not None
    shown = non_default_settings(learner)
    assert (shown["kind"], shown["lr"], shown["magnet"]) == ("grpo", 2e-3, {"coefficient": 0.15, "refresh": 200})
    assert "minibatches" not in shown


def test_sampling_becomes_settings_of_generate() -> None:
    assert transformers_generate_kwargs(Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=9, stop=("a",))) == {
        **{"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_new_tokens": 9},
        "stop_strings": ["a"],
    }
    assert transformers_generate_kwargs(Sampling(temperature=0, top_k=3)) == {"do_sample": False, "max_new_tokens": 256}


def test_of_several_roles_the_one_that_learns_comes_first() -> None:
    role = {"kind": "player", "policy": "actor"}
    scenario = validate(
        {
            "game": {"kind": "kuhn_poker"},
            "seats": {"player_0": "still", "player_1": "learning"},
            "roles": {"still": role | {"trainable": False}, "learning": role},
            "policies": {"actor": {"model": {"kind": "tiny"}, "learner": {"kind": "grpo"}}},
            "schedule": {"steps": 1, "groups": 1, "group_size": 2},
        }
    )
    assert select_generation_role(scenario, "actor", None) == "learning"
    assert select_generation_role(scenario, "actor", "still") == "still"
    with pytest.raises(ValueError, match="--role stil: policy 'actor' does not speak for it; did you mean 'still'"):
        select_generation_role(scenario, "actor", "stil")
