"""Layers of a model that an adapter's `targets` name, known from the model's modules or from its weights' names.

This module does not import torch, so that misspelt names are found before weights are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from marl.core.config import did_you_mean
from marl.text.linear_patterns import compile_pattern

EMBEDDING_OR_HEAD_NAME = re.compile(r"(^|\.)(embed\w*|wte|wpe|lm_head)$")
"""Name of an embedding or output layer, which PEFT's target `all-linear` leaves out."""


@dataclass(frozen=True)
class LayerNames:
    """Names of a model's modules."""

    paths: Collection[str]
    """Paths of all modules, such as `model.layers.0.self_attn.q_proj`."""
    adaptable: Collection[str]
    """Paths of the modules that can be adapted: linear layers and embeddings."""
    linear: Collection[str]
    """Last names of the linear layers, without the output layer: those of `all-linear`."""


def layer_names_of_weights(shapes: Mapping[str, tuple[int, ...]]) -> LayerNames:
    """Return the names of the modules of a model with weights of these `shapes` (name -> shape)."""
    paths, adaptable, linear = set[str](), set[str](), set[str]()
    for name, shape in shapes.items():
        *modules, weight = name.split(".")
        paths.update([".".join(modules[:count]) for count in range(1, len(modules) + 1)])
        if weight == "weight" and len(shape) == 2:
            layer = ".".join(modules)
            adaptable.add(layer)
            if not EMBEDDING_OR_HEAD_NAME.search(layer):
                linear.add(modules[-1])
    # An output layer that shares its tensor with the embeddings has no weight of its own.
    paths.add("lm_head")
    adaptable.add("lm_head")
    return LayerNames(paths, adaptable, linear)


def adapted_layers(targets: str | Collection[str], layers: LayerNames) -> list[str]:
    """Return the names or paths of the layers that `targets` adapts, for PEFT's `target_modules`.

    A pattern becomes the paths that it matches, because PEFT would match it by a slower engine.

    Raises:
        ValueError: if a target matches no layer, or matches a layer that cannot be adapted.
    """
    if targets == "all-linear":
        return sorted(layers.linear)
    listed = ", ".join(sorted(layers.linear))
    choices = f"choices: {listed}, or all-linear; also the output's and the embeddings, paths, and patterns"
    adapted: set[str] = set()
    for target in [targets] if isinstance(targets, str) else targets or [""]:
        # As in PEFT, a pattern matches a full path, and a listed name matches the end of a path.
        if isinstance(targets, str):
            matches = list(filter(compile_pattern(target).fullmatch, layers.paths))
        else:
            matches = [path for path in layers.paths if f".{path}".endswith(f".{target}")]
        if not matches and target in layers.linear:
            raise ValueError(f"targets: {target!r}, a pattern, matches no full path; write [{target}]; {choices}")
        if not matches:
            hint = did_you_mean(target, layers.linear)
            raise ValueError(f"targets: no layer is called {target!r}; {hint}{choices}")
        if unable := sorted(set(matches) - set(layers.adaptable)):
            raise ValueError(f"targets: {target!r} means {', '.join(unable[:3])}, which cannot be adapted; {choices}")
        adapted.update(matches if isinstance(targets, str) else [target])
    return sorted(adapted)
