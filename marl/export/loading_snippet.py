"""Python code on a card that loads the exported folder."""

from __future__ import annotations

import json
from pathlib import Path

from marl.core.types import Message
from marl.export.generation_config import GENERATION_CONFIG
from marl.export.markdown import Markup, fenced_block
from marl.export.prompt_example import PromptExample
from marl.export.saved_policy import SavedPolicy

_ASKED = (Message("user", "..."),)
_NO_LANGUAGE_MODEL = "It is no language model. It is loaded by marl alone: `path` of its model in a scenario."


def loading_snippet(written: SavedPolicy, load_path: str, folder: Path, exchange: PromptExample | None) -> Markup:
    """Return Python that loads the policy from `load_path` and generates an answer. `folder` is the folder being
    written."""
    if not written.loader:
        return Markup(_NO_LANGUAGE_MODEL)
    name, package = json.dumps(load_path), "peft" if written.adapter else "transformers"
    tokenizer = "AutoTokenizer, GenerationConfig" if written.adapter else "AutoTokenizer"
    lines = [
        *([f"from peft import {written.loader}"] if package == "peft" else []),
        f"from transformers import {tokenizer}" + ("" if package == "peft" else f", {written.loader}"),
        "",
        f"model = {written.loader}.from_pretrained({name})",
        f"tokenizer = AutoTokenizer.from_pretrained({name})",
        *_generating(written, name, folder, exchange),
    ]
    return fenced_block("\n".join(lines), "python")


def _generating(written: SavedPolicy, name: str, folder: Path, exchange: PromptExample | None) -> list[str]:
    messages = exchange.messages if exchange else _ASKED
    if written.loader == "AutoModelForSequenceClassification":
        return ['inputs = tokenizer("...", return_tensors="pt")', "print(model(**inputs).logits)"]
    options = ["tokenizer=tokenizer"]
    if written.adapter and (folder / GENERATION_CONFIG).is_file():
        options.append(f"generation_config=GenerationConfig.from_pretrained({name})")
    return [
        *_prompt(folder, messages),
        f"output = model.generate(**inputs, {', '.join(options)})",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]


def _prompt(folder: Path, messages: tuple[Message, ...]) -> list[str]:
    """Return lines that tokenize `messages` as `inputs`, joined by line breaks if the tokenizer has no chat template.

    JSON string literals are valid Python, and `json.dumps` keeps them ASCII.
    """
    if not _has_template(folder):
        text = "\n".join(message.content for message in messages) + "\n"
        return [f'inputs = tokenizer({json.dumps(text)}, return_tensors="pt")']
    literals = ", ".join(json.dumps(message._asdict()) for message in messages)
    options = 'add_generation_prompt=True, return_dict=True, return_tensors="pt"'
    return [f"messages = [{literals}]", f"inputs = tokenizer.apply_chat_template(messages, {options})"]


def _has_template(folder: Path) -> bool:
    settings = folder / "tokenizer_config.json"
    inside = settings.is_file() and json.loads(settings.read_text()).get("chat_template") is not None
    return inside or (folder / "chat_template.jinja").is_file()
