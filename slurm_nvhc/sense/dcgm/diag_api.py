"""A diagnostic through the engine's API: the question and the answer as DCGM's structures.

The call is made through the library's function, since the bindings' wrapper throws the answer away where the engine says that
something failed. NVIDIA's own module for this, DcgmDiag, can not be imported in 4.0 to 4.5.0 (DCGM#262) and is not used.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, Mapping, NamedTuple, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.model.diag import DONE, FAIL, FAILED, NOT_RUN, PASS, SKIP, WARN, Ask, Error, Result
from slurm_nvhc.model.entity import NODE
from slurm_nvhc.sense import diag_results
from slurm_nvhc.sense.dcgm import status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.diag_json import Parsed
from slurm_nvhc.sense.diag_results import Line, error
from slurm_nvhc.sense.text import MAX_NAME, clean

# Versions of the question and of its answer that belong together, newest first: 4.2, 4.0, 3.3.8, 3.3.7, 3.3.5, 3.1 (DCGM).
PAIRS: Final = ((10, 12), (9, 11), (8, 10), (7, 10), (7, 9), (7, 8))
_GPU: Final = 1
_SYSTEM: Final = 0x70  # testId of an error of the run itself
_ALL_GPUS, _NO_GROUP = 0x7FFFFFFF, 0x7FFFFFFA
_INT32_BLANK: Final = 0x7FFFFFF0  # of a log level: as the engine's environment says
_NAME_LEN: Final = 50
_MOST_NAMES, _MOST_PARAMETERS = 20, 100
_STATUS: Final[Mapping[int, str]] = {0: PASS, 1: SKIP, 2: WARN, 3: FAIL, 4: NOT_RUN}
# Up to 3.3 the software test is a list of checks, and the others have fixed places.
_CHECKS: Final = (
    "Denylist", "NVML Library", "CUDA Main Library", "CUDA Toolkit Library", "Permissions and OS Blocks", "Persistence Mode",
    "Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom",
)  # fmt: skip
_PLACES: Final[Mapping[int, str]] = {
    0: "memory", 1: "diagnostic", 2: "pcie", 3: "sm_stress", 4: "targeted_stress", 5: "targeted_power", 6: "memory_bandwidth",
    7: "memtest", 8: "pulse_test", 9: "eud", 11: "cpu_eud",
}  # fmt: skip
# After these the engine may still run it: it is the client that gave up.
UNSURE: Final = frozenset({status.TIMEOUT, status.CONNECTION, status.GENERIC, status.UNINITIALIZED})


class Answer(NamedTuple):
    """unsure: the engine may still run it. spoken: the engine has structures that these bindings know."""

    parsed: Parsed
    unsure: bool = False
    spoken: bool = True


def knows(structs: Any) -> bool:
    """Can these bindings ask at all?"""
    return bool(_pairs(structs))


def run(connection: Connection, ask: Ask, ids: Sequence[int], uuids: Mapping[int, str], seconds: float) -> Answer:
    """Blocks until the diagnostic has ended. ids: of the GPUs to test; uuids: of all GPUs by id. Raises ValueError for what does
    not fit in the structures."""
    structs = connection.bindings.structs
    call = structs._dcgmGetFunctionPointer("dcgmActionValidate_v2")
    for question_number, answer_number in _pairs(structs):
        question = fill(structs, question_number, ask, ids, seconds)
        answer = getattr(structs, f"c_dcgmDiagResponse_v{answer_number}")()
        answer.version = getattr(structs, f"dcgmDiagResponse_version{answer_number}")
        code = int(call(connection.handle, ctypes.byref(question), ctypes.byref(answer)))
        # An older engine than the bindings refuses at once, and then speaks an older version.
        if code != status.VERSION_MISMATCH:
            return Answer(judged(code, answer, answer_number, uuids), code in UNSURE)
    return Answer(Parsed(FAILED, (), "the engine knows none of the bindings' structures for diagnostics"), spoken=False)


def _pairs(structs: Any) -> list[tuple[int, int]]:
    return [p for p in PAIRS if hasattr(structs, f"c_dcgmRunDiag_v{p[0]}") and hasattr(structs, f"c_dcgmDiagResponse_v{p[1]}")]


# -- the question -----------------------------------------------------------------------


def fill(structs: Any, number: int, ask: Ask, ids: Sequence[int], seconds: float) -> Any:
    """What is asked as a structure of one version. Raises ValueError for what does not fit in it."""
    question = getattr(structs, f"c_dcgmRunDiag_v{number}")()
    question.version = getattr(structs, f"dcgmRunDiag_version{number}")
    question.debugLevel = _INT32_BLANK
    if ask.tests[:1] and ask.tests[0] in diags.LEVELS:
        question.validate = int(ask.tests[0])
    else:
        _rows(question, "testNames", ask.tests, _MOST_NAMES)
    _rows(question, "testParms", ask.parameters, _MOST_PARAMETERS)
    listed = ",".join(str(i) for i in ids)
    # Up to 3.3 a group is named as well and the list counts; since 4.0 there must be none beside a list.
    where, question.groupId = ("entityIds", _NO_GROUP) if hasattr(question, "entityIds") else ("gpuList", _ALL_GPUS)
    if len(listed) >= getattr(type(question), where).size:
        raise ValueError(f"{len(ids)} GPUs are more than this DCGM takes in one diagnostic")
    setattr(question, where, listed.encode())
    if hasattr(question, "timeoutSeconds"):  # 3.1 and older have no limit of their own
        question.timeoutSeconds = max(1, math.ceil(seconds))
    return question


def _rows(question: Any, name: str, texts: Sequence[str], most: int) -> None:
    """Texts into an array of fixed rows, by place: bindings up to 3.2 have rows and columns of these arrays confused."""
    field = getattr(type(question), name)
    width = field.size // most
    if len(texts) > most:
        raise ValueError(f"{len(texts)} {name} are more than DCGM takes ({most})")
    for i, text in enumerate(texts):
        raw = text.encode("utf-8", "replace")
        if len(raw) >= width:
            raise ValueError(f"{text[:40]!r}… is longer than DCGM takes ({width - 1} bytes)")
        ctypes.memmove(ctypes.addressof(question) + field.offset + i * width, raw + b"\0", len(raw) + 1)


# -- the answer -------------------------------------------------------------------------


def judged(code: int, answer: Any, number: int, uuids: Mapping[int, str]) -> Parsed:
    """What an answer of one version says, together with the engine's return code."""
    version, driver = _text(answer, "dcgmVersion", MAX_NAME), _text(answer, "dcgmDriverVersion", MAX_NAME)
    reading = _New(answer, uuids) if number >= 11 else _Old(answer, uuids)
    reading.read()
    results = diag_results.merged(reading.results)
    if code in diag_results.ENDINGS:
        outcome, why = diag_results.ENDINGS[code]
        told = [f"{why} ({status.words(code)})", *reading.errors]
        return Parsed(outcome, diag_results.without_passes(results), clean("; ".join(told)), version, driver)
    failed = list(reading.errors)
    if reading.strange:
        failed.append(f"{reading.strange} (DCGM {version})" if version else reading.strange)
    if code and not (code in diag_results.TEST_FAILED and diag_results.said_bad(results)):
        failed.insert(0, f"the engine could not run it: {status.words(code)}")
    if not failed and not results:
        failed.append("the engine's answer holds no result of any test")
    if failed:
        return Parsed(FAILED, diag_results.without_passes(results), clean("; ".join(failed)), version, driver)
    return Parsed(DONE, results, "", version, driver)


def _text(holder: Any, name: str, limit: int = 300) -> str:
    raw = getattr(holder, name, b"")
    return clean(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw, limit)


class _Reading:
    """One walk over an answer. strange: the first thing that can not be; errors: of the run itself."""

    def __init__(self, answer: Any, uuids: Mapping[int, str]) -> None:
        self._answer = answer
        self._uuids = uuids
        self.results: list[Result] = []
        self.errors: list[str] = []
        self.strange = ""

    def read(self) -> None:
        raise NotImplementedError

    def _odd(self, what: str) -> None:
        self.strange = self.strange or what

    def _status(self, test: str, number: int) -> str:
        """'' for a number that is no result."""
        if number not in _STATUS:
            self._odd(f"a result of {test} is {number}, which is none")
        return _STATUS.get(number, "")

    def _gpu(self, number: int) -> tuple[str, str]:
        """(entity, what it is when it is no GPU of ours)."""
        if number in self._uuids:
            return self._uuids[number], ""
        return NODE, "" if number < 0 else f"GPU {number}, which is not known"


class _New(_Reading):
    """Versions 11 and 12 (4.x): tests, parts, errors and results point at each other by index; every index is checked."""

    def read(self) -> None:
        answer = self._answer
        errors = self._counted("errors", answer.numErrors)
        results = self._counted("results", answer.numResults)
        infos = self._counted("info", answer.numInfo)
        told: set[int] = set()
        for test in self._counted("tests", answer.numTests):
            name = clean(diags.name(_text(test, "pluginName", MAX_NAME) or _text(test, "name", MAX_NAME)), MAX_NAME) or "unknown"
            of_test = self._indices(name, test.errorIndices, test.numErrors, len(errors))
            told.update(of_test)
            about = self._indices(name, test.infoIndices, test.numInfo, len(infos))
            lines: list[Line] = []
            owned: set[int] = set()
            for index in self._indices(name, test.resultIndices, test.numResults, len(results)):
                its_status = self._status(name, results[index].result)
                if not its_status:
                    continue
                part = _pair(results[index])
                mine = [i for i in of_test if _pair(errors[i]) == part]
                owned.update(mine)
                entity, what = self._part(part)
                said = [what, *(_text(infos[i], "msg") for i in about if _pair(infos[i]) == part)]
                lines.append(Line(entity, its_status, tuple(_error(errors[i]) for i in mine), clean("; ".join(filter(None, said)))))
            loose = tuple(_error(errors[i]) for i in of_test if i not in owned)
            self.results += diag_results.of_test(name, lines, loose, self._status(name, test.result))
        for index, one in enumerate(errors):
            if one.testId == _SYSTEM:
                self.errors.append(_text(one, "msg") or f"error {one.code}")
            elif index not in told:  # of a test that is not listed
                self.results.append(Result("unknown", self._part(_pair(one))[0], FAIL, (_error(one),)))

    def _counted(self, name: str, count: int) -> list[Any]:
        array = getattr(self._answer, name)
        if count > len(array):
            self._odd(f"the answer counts {count} {name}, and has place for {len(array)}")
        return [array[i] for i in range(min(count, len(array)))]

    def _indices(self, test: str, array: Any, count: int, known: int) -> list[int]:
        found = [int(array[i]) for i in range(min(count, len(array)))]
        if count > len(array) or any(i >= known for i in found):
            self._odd(f"{test} points at what is not there")
        return [i for i in found if i < known]

    def _part(self, part: tuple[int, int]) -> tuple[str, str]:
        group, number = part
        if group == _GPU:
            return self._gpu(number)
        return NODE, f"entity {number} of group {group}" if group else ""


def _pair(holder: Any) -> tuple[int, int]:
    return int(holder.entity.entityGroupId), int(holder.entity.entityId)


def _error(one: Any) -> Error:
    """An error of any version; the oldest have no severity of their own."""
    severity = getattr(one, "severity", None)
    return error(_text(one, "msg"), int(one.code), None if severity is None else int(severity))


class _Old(_Reading):
    """Versions 8 to 10 (3.x): checks of the software test, and per GPU a fixed place for each other test."""

    def read(self) -> None:
        answer = self._answer
        checks = answer.levelOneResults
        for i in range(min(answer.levelOneTestCount, len(checks))):
            self._check(_CHECKS[i] if i < len(_CHECKS) else f"check {i}", checks[i])
        slots = answer.perGpuResponses
        if answer.gpuCount > len(slots):
            self._odd(f"the answer counts {answer.gpuCount} GPUs, and has place for {len(slots)}")
        lines: dict[str, list[Line]] = {}
        for slot in (slots[i] for i in range(min(answer.gpuCount, len(slots)))):
            entity, what = self._gpu(int(slot.gpuId))
            for i in range(len(slot.results)):
                test = _PLACES.get(i, f"test_{i}")
                its_status = self._status(test, int(slot.results[i].result))
                if its_status and its_status != NOT_RUN:  # places of tests that were not asked for
                    about = clean("; ".join(filter(None, (what, _text(slot.results[i], "info")))))
                    lines.setdefault(test, []).append(Line(entity, its_status, _errors(slot.results[i]), about))
        for test, of_test in lines.items():
            self.results += diag_results.of_test(test, of_test)
        system = _text(answer.systemError, "msg")
        if system:
            self.errors.append(system)

    def _check(self, called: str, row: Any) -> None:
        its_status = self._status("software", int(row.result))
        if not its_status or its_status == NOT_RUN:
            return
        about = called if its_status != PASS else ""
        said: dict[tuple[str, str], list[Error]] = {}
        for one in _each(row):
            if _text(one, "msg"):
                said.setdefault(self._gpu(int(getattr(one, "gpuId", -1))), []).append(_error(one))
        for (entity, what), errors in (said or {(NODE, ""): []}).items():
            self.results.append(Result("software", entity, its_status, tuple(errors), clean("; ".join(filter(None, (what, about))))))


def _each(row: Any) -> list[Any]:
    """One error up to version 8, several since."""
    return list(row.error) if hasattr(row.error, "__len__") else [row.error]


def _errors(row: Any) -> tuple[Error, ...]:
    return tuple(_error(one) for one in _each(row) if _text(one, "msg"))
