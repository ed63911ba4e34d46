"""Python code on a card that loads the exported folder."""

from __future__ import annotations

import json
from pathlib import Path

from marl.core.types import Message
from marl.export.generation_config import GENERATION_CONFIG
from marl.export.markdown import RawMarkdown, fenced_block
from marl.export.prompt_example import PromptExample
from marl.export.saved_policy import SavedPolicy

_NO_LANGUAGE_MODEL = "It is no language model. It is loaded by marl alone: `path` of its model in a scenario."


def loading_snippet(
    saved_policy: SavedPolicy, load_path: str, folder: Path, example: PromptExample | None
) -> RawMarkdown:
    """Return Python code for a model card: it loads the policy from `load_path` and answers the prompt of `example`.

    `folder` is the exported folder, which is still being written.
    """
    if not saved_policy.loader:
        return RawMarkdown(_NO_LANGUAGE_MODEL)
    # JSON strings are valid Python literals, and `json.dumps` keeps them ASCII.
    name = json.dumps(load_path)
    if saved_policy.adapter:
        imports = [
            f"from peft import {saved_policy.loader}",
            "from transformers import AutoTokenizer, GenerationConfig",
        ]
    else:
        imports = [f"from transformers import AutoTokenizer, {saved_policy.loader}"]
    model = f"model = {saved_policy.loader}.from_pretrained({name})"
    lines = [*imports, "", model, f"tokenizer = AutoTokenizer.from_pretrained({name})"]
    if saved_policy.loader == "AutoModelForSequenceClassification":
        lines += ['inputs = tokenizer("...", return_tensors="pt")', "print(model(**inputs).logits)"]
        return fenced_block("\n".join(lines), "python")
    messages = example.messages if example else (Message("user", "..."),)
    tokenizer = folder / "tokenizer_config.json"
    has_template = tokenizer.is_file() and json.loads(tokenizer.read_text()).get("chat_template") is not None
    if has_template or (folder / "chat_template.jinja").is_file():
        chat = json.dumps([message.to_dict() for message in messages])
        options = 'add_generation_prompt=True, return_dict=True, return_tensors="pt"'
        lines += [f"messages = {chat}", f"inputs = tokenizer.apply_chat_template(messages, {options})"]
    else:
        text = "\n".join(message.content for message in messages) + "\n"
        lines.append(f'inputs = tokenizer({json.dumps(text)}, return_tensors="pt")')
    options = "tokenizer=tokenizer"
    if saved_policy.adapter and (folder / GENERATION_CONFIG).is_file():
        options += f", generation_config=GenerationConfig.from_pretrained({name})"
    lines.append(f"output = model.generate(**inputs, {options})")
    lines.append('print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))')
    return fenced_block("\n".join(lines), "python")
