"""Which diagnostics a hook wants of which GPUs: pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.judge.wanted_diag import accused, asks, exit_code
from slurm_nvhc.model.diag import Ask
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.snapshot import LOST, OK, GpuIdentity, GpuState, Snapshot
from slurm_nvhc.policy import source
from slurm_nvhc.policy.compiled import Policy

GPUS = ("GPU-a", "GPU-b", "GPU-c")


def policy(folder: Path, partition: str = "", **written: Any) -> Policy:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, **written}))
    path.chmod(0o644)
    loaded = source.load(str(path), str(folder), "n1", partition, keep=False)
    assert not loaded.troubles
    return loaded.policy


def gpu(uuid: str, model: str = "NVIDIA H100 80GB HBM3", status: str = OK, mig: bool = False) -> GpuState:
    return GpuState(GpuIdentity(uuid, model=model, mig=mig), status, {}, {})


def snapshot(*gpus: GpuState) -> Snapshot:
    rows = gpus or tuple(gpu(uuid) for uuid in GPUS)
    return Snapshot("n1", "sim", "", "b", 1, 1, gpus={row.identity.uuid: row for row in rows})


def job(gpus: int = 3, nodes: int | None = 1, status: int | None = 0) -> Job:
    return Job("5", positions=tuple(range(gpus)), nodes=nodes, exit_code=status)


def finding(code: str, entity: str, verdict: str = "warn", klass: str = "gpu", mode: str = "enforce") -> Finding:
    return Finding(code, entity, klass, verdict, "", Evidence(), {}, mode=mode)


def uuids(found: tuple[Ask, ...]) -> tuple[str, ...]:
    return tuple(u for ask in found for u in ask.uuids)


def test_nothing_unless_the_policy_asks(tmp_path: Path) -> None:
    by_default = policy(tmp_path)
    bad = [finding("NVL-STORM", "GPU-a", "fail")]
    for hook in (PROLOG, EPILOG):
        assert asks(hook, job(status=256), GPUS, snapshot(), bad, by_default) == ()
    assert asks(HEALTH_CHECK, None, GPUS, snapshot(), bad, by_default) == ()


def test_a_hook_asks_for_its_own(tmp_path: Path) -> None:
    all_three = policy(tmp_path, diagnostics={"prolog": 1, "epilog": "memory,pcie", "epilog_when": "always", "drained": 3})
    assert asks(PROLOG, job(), GPUS, snapshot(), (), all_three) == (Ask(("1",), GPUS),)
    assert asks(EPILOG, job(), GPUS[:2], snapshot(), (), all_three) == (Ask(("memory", "pcie"), GPUS[:2]),)
    assert asks(HEALTH_CHECK, None, GPUS, snapshot(), (), all_three) == (Ask(("3",), GPUS),)


def test_an_epilog_tests_what_is_accused(tmp_path: Path) -> None:
    given = policy(tmp_path, diagnostics={"epilog": 2})
    assert asks(EPILOG, job(status=256), GPUS, snapshot(), (), given) == ()
    bad = [finding("NVL-REPLAY", "GPU-b/link3", klass="link"), finding("MEM-SRAM", "GPU-z", "fail")]
    assert uuids(asks(EPILOG, job(), GPUS, snapshot(), bad, given)) == ("GPU-b",), "GPU-z is not the job's"


def test_what_accuses() -> None:
    assert accused([finding("MEM-CORRECTED", "GPU-a", mode="observe"), finding("XID-OTHER", "GPU-b", "fail")]) == {"GPU-a", "GPU-b"}
    innocent = [
        finding("NVL-REPLAY", "GPU-a", "ok"),
        finding("NO-DATA", "GPU-a", "unknown"),
        finding("XID-APP", "GPU-a"),
        finding("CONFIG-PERSISTENCE", "GPU-a"),
        finding("GPU-NEW", "GPU-a"),
        finding("GPU-EXCLUDED", "GPU-a"),
        finding("DIAG-NO-RESULT", "GPU-a"),
        finding("SWITCH-PORT", "switch:0000:c3:00.0/port1", "fail", "switch"),
        finding("MON-DIAG", "monitor:diag", "fail", "monitor"),
    ]
    assert accused(innocent) == frozenset()


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (768, 3), (256, 1), (9, 137), (11 | 128, 139), (15, 143), (65280, 255)]
)
def test_exit_codes_as_people_write_them(status: int, code: int) -> None:
    assert exit_code(status) == code


@pytest.mark.parametrize(
    ("codes", "status", "runs"),
    [
        ([], 768, True),
        ([], 9, True),
        ([], 0, False),
        ([], None, False),
        ([3, 137], 768, True),
        ([3, 137], 9, True),
        ([3, 137], 256, False),
        ([3], 3, False),
        ([0], 0, True),
    ],
)
def test_after_a_job_that_failed(tmp_path: Path, codes: list[int], status: int | None, runs: bool) -> None:
    given = policy(tmp_path, diagnostics={"epilog": 2, "epilog_when": "failed", "exit_codes": codes})
    bad = [finding("NVL-STORM", "GPU-a", "fail")]
    assert bool(asks(EPILOG, job(status=status), GPUS, snapshot(), bad, given)) is runs


@pytest.mark.parametrize(
    ("written", "given", "runs"),
    [
        ({"min_gpus": 3}, job(3), True),
        ({"min_gpus": 4}, job(3), False),
        ({"min_nodes": 2}, job(3, 2), True),
        ({"min_nodes": 2}, job(3, 1), False),
        ({"min_nodes": 2}, job(3, None), False),
    ],
)
def test_small_jobs_are_spared(tmp_path: Path, written: dict[str, int], given: Job, runs: bool) -> None:
    for hook in (PROLOG, EPILOG):
        asked = policy(tmp_path, diagnostics={"prolog": 2, "epilog": 2, "epilog_when": "always", **written})
        assert bool(asks(hook, given, GPUS, snapshot(), (), asked)) is runs


def test_models_and_partitions_differ(tmp_path: Path) -> None:
    written = {
        "diagnostics": {"prolog": 1},
        "models": {"NVIDIA A100*": {"diagnostics": {"prolog": "memory"}}, "NVIDIA L4": {"diagnostics": {"prolog": "none"}}},
        "partitions": {"debug": {"diagnostics": {"prolog": 2}}},
    }
    mixed = snapshot(gpu("GPU-a"), gpu("GPU-b", "NVIDIA A100-SXM4-40GB"), gpu("GPU-c", "NVIDIA L4"))
    found = asks(PROLOG, job(), GPUS, mixed, (), policy(tmp_path, **written))
    assert found == (Ask(("1",), ("GPU-a",)), Ask(("memory",), ("GPU-b",)))
    in_debug = asks(PROLOG, job(), GPUS, mixed, (), policy(tmp_path, "debug", **written))
    assert in_debug == (Ask(("2",), GPUS),), "a partition's own words come after the model's"


def test_lost_and_mig_gpus_are_left_out(tmp_path: Path) -> None:
    node = snapshot(gpu("GPU-a", status=LOST), gpu("GPU-b", mig=True), gpu("GPU-c"))
    assert uuids(asks(PROLOG, job(), (*GPUS, "GPU-z"), node, (), policy(tmp_path, diagnostics={"prolog": 2}))) == ("GPU-c",)
    assert uuids(asks(PROLOG, job(), GPUS, node, (), policy(tmp_path, diagnostics={"prolog": 1}))) == ("GPU-b", "GPU-c")


def test_parameters_and_the_way_go_along(tmp_path: Path) -> None:
    written = {"prolog": 2, "parameters": ["pcie.max_pcie_replays=80"], "through": "dcgmi", "dcgmi": "/opt/dcgmi"}
    (found,) = asks(PROLOG, job(), GPUS, snapshot(), (), policy(tmp_path, diagnostics=written))
    assert found == Ask(("2",), GPUS, ("pcie.max_pcie_replays=80",), "dcgmi", "/opt/dcgmi")
