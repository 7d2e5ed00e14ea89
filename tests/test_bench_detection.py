"""bench/detection: that what it measures is what it says. Figures of whole fleets are not asserted here; small fleets are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from detection import exact, faulty, fleet, healthy, main, page, params, plots, report, score, theirs, traps
from detection.boards import board
from detection.healthy import Draft
from detection.looks import looks
from detection.node import Node
from detection.ours import judged, policy_of
from detection.params import Params
from detection.plan import DAY, GROW, HOUR, MARK, MUST_ACT, REBOOT, RESET, SET, SILENT, Effect, Fault, Flow, Job, Plan, gpu, link

from slurm_nvhc.errors import InputError
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.suspect import Suspect

ROOT = Path(__file__).resolve().parents[1]
EVERY_GPU = {n: frozenset(range(18)) for n in range(8)}


@pytest.fixture(scope="module")
def setting() -> Params:
    return params.load()


def plan(*effects: Effect, seconds: float = 6 * HOUR, jobs: tuple[Job, ...] = (), **more: Any) -> Plan:
    return Plan("n1", "hgx-h100-8", seconds, 0.0, 300.0, jobs, tuple(sorted(effects, key=lambda e: e.at)), **more)


def lively(setting: Params, **fleet_: Any) -> Params:
    """Much more happens than at real nodes."""
    h = setting.healthy
    return replace(
        params.sized(setting, **fleet_),
        health_check=600.0,
        healthy=replace(
            h,
            boots=replace(h.boots, per_day=0.7),
            gpu_resets_per_day=0.7,
            driver_reloads_per_day=0.4,
            lifetime=replace(h.lifetime, nodes=1.0),
            retries=replace(h.retries, links=0.05, per_h=0.1),
            crc_few=replace(h.crc_few, nodes=1.0),
            thermal_bumps=replace(h.thermal_bumps, per_day=1.0, share=[0.0005, 0.02]),
            ecc_corrected=replace(h.ecc_corrected, per_day=0.5),
            row_remaps_per_day=0.2,
            symbols=replace(h.symbols, nodes=1.0),
            application_xids_per_day=2.0,
            hiccups_per_day=1.0,
            swaps_per_day=0.3,
        ),
    )


# Parameters


def test_the_packaged_parameters_are_whole(setting: Params) -> None:
    assert set(setting.faulty.__struct_fields__) == set(faulty.KINDS)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("nodes: 0.05, links: 2", "nodez: 0.05, links: 2", "healthy.crc_few.nodez: unknown key nodez (did you mean nodes?)"),
        ("[0.2, 4.0]", "[5.0, 4.0]", "healthy.crc_few.per_day: 5 is more than 4"),
        ("schema: 1", "schema: 2", "schema 2 is not known"),
        ("hgx-h100-8: 50", "hgx-h900-8: 50", "there is no such board"),
        ("power_cap: 0.6", "power_cap: 1.6", "healthy.power_cap"),
    ],
)
def test_wrong_parameters_are_one_line(old: str, new: str, problem: str) -> None:
    text = Path(params.PACKAGED).read_text()
    assert old in text
    with pytest.raises(InputError) as error:
        params.parse(text.replace(old, new), "fleet.yaml")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


# What happens at a node


def test_a_plan_becomes_snapshots() -> None:
    effects = (
        Effect(0.0, GROW, link(1, 2), "nvlink_replay", 7),
        Effect(100.0, GROW, link(1, 2), "nvlink_replay", 3),
        Effect(200.0, RESET, gpu(1)),
        Effect(300.0, SET, link(1, 2), "nvlink_crc_data", NoData(BLANK)),
        Effect(310.0, GROW, link(1, 2), "nvlink_crc_data", 5),
        Effect(400.0, SET, link(1, 2), "nvlink_crc_data", None),
        Effect(500.0, SILENT, value=True),
        Effect(600.0, SILENT, value=False),
        Effect(700.0, REBOOT),
    )
    flows = (Flow(gpu(0), "power_violation_ns", 50.0, 150.0, 2.5),)
    node = Node(plan(*effects, flows=flows), board("hgx-h100-8"), {0: frozenset(), 1: frozenset({2})})
    uuid, other = node.identity(1).uuid, node.identity(0).uuid

    def seen(at: float) -> Any:
        return node.snapshot(at, 0.0)

    first = seen(1.0)
    assert (first.gpus[uuid].links[2]["nvlink_replay"], first.gpus[uuid].readings["nvlink_replay_total"]) == (7, 7)
    assert set(first.gpus) == {uuid, other}
    assert seen(101.0).gpus[uuid].links[2]["nvlink_replay"] == 10
    assert seen(160.0).gpus[other].readings["power_violation_ns"] == 250
    assert seen(201.0).gpus[uuid].links[2]["nvlink_replay"] == 0
    assert seen(320.0).gpus[uuid].links[2]["nvlink_crc_data"] == NoData(BLANK)
    assert seen(401.0).gpus[uuid].links[2]["nvlink_crc_data"] == 5
    assert seen(501.0).gpus is None
    last = seen(701.0)
    assert (last.boot_id, last.gpus[uuid].links[2]["nvlink_crc_data"]) != (first.boot_id, 5)
    assert 0 < last.uptime_s() < 2


@pytest.mark.parametrize("seed", [7, 20, 22])
def test_quiet_looks_and_parts_at_rest_change_no_verdict(setting: Params, seed: int) -> None:
    """The bench leaves out looks at which nothing is new, and GPUs and links to which nothing ever happens (looks.py)."""
    node = fleet.sound(lively(setting, days=1.0, boards={"v100-8": 1.0, "a100-pcie-8": 1.0, "hgx-b200-8": 0.5}), seed)

    def verdicts(**how: bool) -> dict[tuple[str, ...], float]:
        seen = judged(node, stop=False, **how)
        return {(v.code, v.place, v.verdict, v.rule): v.at for v in reversed(seen.verdicts)}

    few = verdicts()
    assert few
    assert verdicts(every=True) == few
    assert verdicts(whole=True) == few


def _three_errors_after_hours() -> tuple[Plan, str]:
    """Three errors in a quarter of an hour are enough evidence; the first of them spread over five hours, they are not."""
    return plan(*(Effect(5 * HOUR + n, GROW, link(0, 0), "nvlink_replay", 1) for n in (1, 320, 640))), "nvl_replay"


def _growth_over_a_boot() -> tuple[Plan, str]:
    """400 replays between the last look before a boot and the first after it, nine minutes; no check runs while the node is down."""
    effects = (Effect(6190.0, REBOOT), Effect(6200.0, GROW, gpu(0), "pcie_replay", 400))
    return plan(*effects, down=((5950.0, 6190.0),), extra=(6230.0,)), "pcie_replay"


def _sum_over_links() -> tuple[Plan, str]:
    """Nine symbol errors of a GPU are too many for one link, and not for its eighteen, of which something happens to one."""
    effects = (Effect(5 * HOUR, MARK, link(0, 3)), Effect(5 * HOUR + 1, GROW, gpu(0), "nvlink5_symbol_errors", 9))
    return plan(*effects)._replace(board="hgx-b200-8"), ""


@pytest.mark.parametrize("made", [_three_errors_after_hours, _growth_over_a_boot, _sum_over_links])
def test_what_is_left_out_is_not_missed(made: Any) -> None:
    """Where a look, or a link, that is left out without thought would change the verdict."""
    node, rule = made()
    ways: tuple[dict[str, bool], ...] = ({}, {"every": True}, {"whole": True})
    found = [{(v.rule, v.verdict, v.at) for v in judged(node, stop=False, **how).verdicts} for how in ways]
    assert found[0] == found[1] == found[2]
    assert {r for r, _, _ in found[0]} == ({rule} if rule else set())
    assert rule != "nvl_replay" or fd.FAIL in {verdict for _, verdict, _ in found[0]}


def test_few_looks_are_left(setting: Params) -> None:
    node = fleet.sound(setting, 1)
    judged_ = [look for look in looks(node) if look.judged]
    assert 2 <= len(judged_) < len(looks(node, every=True)) / 10


def test_the_same_seed_gives_the_same_fleet(setting: Params) -> None:
    assert fleet.sound(setting, 3) == fleet.sound(setting, 3)
    assert fleet.sound(setting, 3) != fleet.sound(params.sized(setting, seed=1), 3)


def test_no_look_while_the_node_is_down(setting: Params) -> None:
    draft = Draft(Random(1), setting, board("hgx-h100-8"), DAY)
    healthy.boot(draft, 7200.0)
    node = fleet.finish(draft, "n1")
    gone, back = node.down[0]
    moments = [look.at for look in looks(node, every=True)]
    assert not [at for at in moments if gone < at < back]
    registered = [look for look in looks(node) if look.at in node.extra]
    assert [(look.hook, look.judged) for look in registered] == [(HEALTH_CHECK, True)]
    assert 30 <= registered[0].at - back <= 60


# Faults and their truth


@pytest.mark.parametrize("kind", [k for k in faulty.KINDS if k != "bad_switch"])
def test_a_fault_gets_what_it_calls_for(setting: Params, kind: str) -> None:
    """And the part that the judge names is not a healthy one."""
    node = fleet.ill(params.sized(setting, faulty_days=4.0), kind, 0)
    assert node is not None
    o = score.outcome(node)
    assert o.answered is not None
    assert score.WRONG not in o.suspects


def test_every_rule_is_enforced_here() -> None:
    policy, packaged = policy_of("hgx-h100-8")
    assert {rule.mode for rule in policy.rules.values()} <= {fd.ENFORCE, fd.OFF}
    assert fd.OBSERVE in packaged.values()


def test_a_drain_for_something_else_is_not_the_faults() -> None:
    fault = Fault("x", 0.0, MUST_ACT, (gpu(5),), (suspect.GPU,), (gpu(5),))
    effects = [Effect(3600.0 + n, GROW, link(2, 3), "nvlink_replay", 5000) for n in range(60)]
    seen = judged(plan(*effects, fault=fault))
    assert seen.drained is None
    assert seen.wrongly is not None
    assert "nvl_storm" in seen.wrongly_by
    mine = judged(plan(*effects, fault=fault._replace(shows=(link(2, 3),))))
    assert (mine.drained, mine.wrongly) == (seen.wrongly, None)


def test_what_a_suspect_is_worth() -> None:
    """Right is the part as what it is; what holds it is too coarse; all else is a healthy part."""
    fault = Fault("x", 0.0, MUST_ACT, (link(2, 3),), (suspect.LINK,), (link(2, 3),))
    node = plan(fault=fault)
    seen = judged(node)
    place = seen.parts[0]
    uuid = place.partition("/")[0]
    named = [Suspect(suspect.LINK, place, ""), Suspect(suspect.LINK, "switch:x/port1", "", far=place), Suspect(suspect.GPU, uuid, "")]
    assert [score._fits(s, node, seen) for s in named] == [score.RIGHT, score.RIGHT, score.COARSE]
    assert score._fits(Suspect(suspect.LINK, f"{uuid}/link30", ""), node, seen) == score.WRONG


def test_scores() -> None:
    base: dict[str, Any] = {
        "node": "n", "board": "b", "nvlink": True, "seconds": 2 * DAY, "wrongly": None, "wrongly_by": (), "drained": None, "answered": None,
        "packaged": None, "false_warnings": (), "statements": 0, "looks": 1, "suspects": (),
        "rules": {rule: theirs.Alarm(None, None) for rule in theirs.RULES},
    }  # fmt: skip
    sound = score.Outcome(kind="", severity="", began=None, **base)
    drained = sound._replace(wrongly=DAY)
    found = score.Outcome(kind="k", severity=MUST_ACT, began=DAY, **{**base, "drained": DAY + 60, "answered": DAY + 60})
    missed = found._replace(drained=None, answered=None)
    s = score.score(score.OURS, [sound, drained, found, missed])
    assert (s.found, s.of, s.false, s.node_days) == (1, 2, 1, 5.0)
    assert (s.precision, s.recall, s.f1, s.median_s) == (0.5, 0.5, 0.5, 60.0)
    assert s.false_per_day == 2000.0


# Published rules


def alarm(rule: str, *effects: Effect, at: float = 3600.0) -> theirs.Alarm:
    fault = Fault("x", at, MUST_ACT, (link(0, 0),), (suspect.LINK,), (link(0, 0),), nvlink=True)
    return theirs.alarm(plan(*effects, fault=fault), board("hgx-h100-8"), rule)


def grow(at: float, amount: int = 1, field: str = "nvlink_replay") -> Effect:
    return Effect(at, GROW, link(0, 0), field, amount)


def test_a_lifetime_count_rings_at_once_where_the_total_is_judged() -> None:
    old = grow(0.0, 9, "nvlink_crc_data")
    for rule in ("any error since reset (> 0)", "DCGM 4.6 health", ">= 5 errors since reset"):
        assert alarm(rule, old).before == 60.0, rule
    for rule in ("DCGM health, 60 s window only", "> 15 of the last 30 minutes"):
        assert alarm(rule, old) == (None, None), rule


def test_dcgms_window() -> None:
    rule = "DCGM health, 60 s window only"
    assert alarm(rule, grow(4000.0)).after == 4020.0
    assert alarm(rule, grow(4000.0, 5999, "nvlink_crc_data")).after is None
    assert alarm(rule, grow(4000.0, 6000, "nvlink_crc_data")).after == 4020.0
    # A reset takes the count from 9 to 0, and |0 - 9| counts as nine errors.
    assert alarm(rule, grow(0.0, 9), Effect(4000.0, RESET, gpu(0))).after == 4020.0


def test_five_and_fifteen() -> None:
    minutes = [grow(3600.0 + 60 * n + 1) for n in range(16)]
    assert alarm(">= 5 errors since reset", *minutes).after == 3600.0 + 60 * 5
    assert alarm("> 15 of the last 30 minutes", *minutes).after == 3600.0 + 60 * 16
    assert alarm("> 15 of the last 30 minutes", *minutes[:15]).after is None
    assert alarm("> 15 of the last 30 minutes", *(grow(3600.0 + 120 * n + 1) for n in range(40))).after is None


# Exact figures


def test_one_job_of_an_hour() -> None:
    """Three recoveries in an hour are flagged, two are not: P(>= 3 | 8.6) is 0.991, P(>= 3 | 0.001) is 1.7e-10."""
    assert exact.one_job("nvlink_recovery", 2) == fd.OK
    p = exact.power("nvlink_recovery", exact.MARIN_PER_H, 1.0)
    assert p.errors == 3
    assert p.detected == pytest.approx(0.99140, abs=1e-4)
    assert p.null == pytest.approx(1.665e-10, rel=0.01)


def test_simulated_jobs_agree() -> None:
    flagged = sum(exact.simulated(1, n) for n in range(30))
    assert flagged >= 28  # 3 or more missed of 30: 0.2 % if 0.991 is right
    assert not any(exact.simulated(1, n, per_h=0.001) for n in range(3))


def test_the_budget_is_kept() -> None:
    rows = exact.all_tests()
    assert {r.rule for r in rows} >= {"nvl_replay", "nvl_recovery", "nvl_crc"}
    assert {r.counters for r in rows if r.rule == "nvl_replay"} == {144}
    assert all(r.expected <= r.bound * 1.0001 for r in rows)
    assert exact.false_alarms(rows, fd.FAIL) <= 0.1
    # 0 in 300,000 node-days: with 95 % confidence at most 0.1 in 10,000 nodes and day.
    assert exact.upper_rate(0, 300_000) * 10_000 == pytest.approx(0.09986, abs=1e-4)


# Traps, report, command line


@pytest.mark.parametrize("name", traps.TRAPS)
def test_a_trap_holds_only_what_it_says(setting: Params, name: str) -> None:
    made = traps.plans(params.sized(setting, boards={"hgx-h100-8": 1.0, "a100-pcie-8": 1.0}), name, 1)
    assert made
    if name != "no NVLink bridge":
        assert any(p.effects or any(f.field != "power_violation_ns" or f.per_s for f in p.flows) for p in made)
    quiet = "links train" not in name and "exchanged" not in name and "new driver" not in name
    assert not quiet or not any(p.down for p in made)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """(exit code, document, standard output) of a small run."""
    folder = tmp_path_factory.mktemp("bench")
    out, text = folder / "figures.json", []
    patch = pytest.MonkeyPatch()
    patch.setattr(main, "SIMULATED_JOBS", 2)
    patch.setattr(main, "TRAP_NODES", 1)
    patch.setattr(main, "HOURS", (1.0,))
    patch.setattr(main, "KINDS", {k: faulty.KINDS[k] for k in ("storm", "row_remap_failure")})
    patch.setattr(traps, "TRAPS", {k: traps.TRAPS[k] for k in ("no NVLink bridge", "large counters that never move")})
    patch.setattr("builtins.print", lambda *args, **more: text.append(" ".join(str(a) for a in args)) if "file" not in more else None)
    code = main.main(["--nodes", "3", "--days", "1", "--faulty", "1", "--processes", "1", "--json", str(out)])
    patch.undo()
    return code, json.loads(out.read_text()), "\n".join(text)


def test_a_run(small: tuple[int, dict[str, Any], str]) -> None:
    code, document, text = small
    assert document["schema"] == 1
    assert document["sound"]["nodes"] == 3
    assert 0 < document["sound"]["node_days"] <= 3
    assert {k["kind"]: (k["found"], k["of"]) for k in document["kinds"]} == {"storm": (1, 1), "row_remap_failure": (1, 1)}
    assert len(document["goals"]) == 10
    assert code == (0 if all(g["met"] for g in document["goals"]) else 1)
    for goal in document["goals"]:
        assert goal["what"] in text
    assert max(len(line) for line in text.splitlines()) <= 160


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.main(["--params", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err == f"bench: {tmp_path}/none.yaml: can not be read: No such file or directory\n"
    with pytest.raises(SystemExit) as end:
        main.main(["--nodes", "none"])
    assert end.value.code == 2


def test_the_plots_in_the_docs_are_those_of_the_code(tmp_path: Path) -> None:
    """Nothing in them comes from a simulation: `python bench/detection/plots.py` writes them anew."""
    plots.write(str(tmp_path))
    for name in plots.NAMES:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), f"{name} is out of date"
        assert f"]({name})" in (ROOT / "docs" / "detection.md").read_text()


@pytest.mark.parametrize(("second", "fails"), [(3, True), (10, False)])
def test_epilogs_of_quiet_jobs_count_as_jobs(second: int, fails: bool) -> None:
    """Slowdown by heat in jobs 1 and 3 is one in 2 of the last 5 jobs; in jobs 1 and 10 it is not, though no look between is judged."""
    jobs = tuple(Job(n, 1000.0 + n * 1000, 1600.0 + n * 1000, tuple(range(8)), 1000) for n in range(12))
    hot = [jobs[n] for n in (1, second)]
    flows = tuple(Flow(gpu(0), "hw_thermal_slowdown_ns", job.start, job.end, 0.5e9) for job in hot)
    effects = [Effect(at, MARK, gpu(0)) for job in hot for at in (job.start + 1, job.end)]
    node = plan(*effects, flows=flows, jobs=jobs, seconds=14_000.0)
    judged_ = {look.job.number for look in looks(node) if look.hook == EPILOG and look.judged and look.job}
    assert {1, second} <= judged_
    assert not judged_ & {4, 5, 6, 7, 8}
    seen = judged(node, stop=False)
    assert ((fd.FAIL, "thermal_slowdown") in {(v.verdict, v.rule) for v in seen.verdicts}) is fails


def test_report_of_nothing() -> None:
    assert report._time(None) == "-"
    assert report._part(0, 0) == "-"


def test_figures_in_the_docs_are_those_of_a_run() -> None:
    """docs/detection.json is a run's; `python bench/detection/page.py FILE` writes both."""
    text = Path(page.PAGE).read_text()
    figures = json.loads(Path(page.FIGURES).read_text())
    assert page.with_block(text, page.block(figures)) == text
    assert {g["what"] for g in figures["goals"] if not g["met"]} == set(), "the docs must not show goals that were missed"


def test_figures_of_a_run_can_be_shown(small: tuple[int, dict[str, Any], str]) -> None:
    text = page.block(small[1])
    assert "| 8.6/h in a job of 1 h is flagged | >= 0.99 | 0.9914 | met |" in text
    assert "nan" not in text
    assert page.with_block(f"a\n{page.BEGIN}old\n{page.END}z\n", text).endswith(f"{page.END}z\n")
