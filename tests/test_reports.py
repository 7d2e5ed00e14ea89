"""The field reports as acceptance cases: each file in tests/scenarios is replayed through the real hooks.

Test ids begin with the report's id (``-k R11``). A file whose name says "flipped" inside takes the
fault away or plants it. The tests below the files vary the numbers.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from slurm_nvhc.catalog import diags
from slurm_nvhc.policy import show
from slurm_nvhc.proc.budget import ACT_SHARE
from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.run import Report, run, run_file
from slurm_nvhc.sense.diag import STOP_S

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.yaml"))
REPORTS = [
    "R01", "R02", "R06", "R11", "R12", "R20", "R21", "R27", "R28", "R36", "R39", "R40", "R49", "R52", "R56", "R57",
    "R64", "R65", "R72", "R77",
]  # fmt: skip


def missed(report: Report) -> str:
    checks = [f"{c.where}: expected {c.wanted}, seen {c.seen}" for c in report.checks if not c.ok]
    runs = [f"{r.name} ({r.seconds:.1f}s): {r.verdict} {[(*f[:2], f.message) for f in r.findings]} {r.troubles}" for r in report.runs]
    return "\n".join([*checks, *runs])


def holds(tmp_path: Path, text: str) -> None:
    tmp_path.chmod(0o755)
    report = run(load.parse(text, "scenario"), str(tmp_path))
    assert report.ok, missed(report)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_report(path: Path) -> None:
    report = run_file(str(path))
    assert report.ok, missed(report)
    # Files that no report asked for are named after what they are about.
    assert report.report == (path.stem[:3] if path.stem[1:3].isdigit() else "")


def test_every_report_has_a_fault_and_its_opposite() -> None:
    for number in REPORTS:
        texts = [p.read_text() for p in FILES if p.stem.startswith(number)]
        assert len(texts) >= 2, number
        assert any("verdict: fail" in t or "action: drain" in t or "narrow" in t for t in texts), number
        assert any("action: none" in t or "no_action" in t for t in texts), number


@pytest.mark.parametrize(("before", "delta", "field"), [(57, 0, 409), (57, 1, 429), (1, 3, 439), (9_000_000_000, 2, 409), (0, 0, 439)])
def test_R01_numbers(tmp_path: Path, before: int, delta: int, field: int) -> None:
    judged = "{verdict: ok, action: none, node: {state: idle}}"
    if delta:
        judged = f"{{verdict: fail, finding: {{gpu: g5, before: {before}, amount: {delta}}}, action: drain, node: {{state: drained}}}}"
    holds(
        tmp_path,
        f"""
schema: 1
name: R01 with other numbers
node: {{readings: {{g5.{field}: {before}}}}}
policy:
  defaults: false
  rules:
    nvlink: {{field: [409, 419, 429, 439], fail: {{increase_above: 0}}, action: drain}}
steps:
  - prolog: {{job: 1}}
  - wait: 17m
  - set: {{g5.{field}: {before + delta}}}
  - epilog: {{job: 1}}
expect:
  - {judged}
""",
    )


@pytest.mark.parametrize(("before", "after", "verdict"), [(77, 76, "fail"), (12, 3, "fail"), (12, 0, "ok"), (4_294_967_295, 1, "fail")])
def test_R02_numbers(tmp_path: Path, before: int, after: int, verdict: str) -> None:
    """The count since the reset is the lower bound, also when it is just below the one before."""
    judged = "{no_finding: [{verdict: fail}, {amount_below: 0}], action: none}"
    if verdict == "fail":
        judged = f"{{finding: {{gpu: g2, verdict: fail, amount: {after}, bound: at_least}}, action: drain}}"
    holds(
        tmp_path,
        f"""
schema: 1
name: R02 with other numbers
node: {{readings: {{g2.439: {before}}}}}
policy:
  defaults: false
  rules:
    recovery: {{field: 439, fail: {{increase_above: 0}}, action: drain, after_reset: fail}}
steps:
  - prolog: {{job: 1}}
  - wait: 17m
  - set: {{g2.439: {after}}}
  - epilog: {{job: 1}}
expect:
  - {judged}
""",
    )


@pytest.mark.parametrize("seed", range(4))
def test_R11_any_order_of_minors(tmp_path: Path, seed: int) -> None:
    """A random order of device files; the job has two random positions, one of its GPUs gets worse, and one of the others."""
    dice = random.Random(seed)
    minors = list(range(8))
    dice.shuffle(minors)
    mine = dice.sample(range(8), 2)
    others = [m for m in range(8) if m not in mine]
    guilty, bystander = minors.index(mine[0]), minors.index(dice.choice(others))
    table = "\n".join(f"    g{index}: {{minor: {minor}}}" for index, minor in enumerate(minors))
    holds(
        tmp_path,
        f"""
schema: 1
name: R11 with other numbers
node:
  identities:
{table}
policy:
  defaults: false
  rules:
    replay: {{field: 429, fail: {{increase_above: 0}}, action: drain}}
steps:
  - prolog: {{job: 1, gpus: {mine}}}
  - wait: 17m
  - add: {{g{guilty}.429: {seed + 1}, g{bystander}.429: 40}}
  - epilog: {{job: 1}}
expect:
  - gpus: {{g{guilty}: fail, g{bystander}: ok}}
    finding: {{verdict: fail, count: 1, amount: {seed + 1}}}
    node: {{state: drained, reason_contains: gpu{guilty}}}
""",
    )


@pytest.mark.parametrize("version", ["3.3.9", "4.6.0"])
@pytest.mark.parametrize(
    ("gpu", "test", "error", "verdict"),
    [(0, "memory", 58, "fail"), (7, "memory", 52, "fail"), (5, "pcie", 3, "fail"), (2, "pcie", 45, "warn"), (6, "pcie", 30, "warn")],
)
def test_R36_numbers(tmp_path: Path, version: str, gpu: int, test: str, error: int, verdict: str) -> None:
    """What DCGM says to isolate is a failure, its other severities are warnings; of both generations the same, on whichever GPU."""
    others = ", ".join(f"g{i}: ok" for i in range(8) if i != gpu)
    holds(
        tmp_path,
        f"""
schema: 1
name: R36 with other numbers
node:
  engine_version: {version}
  diag_results: [{{test: {test}, gpu: g{gpu}, result: fail, error: {error}}}]
policy:
  budgets: {{prolog: 10m}}
  diagnostics: {{prolog: 2}}
steps:
  - prolog: {{job: 1}}
expect:
  - gpus: {{g{gpu}: {verdict}, {others}}}
    finding: {{code: DIAG-FAIL, gpu: g{gpu}, verdict: {verdict}, message: {test}, count: 1}}
    {"action: drain" if verdict == "fail" else "no_action: [drain, exclude, narrow]"}
""",
    )


@pytest.mark.parametrize("seed", range(3))
def test_R39_any_gpus_in_use(tmp_path: Path, seed: int) -> None:
    """Of the job's GPUs those are tested that nobody uses, and what happens on other jobs' GPUs is none of its business."""
    dice = random.Random(seed)
    mine = sorted(dice.sample(range(8), 4))
    busy = sorted({*dice.sample(mine, 1 + seed), *dice.sample([i for i in range(8) if i not in mine], 2)})
    free = [i for i in mine if i not in busy]
    readings = ", ".join(f"g{i}.gpu_processes: {1 + i}" for i in busy)
    judged = ", ".join(f"g{i}: {'unknown' if i in busy and i in mine else 'ok'}" for i in range(8))
    holds(
        tmp_path,
        f"""
schema: 1
name: R39 with other numbers
node: {{readings: {{{readings}}}}}
policy:
  budgets: {{prolog: 10m}}
  diagnostics: {{prolog: 2}}
steps:
  - prolog: {{job: 1, gpus: {mine}}}
expect:
  - diag: {{ran: true, outcome: done, gpus: [{", ".join(f"g{i}" for i in free)}]}}
    gpus: {{{judged}}}
    action: none
""",
    )


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize(("more", "fits"), [(-3, False), (10, True)])
def test_R56_numbers(tmp_path: Path, level: str, more: int, fits: bool) -> None:
    """It is run when its usual time, and that for stopping it, fit in what the share for acting leaves of the budget."""
    budget = int((diags.seconds((level,)) + STOP_S) / (1 - ACT_SHARE)) + more
    judged = "verdict: unknown, diag: {ran: false, outcome: not_run, why: budget}"
    if fits:
        judged = "verdict: ok, diag: {ran: true, outcome: done}"
    holds(
        tmp_path,
        f"""
schema: 1
name: R56 with other numbers
policy:
  budgets: {{prolog: {budget}s}}
  diagnostics: {{prolog: {level}}}
steps:
  - prolog: {{job: 1}}
expect:
  - {{exit: 0, within: {budget}s, action: none, left_processes: 0, {judged}}}
""",
    )


@pytest.mark.parametrize(
    ("limit", "amount", "wait", "verdict"),
    [
        ("8/min", 17, "2m", "fail"),
        ("8/min", 16, "2m", "ok"),
        ("0.5/s", 200, "6m", "fail"),
        ("100/h", 200, "2h", "ok"),
        ("8/min", 5000, "0s", ""),
    ],
)
def test_R52_numbers(tmp_path: Path, limit: str, amount: int, wait: str, verdict: str) -> None:
    judged = f"{{gpus: {{g7: {verdict}}}}}" if verdict else "{no_finding: {verdict: fail}, exit: 0}"
    holds(
        tmp_path,
        f"""
schema: 1
name: R52 with other numbers
node: {{readings: {{g7.202: 31337}}}}
policy:
  defaults: false
  rules:
    pcie: {{field: 202, fail: {{rate_above: {limit}}}, action: drain}}
steps:
  - prolog: {{job: 1}}
  - wait: {wait}
  - add: {{g7.202: {amount}}}
  - epilog: {{job: 1}}
expect:
  - {judged}
""",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules:\n  a: {field: 429, fail: {increase_above: 0}}\n  nvlink_recovry: {feild: 439}\n", ["line 3", "feild", "field"]),
        ("rules:\n  a: {field: 429, max_delta: no}\n", ["line 2", "max_delta"]),
        ("rules:\n  a: {field: 429, fail: {increase_above: no}, action: drain}\n", ["line 2", "increase_above"]),
        ("rules:\n\ta: {field: 429}\n", ["line 2", "tab"]),
        ("rules:\n  a: {field: 429, fail: {increase_above: 0}}\n  a: {field: 439, fail: {increase_above: 0}}\n", ["line 3", "twice"]),
        ("rules:\n  a: {field: 429, fail: {increase_above: '0x1F'}}\n", ["line 2", "0x1F"]),
        ("rules:\n  a: {field: 429, fail: {increase_above: 1e3}}\n", ["line 2", "1e3"]),
    ],
    ids=["misspelt", "unknown-limit", "no", "tab", "twice", "quoted-hex", "exponent"],
)
def test_R77_validation_names_line_and_key(tmp_path: Path, text: str, says: list[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    told = show.check(str(path))
    assert not told.ok
    for part in says:
        assert part in "\n".join(told.lines)
