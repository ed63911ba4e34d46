"""Checks of a scenario's placement: learners in processes of their own, and servers that take weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marl.core.config import choices_hint

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario


def placement_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error if no policy has a learner, and for each learner or engine that the cluster cannot hold."""
    learners = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
    if not learners:
        yield f"policies: nothing to train: give one of {', '.join(scenario.policies)} a learner"
    cluster = scenario.cluster
    for name in cluster.learners if cluster else ():
        if name not in learners:
            yield f"cluster.learners: {name!r} is no policy with a learner; {choices_hint(name, learners)}"
        elif cluster and (obstacle := learners[name].data_parallel_error(cluster.data_parallel)):
            yield f"cluster.learners.{name}: {obstacle}"
    yield from _server_owner_errors(scenario)


def _server_owner_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each server that would get weights from several simulators, or of several policies.

    Each of them would replace the weights that another one has just sent.
    """
    simulators = scenario.cluster.simulators if scenario.cluster else 1
    owners: dict[str, tuple[str, object]] = {}
    for name, policy in scenario.policies.items():
        engine, addresses = policy.engine, policy.engine.exclusive_addresses
        remedy = "engine.frozen: true for a policy that does not learn, or kind: vllm"
        if addresses and simulators > len(addresses):
            yield (
                f"cluster.simulators: {simulators}, but policies.{name}.engine.base_url names {len(addresses)} "
                f"server{'s' * (len(addresses) > 1)}, each of which takes new weights from one simulator only; choose "
                f"at most {len(addresses)}, or name more servers, or {remedy}"
            )
        # Policies with adapters on one base share an engine, as do frozen policies with equal settings.
        base = policy.model.shared_base() if policy.model else None
        key: object = (base or policy.model, engine) if base or not policy.learner else name
        for address in addresses:
            other, other_key = owners.setdefault(address, (name, key))
            if other_key != key:
                yield (
                    f"policies.{name}.engine.base_url: {address} holds the weights of policy {other!r}; choose another "
                    f"server, or {remedy}"
                )
