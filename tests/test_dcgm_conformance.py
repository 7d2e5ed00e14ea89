"""What the backend uses of NVIDIA's bindings, held against bindings that NVIDIA wrote.

They are on PyPI inside triton-model-analyzer (a 3.1 layout). `./run test` installs it,
without its dependencies, beside the environment; elsewhere NVHC_CONFORMANCE names the
folder it was installed to (pip install --no-deps --target FOLDER triton-model-analyzer).
Only the text is read: importing needs libdcgm.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest
from stub_node import BINDINGS

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.sense.dcgm import bindings, health, identity, links, live, status, watch

ROOT = Path(__file__).parent.parent
PLACES = [ROOT / ".venv/conformance", *([Path(os.environ["NVHC_CONFORMANCE"])] if os.environ.get("NVHC_CONFORMANCE") else [])]
BACKEND = sorted((ROOT / "slurm_nvhc/sense/dcgm").glob("*.py"))
MODULE = {"agent": "dcgm_agent", "structs": "dcgm_structs", "fields": "dcgm_fields", "pydcgm": "pydcgm"}


@pytest.fixture(scope="module")
def nvidia() -> Path:
    for place in PLACES:
        folder = place / "model_analyzer/monitor/dcgm"
        if (folder / "dcgm_agent.py").is_file():
            return folder
    places = ", ".join(map(str, PLACES))
    reason = f"triton-model-analyzer is not in {places}: pip install --no-deps --target FOLDER triton-model-analyzer"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def tree(folder: Path, module: str) -> ast.Module:
    return ast.parse((folder / f"{module}.py").read_text(encoding="utf-8"))


def functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


def assigned(module: ast.Module) -> dict[str, Any]:
    """Names at the top of a module; the value where it is a plain number."""
    out: dict[str, Any] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                out[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                out[node.targets[0].id] = None
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            out[node.name] = None
    return out


def structure(module: ast.Module, name: str) -> list[str]:
    (found,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name]
    for node in found.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_fields_":
            assert isinstance(node.value, ast.List)
            return [item.elts[0].value for item in node.value.elts]  # type: ignore[attr-defined]
    raise AssertionError(f"{name} has no fields")


def module_of(node: ast.expr) -> str:
    """Which of NVIDIA's modules an expression such as ``connection.bindings.agent`` or ``structs`` is."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return MODULE.get(name, "")


def used() -> set[tuple[str, str]]:
    out = set()
    for path in BACKEND:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and module_of(node.value):
                out.add((module_of(node.value), node.attr))
    return out


def calls() -> list[tuple[str, int, list[str]]]:
    """(function, positional arguments, keywords) of every direct call into dcgm_agent."""
    out = []
    for path in BACKEND:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and module_of(node.func.value) == "dcgm_agent":
                out.append((node.func.attr, len(node.args), [str(k.arg) for k in node.keywords]))
            elif isinstance(node.func, ast.Name) and node.func.id == "_quietly" and isinstance(node.args[0], ast.Attribute):
                out.append((node.args[0].attr, len(node.args) - 1, []))
    return out


def test_what_is_looked_for_here_is_found() -> None:
    names = {name for _, name in used()}
    assert {"dcgmEntitiesGetLatestValues", "DcgmHandle", "DcgmFieldGetById", "c_dcgmGroupEntityPair_t", "dcgmHealthCheck"} <= names
    assert {"dcgmWatchFields", "dcgmUnwatchFields", "dcgmGetValuesSince_v2"} <= {name for name, _, _ in calls()}


def test_every_name_exists(nvidia: Path) -> None:
    for module, name in used():
        known = assigned(tree(nvidia, module))
        if module == "pydcgm":  # it only gathers the classes of the other modules
            known = assigned(tree(nvidia, name))
        assert name in known, f"{module}.{name}"


def test_every_call_fits_the_signature(nvidia: Path) -> None:
    known = functions(tree(nvidia, "dcgm_agent"))
    for name, positional, keywords in calls():
        if name.endswith("_f"):
            continue  # a type of callback, not a function
        arguments = known[name].args
        names = [a.arg for a in arguments.args]
        assert len(names) - len(arguments.defaults) <= positional + len(keywords) <= len(names), name
        assert set(keywords) <= set(names), name


def test_the_handle_takes_what_it_is_given(nvidia: Path) -> None:
    (handle,) = [n for n in tree(nvidia, "DcgmHandle").body if isinstance(n, ast.ClassDef)]
    (init,) = [n for n in handle.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    assert {"ipAddress", "unixSocketPath", "persistAfterDisconnect", "timeoutMs"} <= {a.arg for a in init.args.args}
    assert "self.handle = " in (nvidia / "DcgmHandle.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("c_dcgmGroupEntityPair_t", ["entityGroupId", "entityId"]),
        ("c_dcgmFieldValue_v1", ["fieldId", "fieldType", "status", "ts", "value"]),
        ("c_dcgmFieldValue_v2", ["entityGroupId", "entityId", "fieldId", "fieldType", "status", "ts", "value"]),
        ("c_dcgmVersionInfo_v2", ["version", "rawBuildInfoString"]),
        ("c_dcgmGroupInfo_v2", ["count", "groupName", "entityList"]),
        ("c_dcgmAllFieldGroup_v1", ["numFieldGroups", "fieldGroups"]),
        ("c_dcgmFieldGroupInfo_v1", ["fieldGroupId", "fieldGroupName"]),
        ("c_dcgmNvLinkStatus_v3", ["numGpus", "gpus", "numNvSwitches", "nvSwitches"]),
        ("c_dcgmNvLinkGpuLinkStatus_v3", ["entityId", "linkState"]),
        ("c_dcgmDeviceTopology_v1", ["numGpus", "gpuPaths"]),
        ("c_dcgmDeviceTopologyPath_t", ["gpuId", "localNvLinkIds"]),
        ("c_dcgmHealthResponse_v4", ["incidentCount", "incidents"]),
        ("c_dcgmIncidentInfo_t", ["system", "health", "error", "entityInfo"]),
        ("c_dcgmDiagErrorDetail_t", ["msg", "code"]),
    ],
)
def test_structures_have_the_members_that_are_read(nvidia: Path, name: str, fields: list[str]) -> None:
    assert set(fields) <= set(structure(tree(nvidia, "dcgm_structs"), name))


def test_numbers(nvidia: Path) -> None:
    structs, fields = assigned(tree(nvidia, "dcgm_structs")), assigned(tree(nvidia, "dcgm_fields"))
    for name, ours in {
        "DCGM_ST_BADPARAM": status.BADPARAM,
        "DCGM_ST_GENERIC_ERROR": status.GENERIC,
        "DCGM_ST_TIMEOUT": status.TIMEOUT,
        "DCGM_ST_VER_MISMATCH": status.VERSION_MISMATCH,
        "DCGM_ST_NO_DATA": status.NO_DATA,
        "DCGM_ST_STALE_DATA": status.STALE,
        "DCGM_ST_NOT_WATCHED": status.NOT_WATCHED,
        "DCGM_ST_GPU_IS_LOST": status.GPU_IS_LOST,
        "DCGM_ST_CONNECTION_NOT_VALID": status.CONNECTION,
        "DCGM_ST_NOT_SUPPORTED": -6,
        "DCGM_ST_UNKNOWN_FIELD": -13,
        "DCGM_ST_NO_PERMISSION": -17,
        "DCGM_ST_REQUIRES_ROOT": -29,
        "DCGM_ST_UNINITIALIZED": status.UNINITIALIZED,
        "DCGM_ST_NVML_ERROR": -8,
        "DCGM_ST_NOT_CONFIGURED": -5,
        "DCGM_ST_FUNCTION_NOT_FOUND": -20,
        "DCGM_ST_LIBRARY_NOT_FOUND": -25,
        "DCGM_ST_DUPLICATE_KEY": status.DUPLICATE_KEY,
        "DCGM_ST_RESET_REQUIRED": -19,
        "DCGM_ST_FIELD_UNSUPPORTED_BY_API": -32,
        "DCGM_ST_MODULE_NOT_LOADED": -33,
        "DCGM_ST_MAX_LIMIT": -24,
        "DCGM_GROUP_EMPTY": watch._EMPTY_GROUP,
        "DCGM_FV_FLAG_LIVE_DATA": live.LIVE_DATA,
        **{f"DcgmNvLinkLinkState{word}": number for number, word in enumerate(("NotSupported", "Disabled", "Down", "Up"))},
        "DCGM_HEALTH_RESULT_WARN": 10,
        "DCGM_HEALTH_RESULT_FAIL": 20,
        "DCGM_HEALTH_WATCH_PCIE": 0x1,
        "DCGM_HEALTH_WATCH_NVLINK": 0x2,
        "DCGM_HEALTH_WATCH_MEM": 0x10,
        "DCGM_HEALTH_WATCH_INFOROM": 0x40,
        "DCGM_HEALTH_WATCH_THERMAL": 0x80,
        "DCGM_HEALTH_WATCH_POWER": 0x100,
        "DCGM_HEALTH_WATCH_DRIVER": 0x200,
    }.items():
        assert structs[name] == ours, name
    assert (fields["DCGM_FE_GPU"], fields["DCGM_FE_SWITCH"], fields["DCGM_FE_LINK"]) == (live.GPU, live.SWITCH, live.LINK)
    assert structs["DCGM_MAX_STR_LENGTH"] == live._STRING_SIZE
    assert set(links._STATES) == {0, 1, 2, 3}
    assert health.WANTED == 0x1 | 0x2 | 0x10 | 0x40 | 0x80 | 0x100 | 0x200


def test_field_ids(nvidia: Path) -> None:
    fields = assigned(tree(nvidia, "dcgm_fields"))
    for name, ours in {
        "DRIVER_VERSION": identity.DRIVER,
        "DEV_NAME": identity.MODEL,
        "DEV_NVML_INDEX": identity.NVML_INDEX,
        "DEV_SERIAL": identity.SERIAL,
        "DEV_UUID": identity.UUID,
        "DEV_MINOR_NUMBER": identity.MINOR,
        "DEV_PCI_BUSID": identity.PCI,
        "DEV_MIG_MODE": identity.MIG,
        "DEV_VBIOS_VERSION": identity.VBIOS,
        "DEV_XID_ERRORS": cat.XID_FIELD_ID,
        "DEV_PCIE_REPLAY_COUNTER": cat.BY_NAME["pcie_replay"].dcgm_id,
        "DEV_ROW_REMAP_FAILURE": cat.BY_NAME["row_remap_failure"].dcgm_id,
        "DEV_ECC_DBE_VOL_TOTAL": cat.BY_NAME["ecc_dbe_volatile"].dcgm_id,
        "DEV_THERMAL_VIOLATION": cat.BY_NAME["thermal_violation_ns"].dcgm_id,
    }.items():
        assert fields[f"DCGM_FI_{name}"] == ours, name
    for ours, theirs in (("crc_flit", "CRC_FLIT"), ("crc_data", "CRC_DATA"), ("replay", "REPLAY"), ("recovery", "RECOVERY")):
        field = cat.BY_NAME[f"nvlink_{ours}"]
        assert fields[f"DCGM_FI_DEV_NVLINK_{theirs}_ERROR_COUNT_TOTAL"] == cat.BY_NAME[f"nvlink_{ours}_total"].dcgm_id
        assert [fields[f"DCGM_FI_DEV_NVLINK_{theirs}_ERROR_COUNT_L{n}"] for n in range(len(field.link_ids))] == list(field.link_ids)


# C functions that are called without a wrapper: in dcgm_agent.h of 2.4 to 4.6 with these arguments after the handle (the last
# one was in a header of its own up to 3.x).
WITHOUT_WRAPPER = {
    "dcgmHostengineVersionInfo": ["dcgmVersionInfo_t *"],
    "dcgmGetGpuStatus": ["unsigned int", "DcgmEntityStatus_t *"],
    "dcgmActionValidate_v2": ["dcgmRunDiag_t *", "dcgmDiagResponse_t *"],
    "dcgmStopDiagnostic": [],
}


def test_calls_without_a_wrapper_are_the_recorded_ones(nvidia: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in BACKEND)
    assert set(re.findall(r'_dcgmGetFunctionPointer\("(\w+)"\)', text)) == set(WITHOUT_WRAPPER)
    assert "_dcgmGetFunctionPointer" in functions(tree(nvidia, "dcgm_structs"))


def test_the_stand_ins_oldest_diagnostic_is_nvidias(nvidia: Path) -> None:
    """Of later versions there is no copy on PyPI."""
    theirs, ours = tree(nvidia, "dcgm_structs"), tree(Path(BINDINGS), "dcgm_structs")
    for name in ("c_dcgmDiagErrorDetail_t", "c_dcgmDiagTestResult_v2", "c_dcgmDiagResponsePerGpu_v4"):
        assert structure(theirs, name) == structure(ours, name), name
    asked = ["version", "debugLevel", "groupId", "validate", "testNames", "testParms", "gpuList"]
    assert set(asked) <= set(structure(theirs, "c_dcgmRunDiag_v7"))
    answered = ["version", "gpuCount", "levelOneTestCount", "levelOneResults", "perGpuResponses", "systemError"]
    assert structure(theirs, "c_dcgmDiagResponse_v8")[: len(answered)] == answered


def test_the_stand_in_has_nvidias_signatures(nvidia: Path) -> None:
    theirs = functions(tree(nvidia, "dcgm_agent"))
    for name, ours in functions(tree(Path(BINDINGS), "dcgm_agent")).items():
        if name.startswith("_"):
            continue
        names = [a.arg for a in theirs[name].args.args]
        optional = len(theirs[name].args.defaults)
        assert [a.arg for a in ours.args.args] in (names, names[: len(names) - optional]), name


def test_modules_of_4_6_and_3_1_are_the_same_ones(nvidia: Path) -> None:
    for module in bindings.MODULES:
        assert (nvidia / f"{module}.py").is_file()
