"""Far ends of links: what ports say, told to the GPUs."""

from __future__ import annotations

from typing import Any

from build import gpu
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import LOST, GpuState
from slurm_nvhc.sense.wiring import join

NOBODY = NoData(rd.NOT_SUPPORTED)
SWITCHES = ("0000:c1:00.0", "0000:c2:00.0")


def card(uuid: str, pci: str, links: int = 3) -> GpuState:
    state = gpu(0)
    return state._replace(
        identity=state.identity._replace(uuid=uuid, pci=pci),
        links={n: {"nvlink_state": "up", "nvlink_remote": NOBODY} for n in range(links)},
    )


GPUS = {u: card(u, p) for u, p in (("GPU-a", "0000:1b:00.0"), ("GPU-b", "0000:2b:00.0"))}


def parts(**ends: Reading) -> dict[str, dict[str, Reading]]:
    """c1_5="pci:…" is what port 5 of the switch at c1 says."""
    out: dict[str, dict[str, Reading]] = {f"switch:{a}": {"switch_state": 1} for a in SWITCHES}
    for name, end in ends.items():
        bus, port = name.split("_")
        out[f"switch:0000:{bus}:00.0/port{port}"] = {"port_state": 2, "port_remote": end}
    return out


def remotes(gpus: Any) -> dict[str, Reading]:
    return {f"{u}/{n}": r["nvlink_remote"] for u, g in gpus.items() for n, r in g.links.items() if r["nvlink_remote"] != NOBODY}


def test_both_ends_are_named() -> None:
    gpus, joined = join(GPUS, parts(c1_5="pci:0000:2b:00.0/link1", c2_0="pci:0000:c1:00.0/link7"))
    assert remotes(gpus) == {"GPU-b/1": "switch:0000:c1:00.0/port5"}
    assert joined["switch:0000:c1:00.0/port5"] == {"port_state": 2, "port_remote": "GPU-b/link1"}
    assert joined["switch:0000:c2:00.0/port0"]["port_remote"] == "switch:0000:c1:00.0/port7"


def test_a_stranger_stays_an_address() -> None:
    gpus, joined = join(GPUS, parts(c1_5="pci:0000:ff:00.0/link1"))
    assert remotes(gpus) == {}
    assert joined["switch:0000:c1:00.0/port5"]["port_remote"] == "pci:0000:ff:00.0/link1"


def test_two_claims_on_one_link_are_both_doubted_there() -> None:
    gpus, joined = join(GPUS, parts(c1_5="pci:0000:1b:00.0/link0", c2_5="pci:0000:1b:00.0/link0", c1_6="pci:0000:1b:00.0/link1"))
    assert remotes(gpus) == {"GPU-a/1": "switch:0000:c1:00.0/port6"}
    assert joined["switch:0000:c2:00.0/port5"]["port_remote"] == "GPU-a/link0"


def test_a_link_that_the_gpu_does_not_have_and_a_gpu_that_does_not_answer() -> None:
    lost = {**GPUS, "GPU-b": GPUS["GPU-b"]._replace(status=LOST)}
    gpus, _ = join(lost, parts(c1_5="pci:0000:1b:00.0/link9", c1_6="pci:0000:2b:00.0/link1"))
    assert gpus == lost


def test_only_where_the_far_end_was_asked_for() -> None:
    plain = {"GPU-a": GPUS["GPU-a"]._replace(links={0: {"nvlink_state": "up"}})}
    gpus, _ = join(plain, parts(c1_5="pci:0000:1b:00.0/link0"))
    assert gpus == plain


def test_no_listing_stays_no_listing() -> None:
    gpus, joined = join(None, parts(c1_5="pci:0000:1b:00.0/link0"))
    assert gpus is None
    assert joined["switch:0000:c1:00.0/port5"]["port_remote"] == "pci:0000:1b:00.0/link0"


ends = st.one_of(
    st.builds("pci:0000:{}:00.0/link{}".format, st.sampled_from(("1b", "2b", "c1", "c2", "ff")), st.integers(0, 4)),
    st.sampled_from((NOBODY, 7, 1.5, "", "pci:/link1", "GPU-a/link1", "link1", "pci:0000:1b:00.0", "pci:0000:1b:00.0/linkx")),
    st.text(max_size=12),
)


@given(st.dictionaries(st.sampled_from([f"{b}_{n}" for b in ("c1", "c2") for n in range(5)]), ends))
def test_nothing_but_far_ends_changes_and_each_has_one_witness(said: dict[str, Reading]) -> None:
    before = parts(**said)
    gpus, joined = join(GPUS, before)
    assert gpus is not None
    for uuid, state in gpus.items():
        assert state._replace(links={}) == GPUS[uuid]._replace(links={})
        for number, readings in state.links.items():
            assert {**readings, "nvlink_remote": NOBODY} == GPUS[uuid].links[number]
            named = [name for name, r in joined.items() if r.get("port_remote") == f"{uuid}/link{number}"]
            witness = readings["nvlink_remote"]
            if witness != NOBODY:
                assert named == [witness] or before[str(witness)]["port_remote"] == f"pci:{state.identity.pci}/link{number}"
    assert {n: {k: v for k, v in r.items() if k != "port_remote"} for n, r in joined.items()} == {
        n: {k: v for k, v in r.items() if k != "port_remote"} for n, r in before.items()
    }
