"""DCGM's return codes, as far as they decide what to do. Numbers: stable over 2.x to 4.6."""

from __future__ import annotations

from typing import Any, Final, Mapping

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.reader.backend import PartFailed

BADPARAM: Final = -1
GENERIC: Final = -3
UNINITIALIZED: Final = -10
TIMEOUT: Final = -11
VERSION_MISMATCH: Final = -12
NO_DATA: Final = -14
STALE: Final = -15
NOT_WATCHED: Final = -16
GPU_IS_LOST: Final = -18
CONNECTION: Final = -21
DUPLICATE_KEY: Final = -26
NVML_NOT_LOADED: Final = -56
NVML_TIMEOUT: Final = -57

# Asking again for less does not help: the engine itself is in trouble.
HOPELESS: Final = frozenset({UNINITIALIZED, TIMEOUT, VERSION_MISMATCH, CONNECTION, NVML_NOT_LOADED, NVML_TIMEOUT})

_NAMES: Final[Mapping[int, str]] = {
    BADPARAM: "bad parameter",
    GENERIC: "generic error",
    -6: "not supported",
    -8: "NVML error",
    -5: "not there",
    UNINITIALIZED: "the library is not initialised",
    TIMEOUT: "timeout",
    VERSION_MISMATCH: "version mismatch: the bindings are of another DCGM than the engine",
    -13: "unknown field",
    NO_DATA: "no data",
    STALE: "stale data",
    NOT_WATCHED: "not watched",
    -17: "no permission",
    GPU_IS_LOST: "GPU is lost",
    -19: "reset required",
    -20: "this library lacks the function",
    CONNECTION: "connection not valid",
    -24: "too many groups",
    -25: "the library was not found",
    DUPLICATE_KEY: "duplicate name",
    -29: "requires root",
    -32: "not readable without a watch",
    -33: "module not loaded",
    NVML_NOT_LOADED: "the engine runs without NVML: it was started before the driver",
    NVML_TIMEOUT: "the driver does not answer the engine",
}
_KINDS: Final[Mapping[int, str]] = {
    -6: rd.NOT_SUPPORTED,
    -13: rd.NOT_SUPPORTED,
    -32: rd.NOT_SUPPORTED,
    NO_DATA: rd.BLANK,
    NOT_WATCHED: rd.BLANK,
    GPU_IS_LOST: rd.BLANK,
    STALE: rd.STALE,
    -17: rd.NOT_PERMITTED,
    -29: rd.NOT_PERMITTED,
}


def code(exc: BaseException) -> int:
    """The number that a DCGMError carries; 0 for any other exception."""
    value: Any = getattr(exc, "value", 0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def words(number: int) -> str:
    return f"{_NAMES.get(number, 'status')} (DCGM {number})"


def no_data(number: int) -> NoData:
    """What a value's status says about it. Only for a status that is not 0."""
    return NoData(_KINDS.get(number, rd.ERROR), words(number))


def failed(exc: BaseException, what: str) -> PartFailed:
    """A failed call as the trouble that it means. An engine that stopped to answer its own driver is hung."""
    number = code(exc)
    finding = "MON-ENGINE-HUNG" if number in (TIMEOUT, NVML_TIMEOUT) else "MON-ENGINE-ABSENT"
    if number == NVML_NOT_LOADED:
        finding = "MON-ENGINE-EMPTY"
    text = words(number) if number else f"{type(exc).__name__}: {exc}"
    return PartFailed(finding, "engine", f"{what}: {text}")
