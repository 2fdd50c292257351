"""The floods of the campaign, short: memory bounded, honest requests answered."""

import pytest

from benchmarks.campaign import attacks, floods


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "attack"),
    [("serve", attacks.bombs), ("watch", attacks.trickles)],
    ids=["bombs", "trickles"],
)
def test_a_short_flood_keeps_its_promises(kind: str, attack: attacks.Attack) -> None:
    found = floods.flood(kind, attack, 0, seconds=2, attackers=6)
    assert found["honest"] >= 2
    assert found["attacks"] >= 6
    row = floods.table([found]).splitlines()[-1]
    assert row.startswith(f"| {kind} | {attack.__name__} |")
