"""Selection of the samples that are imitated."""

from collections.abc import Hashable, Sequence

from marl.core.types import Sample
from marl.trainers.imitation.options import SampleSelection
from marl.trainers.preferences.pairs import mean_reward_or_credit


def select_samples_to_imitate(samples: Sequence[Sample], selection: SampleSelection) -> list[Sample]:
    """Return the samples that `selection` admits, in their order. Among equal measures, earlier ones are preferred."""
    if (minimum := selection.at_least) is not None:
        samples = [sample for sample in samples if mean_reward_or_credit((sample,), selection.by) >= minimum]
    if selection.best is None:
        return list(samples)
    groups: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in samples:
        if selection.by == "paid":
            # `by: paid` compares episodes of an agent, because all turns of an episode have its reward.
            group, entry = sample.agent, sample.id[0]
        else:
            group, entry = (sample.role, sample.prompt_ids), sample.id
        groups.setdefault((sample.group, group), {}).setdefault(entry, []).append(sample)
    selected: set[int] = set()
    for entries in groups.values():
        ranked = sorted(entries.values(), key=lambda entry: -mean_reward_or_credit(entry, selection.by))
        for best_entry in ranked[: selection.best]:
            selected.update(map(id, best_entry))
    return [sample for sample in samples if id(sample) in selected]


def without_duplicate_completions(samples: Sequence[Sample]) -> list[Sample]:
    """Return `samples` without later duplicates: samples with the same prompt and completion as an earlier one."""
    first: dict[Hashable, Sample] = {}
    for sample in samples:
        first.setdefault((sample.prompt_ids, sample.token_ids), sample)
    return list(first.values())
