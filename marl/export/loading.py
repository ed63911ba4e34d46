"""Code with which an exported folder is loaded, for cards."""

from __future__ import annotations

import json
from pathlib import Path

from marl.export.examples import Exchange
from marl.export.generation import FILE
from marl.export.markdown import Markup, block
from marl.export.weights import Learnt
from marl.types import Message

_ASKED = (Message("user", "..."),)
_NO_LANGUAGE_MODEL = "It is no language model. It is loaded by marl alone: `path` of its model in a scenario."


def snippet(written: Learnt, place: str, folder: Path, exchange: Exchange | None) -> Markup:
    """Return Python that loads what is exported as `place` and has it answer; `folder`: where it is written now."""
    if not written.loader:
        return Markup(_NO_LANGUAGE_MODEL)
    name, package = json.dumps(place), "peft" if written.adapter else "transformers"
    tokenizer = "AutoTokenizer, GenerationConfig" if written.adapter else "AutoTokenizer"
    lines = [
        *([f"from peft import {written.loader}"] if package == "peft" else []),
        f"from transformers import {tokenizer}" + ("" if package == "peft" else f", {written.loader}"),
        "",
        f"model = {written.loader}.from_pretrained({name})",
        f"tokenizer = AutoTokenizer.from_pretrained({name})",
        *_generating(written, name, folder, exchange),
    ]
    return block("\n".join(lines), "python")


def _generating(written: Learnt, name: str, folder: Path, exchange: Exchange | None) -> list[str]:
    messages = exchange.messages if exchange else _ASKED
    if written.loader == "AutoModelForSequenceClassification":
        return ['inputs = tokenizer("...", return_tensors="pt")', "print(model(**inputs).logits)"]
    options = ["tokenizer=tokenizer"]
    if written.adapter and (folder / FILE).is_file():
        options.append(f"generation_config=GenerationConfig.from_pretrained({name})")
    return [
        *_prompt(folder, messages),
        f"output = model.generate(**inputs, {', '.join(options)})",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]


def _prompt(folder: Path, messages: tuple[Message, ...]) -> list[str]:
    """Return lines that make `inputs` of messages; without a chat template they are lines of one text, as in training.

    JSON's texts are Python's, too; nothing but ASCII stands in them.
    """
    if not _has_template(folder):
        text = "\n".join(message.content for message in messages) + "\n"
        return [f'inputs = tokenizer({json.dumps(text)}, return_tensors="pt")']
    shown = ", ".join(json.dumps(message._asdict()) for message in messages)
    options = 'add_generation_prompt=True, return_dict=True, return_tensors="pt"'
    return [f"messages = [{shown}]", f"inputs = tokenizer.apply_chat_template(messages, {options})"]


def _has_template(folder: Path) -> bool:
    settings = folder / "tokenizer_config.json"
    inside = settings.is_file() and json.loads(settings.read_text()).get("chat_template") is not None
    return inside or (folder / "chat_template.jinja").is_file()
