"""DCGM's diagnostics: levels, tests, and the errors they give. Data only.

Sources: DCGM 4.6.0 (dcgm_errors.h and its table of severities, PluginStrings.h, the diagnostics guide). Names and
numbers of errors are the same since 2.x; a number that is not here is newer than this table.
"""

from __future__ import annotations

import re
from typing import Final, Mapping, NamedTuple, Optional, Sequence

# DCGM's levels, as dcgmi diag -r takes them
LEVELS: Final = ("1", "2", "3", "4")


class Test(NamedTuple):
    """name: DCGM's plugin name. level: from which level on it runs, None: only when named.

    old: what DCGM 3.x calls it in its JSON, beside the name in words of 4.x. active: it needs the GPU for itself.
    core: every GPU gives a result for it where its level is asked. Others come in packages of their own, want root, or are
          skipped on boards that they are not made for: in a level nobody misses them.
    gpu: it tests GPUs.
    """

    name: str
    level: Optional[int]
    old: tuple[str, ...] = ()
    active: bool = True
    core: bool = False
    gpu: bool = True


TESTS: Final = (
    Test("software", 1, (
        "denylist", "nvml library", "cuda main library", "cuda toolkit libraries", "cuda toolkit library",
        "permissions and os-related blocks", "permissions and os blocks", "persistence mode", "environmental variables", "environment variables",
        "page retirement/row remap", "graphics processes", "inforom", "fabric manager"), active=False, core=True),
    Test("memory", 2, ("gpu memory",), core=True),
    Test("pcie", 2, core=True),
    Test("diagnostic", 3, core=True),
    Test("eud", 3, ("eud test",)),
    Test("cpu_eud", 3, ("cpu eud", "cpu eud test"), gpu=False),
    Test("nvbandwidth", 3),
    Test("nccl_tests", 3),
    Test("memory_bandwidth", 3, ("memory bandwidth",)),
    Test("targeted_stress", 3, ("targeted stress",)),
    Test("targeted_power", 3, ("targeted power",)),
    Test("memtest", 4, core=True),
    Test("pulse_test", 4, ("pulse test",)),
    Test("sm_stress", None, ("sm stress",)),
    Test("context_create", None, ("context create",)),
)  # fmt: skip
BY_NAME: Final[Mapping[str, Test]] = {t.name: t for t in TESTS}
# What a rule of the policy may call them together: the tests that load the GPU (or CPU); a test that is newer is none of them.
HARDWARE: Final = tuple(t.name for t in TESTS if t.active)
_CALLED: Final[Mapping[str, str]] = {called: t.name for t in TESTS for called in (t.name, *t.old)}


def name(called: str) -> str:
    """DCGM's plugin name for what a report calls a test; what is not known stays as it is, in lower case with underscores."""
    plain = " ".join(called.lower().replace("_", " ").split())
    return _CALLED.get(plain) or _CALLED.get(plain.replace(" ", "_")) or plain.replace(" ", "_")


def active(tests: tuple[str, ...]) -> bool:
    """Do these need the GPUs for themselves? Level 1 and the software test do not; an unknown test does."""
    return any(t != "1" and (t not in BY_NAME or BY_NAME[t].active) for t in tests)


def core(tests: tuple[str, ...]) -> tuple[str, ...]:
    """The tests that these promise a result of: those that are named, and of a level its core ones."""
    named = (t for t in tests if t not in LEVELS)
    return tuple(dict.fromkeys((*(t.name for t in TESTS if t.core and includes(tests, t.name)), *named)))


def includes(tests: tuple[str, ...], test: str) -> bool:
    """Is ``test`` among these: by name, or in a level that they name?"""
    level = BY_NAME[test].level if test in BY_NAME else None
    return test in tests or (level is not None and any(t in LEVELS and level <= int(t) for t in tests))


def told(tests: Sequence[str]) -> str:
    """'level 2', 'memory, pcie'"""
    return ", ".join(f"level {t}" if t in LEVELS else t for t in tests)


# Seconds that a level takes on an idle node with 8 GPUs, on the long side of what is published: "a few seconds" to under a
# minute for 1 (deepops; azhpc-diagnostics#12); 2 to 2.5 min for 2, 10.5 seen (azhpc; awsome-distributed-ai); 15 min and more
# for 3; 1 to 2.25 h for 4. A single test by its default duration, with a minute to start and end. What was measured on the
# node itself is taken instead, once there is a measurement.
SECONDS: Final[Mapping[str, float]] = {
    "1": 15.0, "2": 300.0, "3": 1800.0, "4": 8100.0,
    "software": 15.0, "memory": 120.0, "pcie": 180.0, "diagnostic": 240.0, "memory_bandwidth": 120.0, "targeted_stress": 90.0,
    "targeted_power": 180.0, "nvbandwidth": 300.0, "nccl_tests": 300.0, "memtest": 660.0, "pulse_test": 900.0, "eud": 1800.0,
    "cpu_eud": 1800.0, "sm_stress": 90.0, "context_create": 60.0,
}  # fmt: skip


def seconds(tests: tuple[str, ...]) -> float:
    """How long these usually take together, in seconds; an unknown test counts as ten minutes."""
    return sum(SECONDS.get(t, 600.0) for t in tests)


# DCGM's severity numbers
SEVERITIES: Final[Mapping[int, str]] = {
    0: "none", 1: "monitor", 2: "isolate", 3: "unknown", 4: "triage", 5: "config", 6: "reset",
}  # fmt: skip

# DCGM_FR_ number -> (name, severity)
ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    0: ("OK", "unknown"),
    1: ("UNKNOWN", "unknown"),
    2: ("UNRECOGNIZED", "unknown"),
    3: ("PCI_REPLAY_RATE", "isolate"),
    4: ("VOLATILE_DBE_DETECTED", "isolate"),
    5: ("VOLATILE_SBE_DETECTED", "monitor"),
    6: ("PENDING_PAGE_RETIREMENTS", "reset"),
    7: ("RETIRED_PAGES_LIMIT", "isolate"),
    8: ("RETIRED_PAGES_DBE_LIMIT", "isolate"),
    9: ("CORRUPT_INFOROM", "triage"),
    10: ("CLOCKS_EVENT_THERMAL", "monitor"),
    11: ("POWER_UNREADABLE", "monitor"),
    12: ("CLOCKS_EVENT_POWER", "monitor"),
    13: ("NVLINK_ERROR_THRESHOLD", "isolate"),
    14: ("NVLINK_DOWN", "triage"),
    15: ("NVSWITCH_FATAL_ERROR", "isolate"),
    16: ("NVSWITCH_NON_FATAL_ERROR", "monitor"),
    17: ("NVSWITCH_DOWN", "monitor"),
    18: ("NO_ACCESS_TO_FILE", "config"),
    19: ("NVML_API", "monitor"),
    20: ("DEVICE_COUNT_MISMATCH", "config"),
    21: ("BAD_PARAMETER", "unknown"),
    22: ("CANNOT_OPEN_LIB", "triage"),
    23: ("DENYLISTED_DRIVER", "config"),
    24: ("NVML_LIB_BAD", "isolate"),
    25: ("GRAPHICS_PROCESSES", "reset"),
    26: ("HOSTENGINE_CONN", "monitor"),
    27: ("FIELD_QUERY", "monitor"),
    28: ("BAD_CUDA_ENV", "config"),
    29: ("PERSISTENCE_MODE", "config"),
    30: ("LOW_BANDWIDTH", "triage"),
    31: ("HIGH_LATENCY", "triage"),
    32: ("CANNOT_GET_FIELD_TAG", "monitor"),
    33: ("FIELD_VIOLATION", "isolate"),
    34: ("FIELD_THRESHOLD", "monitor"),
    35: ("FIELD_VIOLATION_DBL", "isolate"),
    36: ("FIELD_THRESHOLD_DBL", "isolate"),
    37: ("UNSUPPORTED_FIELD_TYPE", "triage"),
    38: ("FIELD_THRESHOLD_TS", "isolate"),
    39: ("FIELD_THRESHOLD_TS_DBL", "isolate"),
    40: ("THERMAL_VIOLATIONS", "monitor"),
    41: ("THERMAL_VIOLATIONS_TS", "monitor"),
    42: ("TEMP_VIOLATION", "monitor"),
    43: ("CLOCKS_EVENT_VIOLATION", "monitor"),
    44: ("INTERNAL", "triage"),
    45: ("PCIE_GENERATION", "triage"),
    46: ("PCIE_WIDTH", "config"),
    47: ("ABORTED", "config"),
    48: ("TEST_DISABLED", "config"),
    49: ("CANNOT_GET_STAT", "triage"),
    50: ("STRESS_LEVEL", "triage"),
    51: ("CUDA_API", "monitor"),
    52: ("FAULTY_MEMORY", "isolate"),
    53: ("CANNOT_SET_WATCHES", "monitor"),
    54: ("CUDA_UNBOUND", "triage"),
    55: ("ECC_DISABLED", "config"),
    56: ("MEMORY_ALLOC", "triage"),
    57: ("CUDA_DBE", "isolate"),
    58: ("MEMORY_MISMATCH", "isolate"),
    59: ("CUDA_DEVICE", "triage"),
    60: ("ECC_UNSUPPORTED", "config"),
    61: ("ECC_PENDING", "monitor"),
    62: ("MEMORY_BANDWIDTH", "triage"),
    63: ("TARGET_POWER", "triage"),
    64: ("API_FAIL", "triage"),
    65: ("API_FAIL_GPU", "triage"),
    66: ("CUDA_CONTEXT", "triage"),
    67: ("DCGM_API", "triage"),
    68: ("CONCURRENT_GPUS", "config"),
    69: ("TOO_MANY_ERRORS", "monitor"),
    70: ("NVLINK_CRC_ERROR_THRESHOLD", "isolate"),
    71: ("NVLINK_ERROR_CRITICAL", "isolate"),
    72: ("ENFORCED_POWER_LIMIT", "config"),
    73: ("MEMORY_ALLOC_HOST", "triage"),
    74: ("GPU_OP_MODE", "monitor"),
    75: ("NO_MEMORY_CLOCKS", "monitor"),
    76: ("NO_GRAPHICS_CLOCKS", "monitor"),
    77: ("HAD_TO_RESTORE_STATE", "triage"),
    78: ("L1TAG_UNSUPPORTED", "config"),
    79: ("L1TAG_MISCOMPARE", "isolate"),
    80: ("ROW_REMAP_FAILURE", "reset"),
    81: ("UNCONTAINED_ERROR", "isolate"),
    82: ("EMPTY_GPU_LIST", "config"),
    83: ("DBE_PENDING_PAGE_RETIREMENTS", "reset"),
    84: ("UNCORRECTABLE_ROW_REMAP", "reset"),
    85: ("PENDING_ROW_REMAP", "reset"),
    86: ("BROKEN_P2P_MEMORY_DEVICE", "isolate"),
    87: ("BROKEN_P2P_WRITER_DEVICE", "isolate"),
    88: ("NVSWITCH_NVLINK_DOWN", "isolate"),
    89: ("EUD_BINARY_PERMISSIONS", "triage"),
    90: ("EUD_NON_ROOT_USER", "triage"),
    91: ("EUD_SPAWN_FAILURE", "triage"),
    92: ("EUD_TIMEOUT", "triage"),
    93: ("EUD_ZOMBIE", "triage"),
    94: ("EUD_NON_ZERO_EXIT_CODE", "triage"),
    95: ("EUD_TEST_FAILED", "isolate"),
    96: ("FILE_CREATE_PERMISSIONS", "config"),
    97: ("PAUSE_RESUME_FAILED", "triage"),
    98: ("PCIE_H_REPLAY_VIOLATION", "isolate"),
    99: ("GPU_EXPECTED_NVLINKS_UP", "triage"),
    100: ("NVSWITCH_EXPECTED_NVLINKS_UP", "triage"),
    101: ("XID_ERROR", "triage"),
    102: ("SBE_VIOLATION", "isolate"),
    103: ("DBE_VIOLATION", "isolate"),
    104: ("PCIE_REPLAY_VIOLATION", "isolate"),
    105: ("SBE_THRESHOLD_VIOLATION", "isolate"),
    106: ("DBE_THRESHOLD_VIOLATION", "isolate"),
    107: ("PCIE_REPLAY_THRESHOLD_VIOLATION", "isolate"),
    108: ("CUDA_FM_NOT_INITIALIZED", "monitor"),
    109: ("SXID_ERROR", "isolate"),
    110: ("GFLOPS_THRESHOLD_VIOLATION", "triage"),
    111: ("NAN_VALUE", "isolate"),
    112: ("FABRIC_MANAGER_TRAINING_ERROR", "config"),
    113: ("BROKEN_P2P_PCIE_MEMORY_DEVICE", "isolate"),
    114: ("BROKEN_P2P_PCIE_WRITER_DEVICE", "isolate"),
    115: ("BROKEN_P2P_NVLINK_MEMORY_DEVICE", "isolate"),
    116: ("BROKEN_P2P_NVLINK_WRITER_DEVICE", "isolate"),
    117: ("TEST_SKIPPED", "config"),
    118: ("SRAM_THRESHOLD", "isolate"),
    119: ("NVLINK_EFFECTIVE_BER_THRESHOLD", "isolate"),
    120: ("FALLEN_OFF_BUS", "isolate"),
    121: ("NVLINK_SYMBOL_BER_THRESHOLD", "isolate"),
    122: ("IMEX_UNHEALTHY", "isolate"),
    123: ("FABRIC_PROBE_STATE", "monitor"),
    124: ("BINARY_PERMISSIONS", "triage"),
    125: ("GPU_RECOVERY_RESET", "reset"),
    126: ("GPU_RECOVERY_REBOOT", "isolate"),
    127: ("GPU_RECOVERY_DRAIN_P2P", "reset"),
    128: ("GPU_RECOVERY_DRAIN_RESET", "reset"),
    129: ("NCCL_ERROR", "reset"),
    130: ("RETEST_REQUESTED", "triage"),
    131: ("CONTAINED_ERROR", "monitor"),
    132: ("UNCORRECTABLE_ROW_REMAP_LIMIT", "triage"),
}

NUMBERS: Final[Mapping[str, int]] = {named: number for number, (named, _severity) in ERRORS.items()}


def error_name(code: int) -> str:
    """"MEMORY_MISMATCH", '' for a number that is newer than this table."""
    return ERRORS[code][0] if code in ERRORS else ""


# A GPU that somebody uses (CUDA's own words; go-dcgm#52, DCGM#224): the test could not begin, which says nothing of the GPU.
_BUSY: Final = re.compile(r"busy or unavailable|devices? (?:is |are )?(?:busy|in use)|currently in use", re.IGNORECASE)


def busy(text: str) -> bool:
    return bool(_BUSY.search(text))
