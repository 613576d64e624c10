"""Admission: counts of the role, the listener, the address; rates; the protected listener."""

from __future__ import annotations

from kalda.network.server.admission import Admission, Decision, Verdict
from kalda.network.server.limits import Limits, NodeLimits


def two_listeners(node: NodeLimits, client: Limits | None = None) -> Admission:
    admission = Admission(node)
    admission.add_listener("CLIENT", client or Limits())
    admission.add_listener("INTERNAL", Limits(), is_inter_broker=True)
    return admission


def one_listener(node: NodeLimits) -> Admission:
    """As of a node whose clients use the inter-broker listener."""
    admission = Admission(node)
    admission.add_listener("PLAINTEXT", Limits(), is_inter_broker=True)
    return admission


def test_an_address_has_its_own_limit() -> None:
    admission = two_listeners(NodeLimits(max_connections_per_ip=2, max_connections_per_ip_overrides={"10.0.0.9": 1}))
    admitted, refused = Decision(Verdict.ADMITTED), Verdict.OVER_ADDRESS_COUNT
    assert [admission.admit("CLIENT", "10.0.0.1", 0) for _ in range(3)] == [
        admitted,
        admitted,
        Decision(refused, maximum=2),
    ]
    assert [admission.admit("CLIENT", "10.0.0.9", 0) for _ in range(2)] == [admitted, Decision(refused, maximum=1)]
    assert admission.count == 3
    admission.release("CLIENT", "10.0.0.1")
    assert admission.admit("INTERNAL", "10.0.0.1", 0) == admitted
    assert admission.admit("INTERNAL", "10.0.0.1", 0) == Decision(refused, maximum=2), "on all listeners together"


def test_the_only_listener_of_a_role_is_not_protected() -> None:
    admission = one_listener(NodeLimits(max_connections=3))
    assert admit_until_waiting(admission, 0, "PLAINTEXT") == 3
    assert admission.admit("PLAINTEXT", "a", 0) == Decision(Verdict.WAIT)
    admission = one_listener(NodeLimits(max_creation_rate=2))
    assert admit_until_waiting(admission, 0, "PLAINTEXT") == 20
    assert admission.admit("PLAINTEXT", "a", 0).wait_ms == 500


def test_a_slot_comes_before_the_rate_of_an_address_and_that_before_its_count() -> None:
    admission = one_listener(NodeLimits(max_connections=1, max_connections_per_ip=0))
    admission.set_ip_rate("10.0.0.1", 1)
    for _ in range(10):
        assert admission.admit("PLAINTEXT", "10.0.0.1", 0) == Decision(Verdict.OVER_ADDRESS_COUNT, maximum=0)
    assert admission.admit("PLAINTEXT", "10.0.0.1", 0).verdict is Verdict.OVER_ADDRESS_RATE
    admission.update(NodeLimits(max_connections=1, max_connections_per_ip_overrides={"10.0.0.1": 0}))
    assert admission.admit("PLAINTEXT", "10.0.0.2", 0).verdict is Verdict.ADMITTED
    assert admission.admit("PLAINTEXT", "10.0.0.1", 0) == Decision(Verdict.WAIT)
    admission.release("PLAINTEXT", "10.0.0.2")
    assert admission.admit("PLAINTEXT", "10.0.0.1", 0).verdict is Verdict.OVER_ADDRESS_RATE


def test_on_a_full_node_clients_wait_and_replicas_evict_clients() -> None:
    admission = two_listeners(NodeLimits(max_connections=2))
    assert admission.admit("CLIENT", "a", 0).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", "a", 0).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", "a", 0) == Decision(Verdict.WAIT)
    assert admission.admit("INTERNAL", "a", 0).verdict is Verdict.EVICT
    admission.release("CLIENT", "a")
    assert admission.admit("CLIENT", "a", 0) == Decision(Verdict.WAIT)
    admission.release("CLIENT", "a")
    assert admission.admit("CLIENT", "a", 0).verdict is Verdict.ADMITTED


def test_a_full_node_admits_replicas_where_they_have_all_connections() -> None:
    """As in Kafka: the listener's own limit is the only one for them."""
    admission = two_listeners(NodeLimits(max_connections=1))
    assert admission.admit("INTERNAL", "a", 0).verdict is Verdict.ADMITTED
    assert admission.admit("INTERNAL", "a", 0).verdict is Verdict.EVICT
    admission.update_listener("INTERNAL", Limits(max_connections=2))
    assert admission.admit("INTERNAL", "a", 0) == Decision(Verdict.WAIT)


def test_a_listener_has_its_own_limit() -> None:
    admission = two_listeners(NodeLimits(), Limits(max_connections=1))
    assert admission.admit("CLIENT", "a", 0).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", "a", 0) == Decision(Verdict.WAIT)
    admission.update_listener("CLIENT", Limits(max_connections=2))
    assert admission.admit("CLIENT", "a", 0).verdict is Verdict.ADMITTED


def admit_until_waiting(admission: Admission, now_ms: int, listener: str = "CLIENT", address: str = "10.0.0.1") -> int:
    """How many connections are admitted at this moment."""
    for count in range(1_000):
        if admission.admit(listener, address, now_ms).verdict is not Verdict.ADMITTED:
            return count
    return 1_000


def test_the_rate_of_creation_is_that_of_all_windows_but_one() -> None:
    """As in Kafka: two a second allow twenty at once, and then each waits for a window at most."""
    admission = two_listeners(NodeLimits(max_creation_rate=2))
    assert admit_until_waiting(admission, 0) == 20
    assert admission.admit("CLIENT", "a", 0) == Decision(Verdict.WAIT, 500), "(2.1 - 2) / 2 * 10 s"
    assert admission.admit("CLIENT", "a", 499) == Decision(Verdict.WAIT, 1)
    assert admission.admit("INTERNAL", "a", 499).verdict is Verdict.ADMITTED, "the rate of the node is not for brokers"
    assert admission.admit("CLIENT", "a", 500).verdict is Verdict.ADMITTED, "it was recorded when it came"
    assert admission.admit("CLIENT", "a", 500) == Decision(Verdict.WAIT, 500), "(22 / 10.5 - 2) / 2 * 10.5 s"
    admission.update(NodeLimits(max_creation_rate=1))
    assert admission.admit("CLIENT", "a", 1_000).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", "a", 1_000) == Decision(Verdict.WAIT, 1_000), "one window at most"


def test_a_listener_has_its_own_rate() -> None:
    admission = two_listeners(NodeLimits(), Limits(max_creation_rate=1))
    assert admit_until_waiting(admission, 0) == 10
    assert admission.admit("INTERNAL", "a", 0).verdict is Verdict.ADMITTED


def test_a_rate_that_changes_keeps_what_was_used() -> None:
    admission = two_listeners(NodeLimits(max_creation_rate=1))
    assert admit_until_waiting(admission, 0) == 10
    assert admission.update(NodeLimits(max_creation_rate=5)) == 0
    assert admission.admit("CLIENT", "a", 1_000).verdict is Verdict.ADMITTED, "it had waited already"
    assert admit_until_waiting(admission, 1_000) == 50 - 11


def test_an_address_over_its_rate_is_refused_and_counts_for_no_rate() -> None:
    admission = two_listeners(NodeLimits(max_creation_rate=2))
    admission.set_ip_rate("10.0.0.1", 1)
    assert admit_until_waiting(admission, 0) == 10
    refused = admission.admit("CLIENT", "10.0.0.1", 0)
    assert refused.verdict is Verdict.OVER_ADDRESS_RATE
    assert 0 < refused.wait_ms <= 1_000
    assert admit_until_waiting(admission, 0, address="10.0.0.2") == 10, "the refused ones left the node's rate alone"
    admission.set_ip_rate("10.0.0.1", None)
    measured = {str(name): sensor.measure(0) for name, sensor in admission.measured()}
    group = "kafka.server:type=socket-server-metrics"
    assert measured[f"{group},name=connection-accept-rate,ip=10.0.0.1"] == 1.0
    assert measured[f"{group},name=broker-connection-accept-rate"] == 2.1, "one more waits"
    assert measured[f"{group},name=ip-connection-accept-throttle-time,listener=CLIENT"] == refused.wait_ms


def test_the_default_rate_of_addresses() -> None:
    admission = two_listeners(NodeLimits())
    admission.set_ip_rate(None, 1)
    admission.set_ip_rate("::1", 3)
    assert admit_until_waiting(admission, 0, address="10.0.0.1") == 10
    assert admit_until_waiting(admission, 0, address="10.0.0.2") == 10
    assert admit_until_waiting(admission, 0, address="::1") == 30
    admission.set_ip_rate(None, None)
    assert admit_until_waiting(admission, 0, address="10.0.0.1") == 1_000
    admission.set_ip_rate("localhost", 1)
    assert admit_until_waiting(admission, 0, address="127.0.0.1") == 10


def test_addresses_without_connections_for_an_hour_are_forgotten() -> None:
    admission = two_listeners(NodeLimits())
    admission.set_ip_rate(None, 100)
    for number in range(50):
        admission.admit("CLIENT", f"10.0.0.{number}", 0)
    admission.admit("CLIENT", "10.0.0.7", 1_000)
    admission.admit("CLIENT", "10.0.1.0", 3_600_001)
    assert sorted(admission._ip_rates) == ["10.0.0.7", "10.0.1.0"]


def test_a_reduced_maximum_names_how_many_are_too_many() -> None:
    admission = two_listeners(NodeLimits(max_connections=5))
    assert admit_until_waiting(admission, 0) == 5
    assert admission.update(NodeLimits(max_connections=2)) == 3
