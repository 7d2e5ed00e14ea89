"""`nvhc baseline` and `nvhc rates` on a node that hooks look at, and the comparison behind them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import build
import pytest
from site_ import Site

from slurm_nvhc.compare import compare, tally
from slurm_nvhc.judge.memory import forget_links
from slurm_nvhc.model import drift, learned
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.model.tally import Tally, Versions

U = build.uuid
PORT = "rdma:mlx5_0/port1"
NORMAL = (
    Lesson(1, "nvhc", {
        U(0): {"vbios": "96.00", "ecc_mode": 1}, f"{U(0)}/link0": {"nvlink_state": "up"}, f"{U(0)}/link1": {"nvlink_state": "up"},
        PORT: {"rdma_state": 4, "rdma_rate": 400}, "node": {"nvidia_driver": "570"},
    }),
)  # fmt: skip


def node(gpu: Any = None, parts: Any = None) -> Snapshot:
    all_parts = {"node": {"nvidia_driver": "570"}, PORT: {"rdma_state": 4, "rdma_rate": 400}} if parts is None else parts
    return build.snapshot(gpu or build.gpu(0, vbios="96.00", ecc_mode=1), parts=all_parts)


def rows(snapshot: Snapshot, *states: str) -> list[tuple[str, str]]:
    return [(r.entity, r.field) for r in drift.rows(learned.normals(NORMAL), snapshot) if r.state in states]


def accepted(snapshot: Snapshot, name: str = "", field: str = "") -> drift.Acceptance:
    return drift.accept(drift.rows(learned.normals(NORMAL), snapshot), name, field)


# --- beside one another -----------------------------------------------------------


def test_what_is_as_learned_and_what_is_not() -> None:
    assert rows(node(), *drift.DIFFERENCES, drift.NEW, drift.UNKNOWN) == []
    gpu = build.with_link(build.gpu(0, vbios="97.00", ecc_mode=NoData(BLANK), persistence_mode=1), 1, nvlink_state="down")
    now = node(gpu, {"node": {"nvidia_driver": "575"}})
    assert rows(now, drift.DIFFERS) == [(U(0), "vbios"), ("node", "nvidia_driver")]
    assert rows(now, drift.UNKNOWN) == [(U(0), "ecc_mode")]
    assert rows(now, drift.OUT_OF_USE) == [(f"{U(0)}/link1", "nvlink_state")]
    assert rows(now, drift.NEW) == [(U(0), "persistence_mode")]
    assert rows(now, drift.GONE) == [(PORT, "rdma_state"), (PORT, "rdma_rate")]


def test_what_nobody_tells_of_is_unknown_and_not_gone() -> None:
    """Without the host's or the engine's answer nothing is known about a part."""
    assert rows(node(parts={}), drift.GONE) == []
    assert rows(node()._replace(gpus=None), drift.GONE) == []


def test_accepting_the_whole_node_takes_configuration_only() -> None:
    """A dead link on one of a thousand nodes must not become normal by the word that follows an upgrade of all."""
    gpu = build.with_link(build.gpu(0, vbios="97.00", ecc_mode=1), 1, nvlink_state="down")
    found = accepted(node(gpu, {"node": {"nvidia_driver": "575"}}))
    assert found.readings == {U(0): {"vbios": "97.00"}, "node": {"nvidia_driver": "575"}}
    assert found.gone == ()
    assert {(r.entity, r.state) for r in found.left} == {(f"{U(0)}/link1", drift.OUT_OF_USE), (PORT, drift.GONE)}


def test_a_named_part_is_taken_as_it_is() -> None:
    gpu = build.with_link(build.gpu(0, vbios="97.00", ecc_mode=1), 1, nvlink_state="down")
    now = node(gpu, {"node": {"nvidia_driver": "575"}})
    assert accepted(now, U(0)) == ({U(0): {"vbios": "97.00"}}, ((f"{U(0)}/link1", "nvlink_state"),), ())
    assert accepted(now, f"{U(0)}/link1") == ({}, ((f"{U(0)}/link1", "nvlink_state"),), ())
    assert accepted(now, PORT).gone == ((PORT, "rdma_state"), (PORT, "rdma_rate"))
    assert accepted(now, U(0), "vbios") == ({U(0): {"vbios": "97.00"}}, (), ())
    assert not drift.covers(f"{U(0)}/link1", f"{U(0)}/link11")


def test_memory_of_links_is_forgotten_link_by_link() -> None:
    memory = {"links_up": {U(0): [0, 1, 2], U(1): [1]}, "jobs": {"x": [1, "k"]}}
    new = forget_links(memory, [(U(0), 1)])
    assert (new["links_up"], new["jobs"]) == ({U(0): [0, 2], U(1): [1]}, {"x": [1, "k"]})


# --- growth by versions -------------------------------------------------------------


def test_tally_counts_exact_growth_and_all_hours() -> None:
    before = node(build.with_link(build.gpu(0, vbios="96.00", nvlink_replay_total=5), 1, nvlink_replay=5))
    after = build.with_link(build.gpu(0, vbios="96.00", nvlink_replay_total=8), 1, nvlink_replay=8)
    now = build.later(before, 7200, after)._replace(parts={"node": {"fabric_manager": "570"}})
    versions = Versions(build.H100, "575.57", "96.00", "570")
    found = {(t.versions, t.field): (t.amount, t.hours) for t in tally(compare(before, now), now)}
    assert found[versions, "nvlink_replay"] == (3, 4.0)  # two links for two hours
    assert found[versions, "nvlink_replay_total"] == (3, 2.0)


@pytest.mark.parametrize(
    "after",
    [build.gpu(0, nvlink_replay_total=NoData(BLANK)), build.gpu(0, nvlink_replay_total=4)],
    ids=["no data", "reset"],
)
def test_tally_leaves_out_what_is_not_exact(after: Any) -> None:
    before = build.snapshot(build.gpu(0, nvlink_replay_total=5))
    now = build.later(before, 7200, after)
    assert "nvlink_replay_total" not in {t.field for t in tally(compare(before, now), now)}


def test_tally_of_a_part_goes_by_its_kind() -> None:
    before = build.snapshot(parts={PORT: {"rdma_symbol_errors": 1}})
    now = build.later(before, 3600, parts={PORT: {"rdma_symbol_errors": 4}})
    assert tally(compare(before, now), now) == (Tally(Versions("rdma", "575.57"), "rdma_symbol_errors", 3, 1.0),)


# --- the commands --------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A healthy node after its first health check."""
    site = Site(tmp_path)
    site.hook("health_check")
    return site


def pass_by(site: Site, *changes: Any) -> None:
    with site.edit() as world:
        for change in changes:
            change(world)
        world.advance(300)
    site.hook("health_check")


def codes(site: Site) -> set[str]:
    return {f.code for f in site.last("health_check").findings}


def shown(site: Site, code: int) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for row in site.nvhc_json("baseline", "show", code=code)["rows"]:
        out.setdefault(row["state"], []).append(row["entity"])
    return out


def test_a_healthy_node_learns_itself_once(site: Site) -> None:
    with site.ledger() as ledger:
        (first,) = ledger.protective().learned
    assert first.who == learned.ITSELF
    assert first.readings["node"]["nvidia_driver"] == "575.57.08"
    assert shown(site, 0).keys() == {drift.SAME}
    assert "nothing differs" in site.nvhc("baseline", "show")
    pass_by(site)
    with site.ledger() as ledger:
        assert ledger.protective().learned == (first,)


def test_a_drift_lasts_until_it_is_accepted(site: Site) -> None:
    pass_by(site, lambda w: w.set("g2.ecc_mode", 0), lambda w: w.set("g3.pcie_max_width", 8))
    assert {"CONFIG-DRIFT", "PCIE-WIDTH"} <= codes(site)
    pass_by(site)
    assert {"CONFIG-DRIFT", "PCIE-WIDTH"} <= codes(site), "it is not learned anew by itself"
    text = site.nvhc("baseline", "show", code=1)
    assert "16 lanes" in text
    assert "8 lanes" in text
    told = site.nvhc("baseline", "accept", "gpu3")
    assert "gpu3  PCIe width possible: 16 lanes -> 8 lanes" in told
    assert "ECC" not in told
    assert "left: gpu2  ECC" in site.nvhc("baseline", "accept", "--all", "--field", "ecc_mode", code=1), "a rule is against it"
    site.nvhc("baseline", "accept", "gpu2", "--field", "ecc_mode")
    assert shown(site, 0).keys() == {drift.SAME}
    row = next(r for r in site.nvhc_json("baseline", "show")["rows"] if r["normal"] == 8)
    assert row["who"] == (os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name)
    pass_by(site)
    assert not {"CONFIG-DRIFT", "PCIE-WIDTH"} & codes(site)


def test_a_job_is_not_warned_of_a_drift(site: Site) -> None:
    with site.edit() as world:
        world.set("g2.ecc_mode", 0)
    site.hook("prolog", 8812)
    assert "CONFIG-DRIFT" not in {f.code for f in site.last("prolog").findings}


def test_a_node_without_gpus_to_see_learns_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.edit() as world:
        world.engine("absent")
    site.hook("health_check")
    assert "the last one was unknown" in site.nvhc("baseline", "show", code=3)
    with site.edit() as world:
        world.engine("ok")
    told = site.nvhc("baseline", "accept", "--all")
    assert "readings that were not learned yet" in told
    assert shown(site, 0).keys() == {drift.SAME}


def test_a_lasting_note_keeps_nothing_from_being_learned(tmp_path: Path) -> None:
    """A GPU with a remap pending, and persistence mode off on all: every other reading is learned all the same."""
    site = Site(tmp_path)
    with site.edit() as world:
        world.set("g1.row_remap_pending", 1)
        world.set("*.persistence_mode", 0)
    site.hook("health_check")
    rows = site.nvhc_json("baseline", "show")["rows"]
    assert {r["field"] for r in rows if r["state"] == drift.NEW} == {"persistence_mode"}
    assert {r["field"] for r in rows if r["state"] == drift.SAME} >= {"vbios", "pcie_max_width", "nvlink_state", "rdma_state"}


def test_an_upgrade_makes_no_hardware_fault_normal(site: Site) -> None:
    """The word that follows an upgrade of a thousand nodes takes versions, and not the riser that lost lanes meanwhile."""
    pass_by(site, lambda w: w.set("*.compute_mode", 3), lambda w: w.set("g5.pcie_max_width", 8), lambda w: w.set("rdma2.port1.rate", 200))
    told = site.nvhc("baseline", "accept", "--all", code=1)
    assert "gpu5  compute mode" in told
    assert "left: gpu5  PCIe width possible: 16 lanes -> 8 lanes. `nvhc baseline accept gpu5` takes that for normal" in told
    assert "left: rdma:mlx5_2/port1  RDMA rate" in told
    pass_by(site)
    assert "PCIE-WIDTH" in codes(site)
    assert "gpu5  PCIe width possible: 16 lanes -> 8 lanes" in site.nvhc("baseline", "accept", "gpu5")


def test_what_is_left_is_told_in_few_lines(site: Site) -> None:
    with site.edit() as world:
        world.lose("g4", on_pci=False)
        world.set("g0.link*.state", "down")
        world.set("switch1.port*.state", "off")
        world.set("rdma3.port1.state", "down")
    told = site.nvhc("baseline", "accept", "--all", code=1).splitlines()
    left = [line for line in told if line.startswith("left: ")]
    assert len(left) == 4, left
    assert any("gpu4 does not answer" in line and "`nvhc gpu forget gpu4`" in line for line in left)
    assert any("gpu0 (18 links)" in line and "`nvhc baseline accept gpu0 --field nvlink_state`" in line for line in left)
    assert any("ports)" in line and "--field port_state" in line for line in left)
    assert any("rdma:mlx5_3/port1  RDMA port state" in line for line in left)


def test_a_switch_that_is_gone_is_one_line(site: Site) -> None:
    with site.edit() as world:
        world.part("switch1", "absent")
    (left,) = [line for line in site.nvhc("baseline", "accept", "--all", code=1).splitlines() if line.startswith("left: ")]
    assert "ports) is gone" in left


def test_renamed_rdma_devices_are_accepted_in_one_word(site: Site) -> None:
    old = [Lesson(1, learned.ITSELF, {f"rdma:old{i}/port1": {"rdma_state": 4, "rdma_rate": 400} for i in range(8)})]
    with site.ledger() as ledger:
        kept = learned.normals(ledger.protective().learned)
        ports = [(name, field) for name, row in kept.items() for field in row if name.startswith("rdma:")]
        ledger.accept(old[0], ports)
    pass_by(site)
    assert "RDMA-NONE" in codes(site)
    assert "RDMA-DOWN" not in codes(site)
    told = site.nvhc("baseline", "accept", "--all", code=1)
    assert told.count("left: ") == 1
    assert "none of 8 RDMA ports is listed any more" in told
    pass_by(site)
    assert "RDMA-NONE" in codes(site), "it is not learned by itself"
    site.nvhc("baseline", "accept", "rdma")
    pass_by(site)
    assert not {"RDMA-NONE", "RDMA-DOWN"} & codes(site)
    assert shown(site, 0).keys() == {drift.SAME}


def test_a_link_that_is_down_has_to_be_named(tmp_path: Path) -> None:
    """A bridge that was taken off: the policy has no word about these links, the node has."""
    site = Site(tmp_path, preset="a100-pcie-8")
    with site.edit() as world:
        world.links("g0", 2, "up")
    site.hook("health_check")
    with site.edit() as world:
        world.set("g0.link1.state", "down")
    pass_by(site)
    assert "NVL-DOWN" in codes(site)
    assert "left: gpu0/link1  link state: up -> down (not in use)" in site.nvhc("baseline", "accept", "--all", code=1)
    pass_by(site)
    assert "NVL-DOWN" in codes(site)
    assert "gpu0/link1  link state: up -> down" in site.nvhc("baseline", "accept", "gpu0/link1")
    pass_by(site)
    assert "NVL-DOWN" not in codes(site), "neither what was learned nor what was seen misses it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what is to be accepted"),
        (("gpu1", "--all"), "gpu1 and --all are two things"),
        (("gpu77",), "is nothing that this node has"),
        (("rdma:no/port1",), "is nothing that this node has"),
        (("--all", "--field", "gpu_temp"), "gpu_temp is nothing that is learned"),
    ],
)
def test_bad_words_are_told_in_one_line(site: Site, words: tuple[str, ...], said: str) -> None:
    done = site.command("baseline", "accept", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_a_gpu_that_is_gone_is_not_accepted(site: Site) -> None:
    with site.edit() as world:
        world.lose("g4", on_pci=False)
    assert "nvhc gpu forget" in site.nvhc("baseline", "accept", "gpu4", code=2)


def test_nothing_is_accepted_of_an_engine_that_does_not_answer(site: Site) -> None:
    with site.edit() as world:
        world.engine("absent")
    assert site.command("baseline", "accept", "--all").returncode == 3
    assert drift.SAME in shown(site, 3), "what the host tells is compared all the same"
    assert "the GPUs can not be read now" in site.nvhc("baseline", "show", code=3)


def test_rates_by_version(site: Site) -> None:
    assert "no error counter grew" in site.nvhc("rates") or "no growth" in site.nvhc("rates")
    pass_by(site)
    pass_by(site, lambda w: w.storm("g3.link11", "replay", 5, 3300))
    rows = [r for r in site.nvhc_json("rates")["rates"] if r["field"] == "nvlink_replay"]
    assert [(r["amount"], r["driver"], r["model"]) for r in rows] == [(5, "575.57.08", build.H100)]
    assert rows[0]["hours"] == pytest.approx(144 * (300 + 3600) / 3600)
    assert rows[0]["per_1000_hours"] < rows[0]["at_most_per_1000_hours"]
    assert "replay" in site.nvhc("rates", "--by", "driver")
    assert "vbois is no version" in site.nvhc("rates", "--by", "driver,vbois", code=2)


def test_every_hook_counts_and_none_twice(site: Site) -> None:
    site.hook("prolog", 8812)
    with site.edit() as world:
        world.storm("g3.link11", "replay", 5, 600)
    site.hook("epilog", 8812)
    site.hook("health_check")
    (row,) = [r for r in site.nvhc_json("rates", "--by", "model")["rates"] if r["field"] == "nvlink_replay"]
    assert (row["amount"], row["hours"]) == (5, pytest.approx(144 * 600 / 3600))
