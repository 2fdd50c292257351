"""Under which names a server may be asked, and from which pages."""

import pytest

from nefl.web.callers import Callers, Refusal


@pytest.mark.parametrize("listens", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_on_this_machine_only_its_own_names_are_answered(listens: str) -> None:
    callers = Callers(listens)
    for host in ("127.0.0.1:80", "127.0.0.2", "LOCALHOST:8000", "[::1]:8000", "[::1]", "::1"):
        callers.check(host, None)
    for host in ("evil.example", "evil.example:8000", "10.0.0.1", "", "127.0.0.1.evil.example"):
        with pytest.raises(Refusal, match="403"):
            callers.check(host, None)


@pytest.mark.parametrize("listens", ["::", "192.0.2.7", "box.example"])
def test_where_others_reach_it_addresses_and_given_names_are_answered(listens: str) -> None:
    callers = Callers(listens, ["models.example"])
    for host in ("192.0.2.7:8000", "[2001:db8::1]:8000", "localhost", "Models.example", listens):
        callers.check(host, None)
    for host in ("evil.example", "rebound.evil.example:8000"):
        with pytest.raises(Refusal):
            callers.check(host, None)


@pytest.mark.parametrize(
    "host",
    [
        "localhost:80@evil.example",
        "localhost:",
        "localhost:٣",
        "[::1]evil.example",
        "[::1]:x",
        "[]",
    ],
)
def test_what_follows_a_name_is_a_port_or_the_name_is_foreign(host: str) -> None:
    for listens in ("127.0.0.1", "::"):
        with pytest.raises(Refusal, match="403"):
            Callers(listens).check(host, None)


def test_pages_of_elsewhere_may_not_ask() -> None:
    callers = Callers("127.0.0.1")
    callers.check("127.0.0.1:8000", "http://127.0.0.1:8000")
    for origin in ("http://evil.example", "http://127.0.0.1:9999", "null", ""):
        with pytest.raises(Refusal):
            callers.check("127.0.0.1:8000", origin)
