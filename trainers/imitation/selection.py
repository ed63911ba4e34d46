"""Selection of the samples that are imitated."""

from collections.abc import Hashable, Sequence

from marl.core.types import Sample
from marl.trainers.imitation.options import SampleSelection
from marl.trainers.preferences.pairs import mean_measure


def select_samples(samples: Sequence[Sample], selection: SampleSelection) -> list[Sample]:
    """Return the samples admitted by `selection`, in their order. Ties go to the first."""
    if (minimum := selection.at_least) is not None:
        samples = [sample for sample in samples if mean_measure((sample,), selection.by) >= minimum]
    if selection.best is None:
        return list(samples)
    groups: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in samples:
        if selection.by == "paid":
            # All turns of an episode have its reward, so whole episodes of an agent are rivals.
            contest, rival = sample.agent, sample.id[0]
        else:
            contest, rival = (sample.role, sample.prompt_ids), sample.id
        groups.setdefault((sample.group, contest), {}).setdefault(rival, []).append(sample)
    selected: set[int] = set()
    for rivals in groups.values():
        ranked = sorted(rivals.values(), key=lambda rival: -mean_measure(rival, selection.by))
        for rival in ranked[: selection.best]:
            selected.update(map(id, rival))
    return [sample for sample in samples if id(sample) in selected]


def distinct_completions(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first of the samples with the same prompt and completion."""
    first: dict[Hashable, Sample] = {}
    for sample in samples:
        first.setdefault((sample.prompt_ids, sample.token_ids), sample)
    return list(first.values())
