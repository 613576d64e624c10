"""Admission: counts of the node, the listener, the address; rates; the protected listener."""

from __future__ import annotations

from kalda.network.admission import Admission, CreationRate, Decision, Verdict
from kalda.network.limits import Limits, NodeLimits


def two_listeners(node: NodeLimits, client: Limits | None = None) -> Admission:
    admission = Admission(node)
    admission.add_listener("CLIENT", client or Limits(), protected=False)
    admission.add_listener("INTERNAL", Limits(), protected=True)
    return admission


def test_an_address_has_its_own_limit() -> None:
    admission = two_listeners(NodeLimits(max_connections_per_ip=2, max_connections_per_ip_overrides={"10.0.0.9": 1}))
    assert [admission.arrive("10.0.0.1") for _ in range(3)] == [None, None, 2]
    assert [admission.arrive("10.0.0.9") for _ in range(2)] == [None, 1]
    admission.leave("10.0.0.1")
    assert admission.arrive("10.0.0.1") is None


def test_on_a_full_node_clients_wait_and_replicas_evict_clients() -> None:
    admission = two_listeners(NodeLimits(max_connections=2))
    assert admission.admit("CLIENT", 0).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", 0).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", 0) == Decision(Verdict.WAIT)
    assert admission.admit("INTERNAL", 0).verdict is Verdict.EVICT
    admission.release("CLIENT")
    assert admission.admit("CLIENT", 0) == Decision(Verdict.WAIT)
    admission.release("CLIENT")
    assert admission.admit("CLIENT", 0).verdict is Verdict.ADMITTED


def test_replicas_do_not_evict_each_other() -> None:
    admission = two_listeners(NodeLimits(max_connections=1))
    assert admission.admit("INTERNAL", 0).verdict is Verdict.ADMITTED
    assert admission.admit("INTERNAL", 0) == Decision(Verdict.WAIT)


def test_a_listener_has_its_own_limit() -> None:
    admission = two_listeners(NodeLimits(), Limits(max_connections=1))
    assert admission.admit("CLIENT", 0).verdict is Verdict.ADMITTED
    assert admission.admit("CLIENT", 0) == Decision(Verdict.WAIT)
    admission.update_listener("CLIENT", Limits(max_connections=2))
    assert admission.admit("CLIENT", 0).verdict is Verdict.ADMITTED


def test_the_rate_of_creation() -> None:
    admission = two_listeners(NodeLimits(max_creation_rate=2))
    assert [admission.admit("CLIENT", 0).verdict for _ in range(2)] == [Verdict.ADMITTED] * 2
    assert admission.admit("CLIENT", 0) == Decision(Verdict.WAIT, 500)
    assert admission.admit("CLIENT", 499) == Decision(Verdict.WAIT, 1)
    assert admission.admit("CLIENT", 500).verdict is Verdict.ADMITTED
    assert admission.admit("INTERNAL", 500).verdict is Verdict.ADMITTED


def test_a_bucket_holds_one_second() -> None:
    rate = CreationRate(3)
    rate.wait_ms(0)
    for _ in range(3):
        assert rate.wait_ms(100_000) == 0
        rate.take()
    assert rate.wait_ms(100_000) == 334
