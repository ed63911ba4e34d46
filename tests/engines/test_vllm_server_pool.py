"""Several servers of vLLM: requests are balanced, go elsewhere when a server dies, and each server has one owner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

from marl.core.errors import EngineError, UserNotice
from marl.engines.vllm.core import VLLMRequest
from marl.engines.vllm.server_pool import VLLMServerPool
from marl.engines.vllm.server_settings import VLLMServer
from marl.scenario.load import ScenarioError, validate
from tests.support.run_processes import kuhn_scenario
from tests.support.vllm_stand_ins import StandIn, stand_ins

pytestmark = pytest.mark.xdist_group("vllm")
WITHIN_S = 30.0


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    with stand_ins(2) as started:
        yield started


def pool(servers: list[StandIn], **more: Any) -> VLLMServerPool:
    urls = [server.url for server in servers]
    return VLLMServerPool(VLLMServer.model_validate({"base_url": urls, "backoff_s": 0.01, **more}), 9)


def asked(connected: VLLMServerPool, *names: str, adapter: LoRARequest | None = None) -> None:
    for name in names:
        params = SamplingParams(max_tokens=1, logprobs=0, detokenize=False)
        connected.queue_request(VLLMRequest(name, (1, 2), params, "", adapter))


def answered(connected: VLLMServerPool, count: int) -> list[str]:
    outputs, until = list[str](), time.monotonic() + WITHIN_S
    while len(outputs) < count:
        assert time.monotonic() < until, "an answer is overdue"
        outputs += [output.request_id for output in connected.step(0.05)]
    return sorted(outputs)


def load_weights(connected: VLLMServerPool, content: str) -> None:
    with connected.create_transfer_folder() as folder:
        (Path(folder) / "model.safetensors").write_text(content)
        connected.overwrite_all_weights(folder)


def wait_until_received(server: StandIn, count: int) -> None:
    for _ in range(count):
        assert server.received.acquire(timeout=WITHIN_S)


def test_each_request_goes_to_the_server_with_the_fewest_open_ones(servers: list[StandIn]) -> None:
    connected = pool(servers)
    load_weights(connected, "first")
    assert servers[0].version == servers[1].version != "default"
    asked(connected, "a", "b", "c", "d")
    for server in servers:
        wait_until_received(server, 2)
    servers[0].resume()
    assert len(answered(connected, 2)) == 2
    # Server 0 has nothing left to do, and server 1 holds two requests back.
    asked(connected, "e", "f")
    assert answered(connected, 2) == ["e", "f"]
    servers[1].resume()
    answered(connected, 2)
    assert [len(server.sampled) for server in servers] == [4, 2]
    connected.close()


@pytest.mark.filterwarnings("ignore::marl.core.errors.UserNotice")
def test_requests_of_a_server_that_dies_go_elsewhere_and_it_gets_the_newest_weights_when_it_is_back(
    servers: list[StandIn], tmp_path: Path
) -> None:
    connected = pool(servers, restart_s=WITHIN_S)
    adapter = LoRARequest("actor.1", 1, str(tmp_path))
    load_weights(connected, "first")
    connected.load_adapter(adapter)
    asked(connected, "a", "b", "c", "d", adapter=adapter)
    for server in servers:
        wait_until_received(server, 2)
    servers[1].resume()
    servers[0].die()
    assert answered(connected, 4) == ["a", "b", "c", "d"]
    assert len(servers[1].sampled) == 4
    load_weights(connected, "second")
    # A request waits for a server while none is left.
    servers[1].die()
    asked(connected, "e", adapter=adapter)
    again = StandIn(servers[0].server_port)
    again.resume()
    assert answered(connected, 1) == ["e"]
    assert again.version == servers[1].version, "the name of the second weights"
    assert again.adapters == servers[1].adapters
    connected.close()
    assert again.adapters == {}
    again.die()


def test_a_server_that_was_restarted_between_two_requests_gets_the_weights_again(servers: list[StandIn]) -> None:
    connected = pool(servers[:1])
    load_weights(connected, "first")
    name, servers[0].version = servers[0].version, "default"
    servers[0].resume()
    asked(connected, "a")
    with pytest.warns(UserNotice, match="sampled with weights 'default', which this run has not sent"):
        assert answered(connected, 1) == ["a"]
    assert servers[0].version == name
    servers[0].version = "marl-of-another-run/1"
    asked(connected, "b")
    with pytest.raises(EngineError, match="has not sent: another run or another engine uses it"):
        answered(connected, 1)
    connected.close()


def test_the_run_ends_when_no_server_answers_for_too_long(servers: list[StandIn]) -> None:
    connected = pool(servers, restart_s=0.0, retries=0)
    for server in servers:
        server.die()
    asked(connected, "a")
    with pytest.raises(EngineError, match=f"{servers[0].url}.*; {servers[1].url}.* gave no answer: ConnectError"):
        answered(connected, 1)
    connected.close()


def server_scenario(simulators: int, **engine: Any) -> dict[str, Any]:
    scenario = kuhn_scenario()
    settings = {"kind": "vllm_server", "base_url": [f"http://10.0.0.{n}:8000" for n in range(1, 4)], **engine}
    scenario["policies"]["actor"] |= {"model": "of/hub", "engine": settings}
    scenario["cluster"] = {"kind": "local", "simulators": simulators}
    return scenario


def test_simulators_divide_the_servers_among_themselves_and_more_simulators_than_servers_are_refused() -> None:
    engine = validate(server_scenario(2)).policies["actor"].engine
    assert isinstance(engine, VLLMServer)
    parts = [engine.for_simulator(index, 2).addresses for index in range(2)]
    assert parts == [["http://10.0.0.1:8000", "http://10.0.0.3:8000"], ["http://10.0.0.2:8000"]]
    with pytest.raises(ScenarioError, match=r"cluster.simulators: 4, but policies.actor.engine.base_url names 3 serv"):
        validate(server_scenario(4))
    with pytest.raises(ScenarioError, match=r"base_url.*names http://10.0.0.1:8000 more than once"):
        validate(server_scenario(1, base_url=["http://10.0.0.1:8000", "http://10.0.0.1:8000/"]))


def test_two_policies_that_learn_do_not_share_a_server() -> None:
    scenario = server_scenario(1, base_url="http://10.0.0.1:8000")
    scenario["policies"]["other"] = scenario["policies"]["actor"]
    with pytest.raises(ScenarioError, match=r"policies.other.engine.base_url: http://10.0.0.1:8000 holds the weights"):
        validate(scenario)
