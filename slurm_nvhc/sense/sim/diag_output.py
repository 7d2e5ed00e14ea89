"""The simulated node's answer to a diagnostic: the JSON that dcgmi of its engine's generation would print. Pure.

So it goes the same way as a real one: through sense/diag_json.py. Shapes, numbers and words follow DCGM 3.3.9 and 4.6.0.
"""

from __future__ import annotations

import json
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.model import diag, entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.sense.sim.diag import NOT_INSTALLED, Said, tests_of
from slurm_nvhc.sense.sim.state import SimGpu, SimState

# dcgmi's exit statuses: the engine's return code, the lowest byte of it
FAILED, ISOLATE, RUNNING, NO_NVVS, KILLED, NO_TEST, BAD_PARAMETER = 226, 205, 217, 204, 203, 198, 255
_SAYS: Final[Mapping[int, str]] = {
    RUNNING: "Return: (-39): A diagnostic is already running",
    NO_NVVS: "Return: (-52): The NVVS binary was not found",
    KILLED: "Return: (-53): The NVVS process was killed",
    NO_TEST: "Return: (-58): None of the requested tests is available",
    BAD_PARAMETER: "Return: (-1): Bad parameter: one of the GPUs is not known",
}
_STATUS: Final[Mapping[str, str]] = {
    diag.PASS: "Pass", diag.SKIP: "Skip", diag.WARN: "Warn", diag.FAIL: "Fail", diag.NOT_RUN: "Not Run",
}  # fmt: skip
_WORST: Final = (diag.PASS, diag.NOT_RUN, diag.SKIP, diag.WARN, diag.FAIL)
_SEVERITY: Final[Mapping[str, int]] = {word: number for number, word in diags.SEVERITIES.items()}
_CATEGORIES: Final = ("Deployment", "Integration", "Hardware", "Stress")
_HARDWARE: Final = ("memory", "diagnostic", "pulse_test", "eud")
_INTEGRATION: Final = ("pcie", "nvbandwidth", "nccl_tests")
_BUSY: Final = "Error using CUDA API cuCtxCreate: all CUDA-capable devices are busy or unavailable"
# What 3.x calls a test, and the checks of which it makes the software test -> errors that belong to one
_OLD: Final[Mapping[str, str]] = {
    "memory": "GPU Memory", "pcie": "PCIe", "diagnostic": "Diagnostic", "memory_bandwidth": "Memory Bandwidth",
    "targeted_stress": "Targeted Stress", "targeted_power": "Targeted Power", "memtest": "Memtest", "pulse_test": "Pulse Test",
    "eud": "EUD Test", "sm_stress": "SM Stress", "context_create": "Context Create",
}  # fmt: skip
_OTHER: Final = "Permissions and OS-related Blocks"
_CHECKS: Final[Mapping[str, tuple[int, ...]]] = {
    "Denylist": (23,), "NVML Library": (24,), "CUDA Main Library": (22,), _OTHER: (), "Persistence Mode": (29,),
    "Environmental Variables": (28,), "Page Retirement/Row Remap": (6, 7, 8, 80, 83, 84, 85, 118), "Graphics Processes": (25,),
    "Inforom": (9,),
}  # fmt: skip


class Told(NamedTuple):
    """What a test says of a part."""

    status: str
    errors: tuple[diag.Error, ...] = ()
    info: str = ""


class Answer(NamedTuple):
    """dcgmi's standard output, and its exit status."""

    text: str
    rc: int


def ids(state: SimState) -> dict[int, str]:
    """DCGM id -> UUID."""
    return {_id(state, gpu): gpu.identity.uuid for gpu in state.gpus}


def failure(state: SimState, rc: int) -> Answer:
    """An answer of a run that came to nothing."""
    return Answer(json.dumps({_root(state): {"runtime_error": _SAYS[rc]}}), rc)


def answer(state: SimState, ask: diag.Ask) -> Answer:
    """What the tests say of the GPUs asked for, at this moment."""
    cards = [gpu for gpu in state.gpus if gpu.identity.uuid in ask.uuids]
    if len(cards) != len(set(ask.uuids)):
        return failure(state, BAD_PARAMETER)
    tests = tests_of(ask.tests, state.engine_version)
    if not tests:
        return failure(state, NO_TEST)
    rows = {test: {gpu.identity.uuid: _told(state, test, gpu) for gpu in cards} for test in tests}
    for test in tests:
        said = state.diag.says(test, entity.NODE)
        if said is not None:
            rows[test][entity.NODE] = Told(said.result, _errors(said, ""))
    document = _old(state, rows) if _root(state) == "DCGM GPU Diagnostic" else _new(state, rows)
    return Answer(json.dumps(document), _rc(rows))


def _told(state: SimState, test: str, gpu: SimGpu) -> Told:
    """What follows from the card's state, and what it was told to say."""
    said, number = state.diag.says(test, gpu.identity.uuid), _id(state, gpu)
    lost = gpu.status == snap.LOST or not gpu.responds
    if test == "software":
        status, errors = _software(gpu, number, lost)
    elif test in NOT_INSTALLED and said is None:
        return Told(diag.SKIP, info=f"{test} is not installed")
    elif lost or gpu.identity.mig:
        return Told(diag.SKIP, info="the GPU does not answer" if lost else "MIG mode is enabled")
    elif rd.number(gpu.readings.get("gpu_processes")):
        status, errors = diag.FAIL, [diag.Error(f"{_BUSY} for GPU {number}", 51, "monitor")]
    else:
        status, errors = diag.PASS, []
    if said is not None:
        status, errors = max(status, said.result, key=_WORST.index), [*errors, *_errors(said, f" on GPU {number}")]
    return Told(status, tuple(errors))


def _software(gpu: SimGpu, number: int, lost: bool) -> tuple[str, list[diag.Error]]:
    """Level 1's view of the readings, as DCGM's Software.cpp takes them."""
    if lost:
        return diag.FAIL, [_error(120, f"GPU {number} has fallen off the bus")]

    def is_set(name: str) -> bool:
        return bool(rd.number(gpu.readings.get(name)))

    found = []
    if is_set("retired_pages_pending"):
        double = is_set("ecc_dbe_volatile")
        found.append(_error(83 if double else 6, f"A pending retired page has been detected in GPU {number}."))
    if sum(rd.number(gpu.readings.get(name)) or 0 for name in ("retired_pages_sbe", "retired_pages_dbe")) >= 63:
        found.append(_error(7, f"63 or more retired pages have been detected in GPU {number}."))
    if is_set("row_remap_failure"):
        found.append(_error(80, f"GPU {number} had uncorrectable memory errors and row remapping failed."))
    elif is_set("row_remap_pending"):
        if is_set("remapped_rows_uncorrectable"):
            found.append(_error(84, f"GPU {number} had uncorrectable memory errors and rows were remapped"))
        else:
            found.append(_error(85, f"GPU {number} had memory errors and row remappings are pending"))
    if is_set("sram_threshold_exceeded"):
        found.append(_error(118, f"SRAM Threshold Count exceeded on GPU {number}: 1"))
    if found:
        return diag.FAIL, found
    if rd.number(gpu.readings.get("persistence_mode")) == 0:
        return diag.WARN, [_error(29, f"Persistence mode for GPU {number} is disabled.")]
    return diag.PASS, []


def _error(code: int, text: str) -> diag.Error:
    return diag.Error(text, code, diags.ERRORS[code][1])


def _errors(said: Said, about: str) -> tuple[diag.Error, ...]:
    if said.error is None and not said.text:
        return ()
    name, severity = diags.ERRORS.get(-1 if said.error is None else said.error, ("UNKNOWN", ""))
    return (diag.Error(said.text or f"{name.replace('_', ' ').capitalize()}{about}.", said.error, said.severity or severity),)


def _rc(rows: Mapping[str, Mapping[str, Told]]) -> int:
    failed = [told for row in rows.values() for told in row.values() if told.status == diag.FAIL]
    if any(error.severity == "isolate" for told in failed for error in told.errors):
        return ISOLATE
    return FAILED if failed else 0


def _id(state: SimState, gpu: SimGpu) -> int:
    """An engine numbers its GPUs; where the node was told no number, it is the place."""
    known = gpu.identity.dcgm_id
    return state.gpus.index(gpu) if known is None else known


def _root(state: SimState) -> str:
    return "DCGM GPU Diagnostic" if state.engine_version.startswith("3.") else "DCGM Diagnostic"


def _warnings(errors: Sequence[diag.Error], key: str = "warning") -> list[dict[str, Any]]:
    return [{key: e.text, **_number("error_id", e.code), **_number("error_severity", _SEVERITY.get(e.severity))} for e in errors]


def _number(key: str, value: Optional[int]) -> dict[str, int]:
    return {} if value is None else {key: value}


def _category(test: str) -> str:
    if test == "software":
        return "Deployment"
    return "Hardware" if test in _HARDWARE else "Integration" if test in _INTEGRATION else "Stress"


def _categories(tests: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """category -> its tests, empty ones left out."""
    return [{"category": name, "tests": tests[name]} for name in _CATEGORIES if tests.get(name)]


def _new(state: SimState, rows: Mapping[str, Mapping[str, Told]]) -> dict[str, Any]:
    """4.x: per entity; the summary of a test repeats all of its errors, and has those of no entity."""
    number = {uuid: n for n, uuid in ids(state).items()}
    tests: dict[str, list[dict[str, Any]]] = {}
    for test, row in rows.items():
        results: list[dict[str, Any]] = []
        for where, told in row.items():
            if where != entity.NODE and told.status != diag.NOT_RUN:  # dcgmi leaves out what did not run
                about = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": number[where], "status": _STATUS[told.status]}
                warnings, info = _warnings(told.errors), [told.info]
                results.append({**about, **({"warnings": warnings} if warnings else {}), **({"info": info} if told.info else {})})
        everything = _warnings([e for told in row.values() for e in told.errors])
        worst = max((told.status for told in row.values()), key=_WORST.index)
        summary = {"status": _STATUS[worst], **({"warnings": everything} if everything else {})}
        entry = {"name": test, "results": results, "test_summary": summary}
        tests.setdefault(_category(test), []).append(entry if results else {k: v for k, v in entry.items() if k != "results"})
    return {
        _root(state): {"test_categories": _categories(tests)},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": [{"entity_id": n} for n in sorted(ids(state))]}],
        "metadata": {"version": state.engine_version, "Driver Version Detected": state.driver},
    }


def _old(state: SimState, rows: Mapping[str, Mapping[str, Told]]) -> dict[str, Any]:
    """3.3: per GPU, and software in checks of the whole node, each of which names the last GPU that it complains about."""
    number = {uuid: n for n, uuid in ids(state).items()}
    tests: dict[str, list[dict[str, Any]]] = {}
    for test, row in rows.items():
        if test == "software":
            tests["Deployment"] = [_check(name, row, number) for name in _CHECKS]
            continue
        results: list[dict[str, Any]] = []
        for where, told in row.items():
            if told.status != diag.NOT_RUN:
                gpu = {} if where == entity.NODE else {"gpu_id": str(number[where])}
                warnings = _warnings(told.errors)
                more = {**({"warnings": warnings} if warnings else {}), **({"info": told.info} if told.info else {})}
                results.append({**gpu, "status": _STATUS[told.status], **more})
        if results:
            tests.setdefault(_category(test), []).append({"name": _OLD[test], "results": results})
    body = {"version": state.engine_version, "Driver Version Detected": state.driver, "test_categories": _categories(tests)}
    return {_root(state): body}


def _check(name: str, row: Mapping[str, Told], number: Mapping[str, int]) -> dict[str, Any]:
    """One software check. Its warnings carry their text under the key "warnings", as dcgmi 3.3 writes them."""
    named = {code for codes in _CHECKS.values() for code in codes}
    result: dict[str, Any] = {"status": "Pass"}
    worst, found = diag.PASS, []
    for where, told in row.items():
        mine = [e for e in told.errors if e.code in _CHECKS[name] or (name == _OTHER and e.code not in named)]
        bare = name == _OTHER and not told.errors  # it says so without an error: nothing tells which check that is
        if mine or bare:
            worst = max(worst, told.status, key=_WORST.index)
            found += mine
        if mine and where != entity.NODE:
            result["gpu_id"] = number[where]
    result["status"] = _STATUS[worst]
    if found:
        result["warnings"] = _warnings(found, "warnings")
    return {"name": name, "results": [result]}
