"""Scenario files: what is taken, and one line with file, line and key for everything else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.errors import InputError
from slurm_nvhc.scenario import load, times, world_steps
from slurm_nvhc.scenario.format import json_schema
from slurm_nvhc.sense.sim.diag import Plan, Said

DOCS = Path(__file__).parent.parent / "docs"

GOOD = """\
schema: 1
name: storm on one link
node:
  uptime: 3d
  readings: {g3.429: 12, g3.link11.replay: 12, "*.395": blank}
  identities:
    g0: {minor: 4}
  kernel_log:
    - "NVRM: hello"
    - {at: -2h, text: "NVRM: old"}
  engine_xids:
    - {gpu: g1, code: 31, at: -2h}
  pci: {g7: dead}
steps:
  - prolog: {job: 8812, gpus: [0, 1, 2, 3]}
  - storm: {link: g3.link11, amount: 21200, over: 41m}
  - epilog: {job: 8812, as: end}
  - health_check: {}
expect:
  - {after: end, gpus: {g3: fail}}
  - {after: "epilog#1", verdict: fail}
  - {verdict: ok}
"""


def error(text: str) -> str:
    with pytest.raises(InputError) as info:
        load.parse(text, "s.yaml")
    line = str(info.value)
    assert "\n" not in line
    assert line.startswith("s.yaml")
    return line


def test_a_good_file_and_its_node() -> None:
    loading = load.parse(GOOD, "s.yaml")
    world = world_steps.build(loading.scenario, loading.source)
    assert world.boot_ns == 3 * 86400 * 10**9
    assert world.gpus[3].readings["nvlink_replay_total"] == 12
    assert world.gpus[3].links[11]["nvlink_replay"] == 12
    assert world.gpus[0].identity.minor == 4
    assert (world.gpus[7].on_pci, world.gpus[7].responds) == (True, False)
    assert world.kernel[1].text == "NVRM: old"
    assert world.engine_events[0].at_ns == world.wall_ns - 7200 * 10**9
    assert [load.kind_of(s) for s in loading.scenario.steps] == ["prolog", "storm", "epilog", "health_check"]


def test_the_nodes_diagnostics() -> None:
    more = """\
  engine_version: 3.3.9
  diag_results: [{test: GPU Memory, gpu: g3, result: fail, text: bad, severity: triage}]
  diag_plan: {seconds: 2m, output: "{}", exit: 226, real_seconds: 1}
steps:"""
    loading = load.parse(GOOD.replace("steps:", more, 1), "s.yaml")
    world = world_steps.build(loading.scenario, loading.source)
    assert world.engine_version == "3.3.9"
    assert world.diag.said == [Said("memory", world.gpus[3].identity.uuid, "fail", None, "bad", "triage")]
    assert world.diag.plan == Plan("ok", 120.0, "{}", 226, 1)


def test_reading_the_file_leaves_the_node_at_its_start() -> None:
    """The rehearsal's storm must not be in the node that the replay starts with."""
    loading = load.parse(GOOD, "s.yaml")
    assert world_steps.build(loading.scenario, loading.source).gpus[3].links[11]["nvlink_replay"] == 12


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema: 1", "schema: 2", ["line 1", "key schema"]),
        ("name: storm on one link\n", "", ["key name is missing"]),
        ("  uptime: 3d", "  uptme: 3d", ["line 4", "key node.uptme", "did you mean uptime?"]),
        ("  uptime: 3d", "  uptime: soon", ["line 4", "key node.uptime", "'soon' is not a duration"]),
        ("  uptime: 3d", "  preset: hgx-h900-8", ["line 4", "key node.preset", "hgx-h100-8"]),
        ("  uptime: 3d", "  name: ../../etc", ["line 4", "key node.name", "is not a node's name"]),
        ("g3.429: 12", "g9.429: 12", ["line 5", "key node.readings.g9.429", "g0 to g7"]),
        ("g3.429: 12", "g3.nvlink_replay_totl: 12", ["line 5", "did you mean nvlink_replay_total?"]),
        ("g3.429: 12", "g3.230: 12", ["field 230", "engine_xid"]),
        ("g3.429: 12", "g3.429: yes", ["line 5", "'yes' is not a value"]),
        ("g3.link11.replay: 12", "g3.link40.replay: 12", ["no link 40"]),
        ("g0: {minor: 4}", "g0: {minr: 4}", ["line 7", "did you mean minor?"]),
        ("{gpu: g1, code: 31, at: -2h}", "{gpu: g1, code: 31, at: 2h}", ["line 12", "key node.engine_xids[0]"]),
        ("  - prolog:", "  - prollog:", ["line 15", "did you mean prolog?"]),
        ("gpus: [0, 1, 2, 3]", "gpus: [0, x]", ["line 15", "key steps[0].prolog.gpus"]),
        ("{link: g3.link11, amount: 21200, over: 41m}", "{link: g3.link11, over: 41m}", ["line 16", "amount is missing"]),
        ("link: g3.link11, amount", "link: g3.link11, counter: reply, amount", ["line 16", "key steps[1].storm", "did you mean replay?"]),
        ("  - health_check: {}\n", "  - {health_check: {}, wait: 3s}\n", ["line 18", "exactly one key", "health_check, wait"]),
        ("  - health_check: {}\n", "  - {}\n", ["line 18", "exactly one key"]),
        ("as: end}\n", "as: end}\n  - prolog: {job: 1, as: end}\n", ["name end is taken"]),
        ("as: end", "as: epilog", ["name epilog is taken"]),
        ("{after: end,", "{after: ent,", ["line 20", "key expect[0].after", "did you mean end?"]),
        ('after: "epilog#1"', 'after: "epilog#2"', ["line 21", "no step is called epilog#2"]),
        ("gpus: {g3: fail}", "gpus: {g8: fail}", ["line 20", "key expect[0].gpus.g8"]),
        ("gpus: {g3: fail}", "gpus: {g3: failed}", ["line 20", "did you mean fail?"]),
        ("gpus: {g3: fail}", "finding: {code: NVL-STROM}", ["line 20", "did you mean NVL-STORM?"]),
        ("gpus: {g3: fail}", "finding: {gpu: g12}", ["line 20", "g0 to g7"]),
        ("gpus: {g3: fail}", "finding: {link: 3}", ["line 20", "needs its gpu"]),
        ("gpus: {g3: fail}", "finding: {field: nvlink_repla}", ["line 20", "did you mean nvlink_replay?"]),
        ("gpus: {g3: fail}", "finding: {field: 9999}", ["line 20", "no field is called 9999", "docs/fields.md lists the fields"]),
        ("gpus: {g3: fail}", "finding: {code: QQQ}", ["line 20", "docs/findings.md lists the codes"]),
        ("  - health_check: {}", "  - schedule: {after: 3s, xid: {gpu: g9, code: 79}}", ["line 18", "key steps[3].schedule", "g0 to g7"]),
        ("  - health_check: {}", "  - schedule: {after: 3s, engine: {behaviour: crash, signal: x}}", ["line 18", "SIGSEGV, SIGABRT"]),
        ("  pci: {g7: dead}", "  engine_version: new", ["line 13", "key node.engine_version"]),
        ("  pci: {g7: dead}", "  diag_plan: {behaviour: sleeps}", ["line 13", "key node.diag_plan.behaviour"]),
        ("  pci: {g7: dead}", "  diag_results: [{test: memry, result: fail}]", ["line 13", "did you mean memory?"]),
        ("  - health_check: {}", "  - diag_result: {test: pcie, gpu: g9, result: fail}", ["line 18", "key steps[3].diag_result", "g0 to"]),
        ("  - health_check: {}", "  - diag_plan: {real_seconds: 3000}", ["line 18", "key steps[3].diag_plan", "ten minutes"]),
        ("gpus: {g3: fail}", "diag: {gpus: [g8]}", ["line 20", "key expect[0].diag.gpus", "g0 to g7"]),
        ("gpus: {g3: fail}", "diag: {outcome: finished}", ["line 20", "key expect[0].diag.outcome"]),
        ("gpus: {g3: fail}", "monitor: MON-ENGINE-HANG", ["line 20", "did you mean MON-ENGINE-HUNG?"]),
        ("  - {verdict: ok}", "  - {after: end}", ["line 22", "nothing is expected here"]),
    ],
)
def test_a_wrong_file_is_one_line(old: str, new: str, says: list[str]) -> None:
    assert old in GOOD
    line = error(GOOD.replace(old, new, 1))
    for part in says:
        assert part in line, line


SCHEDULED = """\
schema: 1
name: everything that can be scheduled
steps:
  - schedule:
      after: 10s
      set: {g1.429: 7}
      add: {g1.429: 1}
      lose: {gpu: g2, pci: absent}
      xid: {gpu: g3, code: 79}
      engine_xid: {gpu: g4, code: 31}
      kernel_log: [one, {text: two, at: -1s}]
      unreadable: {part: pci}
      swap: {gpu: g5, uuid: GPU-55555555-0000-0000-0000-000000000000}
      engine: {behaviour: slow, seconds: 3}
      diag_result: [{test: memory, gpu: g6, result: fail, error: 58}, {test: pcie, result: warn}]
      diag_plan: {behaviour: running, seconds: 10s}
  - schedule: {after: 20s, restore: g2, engine: ok}
  - health_check: {}
expect:
  - {verdict: ok}
"""


def test_what_is_scheduled_happens_at_its_moment() -> None:
    loading = load.parse(SCHEDULED, "s.yaml")
    world = world_steps.build(loading.scenario, loading.source)
    for number, step in enumerate(loading.scenario.steps[:2]):
        assert world_steps.apply(world, step, loading.source, ("steps", number))
    world.advance(9)
    assert (world.gpus[1].readings["nvlink_replay_total"], world.gpus[2].listed, world.kernel, world.behaviour) == (0, True, [], "ok")
    assert (world.diag.said, world.diag.running) == ([], None)
    world.advance(1)
    assert (world.gpus[1].readings["nvlink_replay_total"], world.gpus[2].listed, world.gpus[2].on_pci) == (8, False, False)
    assert [line.text[:9] for line in world.kernel] == ["NVRM: Xid", "one", "two"]
    assert [e.code for e in world.engine_events] == [79, 31]
    assert world.gpus[5].identity.uuid.startswith("GPU-5555")
    assert (world.behaviour, "pci" in world.blind) == ("slow", True)
    assert [(s.test, s.where, s.result, s.error) for s in world.diag.said] == [
        ("memory", world.gpus[6].identity.uuid, "fail", 58), ("pcie", "node", "warn", None),
    ]  # fmt: skip
    assert world.diag.now(world.wall_ns) is not None
    world.advance(10)
    assert world.diag.now(world.wall_ns) is None
    assert (world.gpus[2].listed, world.gpus[2].on_pci, world.behaviour) == (True, True, "ok")


def test_all_gpus_can_leave_the_bus() -> None:
    loading = load.parse(SCHEDULED.replace("  - health_check", '  - lose: {gpu: "*", pci: absent}\n  - health_check', 1), "s.yaml")
    world = world_steps.build(loading.scenario, loading.source)
    assert world_steps.apply(world, loading.scenario.steps[2], loading.source, ("steps", 2))
    assert not any(gpu.on_pci for gpu in world.gpus)


def test_nothing_expected_and_nothing_run() -> None:
    head, _, _ = GOOD.partition("expect:")
    assert "nothing is expected" in error(head + "expect: []\n")
    assert "no hook is run" in error("schema: 1\nname: x\nsteps:\n  - wait: 3s\nexpect:\n  - {verdict: ok}\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can not be read: No such file"):
        load.read(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="can not be read"):
        load.read(str(tmp_path))


@pytest.mark.parametrize(("text", "seconds"), [("-2h", -7200.0), ("90s", 90.0), (0, 0.0), (-5, -5.0), ("-1h30m", -5400.0)])
def test_moments(text: Any, seconds: float) -> None:
    assert times.moment(text) == seconds


@pytest.mark.parametrize("text", ["soon", "--2h", True, "- h"])
def test_not_a_moment(text: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        times.moment(text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_edit_of_a_file_escapes_as_anything_but_an_input_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 12)))
    text = GOOD[:start] + data.draw(st.text(max_size=8)) + GOOD[end:]
    raw = text.encode("utf-8", "replace") if data.draw(st.booleans()) else text
    with contextlib.suppress(InputError):
        load.parse(raw, "s.yaml")


def test_the_published_schema_is_current() -> None:
    """Refresh with: python -m slurm_nvhc.scenario.json_schema docs/scenario.schema.json"""
    assert json.loads((DOCS / "scenario.schema.json").read_text()) == json_schema()
