import pytest

from aerobee.peer_hosts import PeerHosts, is_within, parse_networks, plain_address

NAMES = {"broker-1.example": ["10.0.0.7", "::ffff:10.0.0.8"], "this-machine": ["127.0.1.1"]}


def hosts() -> PeerHosts:
    async def look_up(host: str) -> list[str]:
        if host not in NAMES:
            raise OSError("Name or service not known")
        return NAMES[host]

    return PeerHosts(look_up)


def test_an_address_is_compared_in_one_spelling():
    assert plain_address("[FE80::1%eth0]") == "fe80::1"
    assert hosts().is_at("::ffff:10.0.0.2", "10.0.0.2")
    assert hosts().is_at("::1", "[0:0:0:0:0:0:0:1]")
    assert not hosts().is_at("10.0.0.3", "10.0.0.2")


async def test_a_name_has_the_addresses_of_its_last_look_up():
    known = hosts()
    assert not known.is_at("10.0.0.7", "broker-1.example"), "not looked up yet"
    await known.look(["broker-1.example", "unknown.example", "10.0.0.2"])
    assert known.is_at("10.0.0.7", "BROKER-1.example")
    assert known.is_at("10.0.0.8", "broker-1.example")
    assert not known.is_at("10.0.0.9", "broker-1.example")
    assert not known.is_at("10.0.0.7", "unknown.example")
    await known.look(["unknown.example"])
    assert not known.is_at("10.0.0.7", "broker-1.example"), "no longer requested"


async def test_a_name_that_cannot_be_looked_up_keeps_its_addresses(monkeypatch: pytest.MonkeyPatch):
    known = hosts()
    await known.look(["broker-1.example"])
    monkeypatch.delitem(NAMES, "broker-1.example")
    await known.look(["broker-1.example"])
    assert known.is_at("10.0.0.7", "broker-1.example")


async def test_a_loopback_name_counts_from_where_the_system_calls_it():
    known = hosts()
    await known.look(["this-machine"])
    assert known.is_at("127.0.0.1", "this-machine")
    assert known.is_at("127.0.1.1", "this-machine")
    assert not known.is_at("127.0.0.2", "this-machine")
    assert not hosts().is_at("127.0.0.1", "10.0.0.2")


def test_networks_are_addresses_and_prefixes():
    networks = parse_networks("10.0.0.2, 10.1.0.0/16;[fd00::]/8")
    assert is_within("10.0.0.2", networks)
    assert is_within("::ffff:10.1.2.3", networks)
    assert is_within("fd00::5", networks)
    assert not is_within("10.0.0.3", networks)
    assert not is_within("no address", networks)
    with pytest.raises(ValueError, match=r"10\.0\.0\.300"):
        parse_networks("10.0.0.300")
