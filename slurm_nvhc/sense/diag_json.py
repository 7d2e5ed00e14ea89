"""What ``dcgmi diag -j`` printed, of any generation, as results. Pure, and never raises.

NVIDIA declares no stable form (R36): 3.x and 4.x differ in their root, in how a GPU is named, and in where errors stand. Every
result of every part is read. What is not understood is *failed*, with what was seen and the version, and never a pass.

Quirks, by DCGM's own source (dcgmi/Diag.cpp): 3.1 names the GPU in ``gpu_ids``; 3.3 names none in its software checks but
that of the last error, and calls the text of an error ``warnings`` there; neither generation has a word for a warning and prints
"Fail"; the summary of a 4.x test repeats the errors of its parts.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import diags
from slurm_nvhc.model.diag import DONE, FAIL, FAILED, NOT_RUN, PASS, SKIP, WARN, Error, Result
from slurm_nvhc.model.entity import NODE
from slurm_nvhc.sense import diag_results
from slurm_nvhc.sense.diag_results import MAX_ERRORS, MAX_RESULTS, Line
from slurm_nvhc.sense.text import MAX_NAME, clean

ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_TESTS: Final = "test_categories"
_ERROR: Final = "runtime_error"
_ITERATIONS: Final = "iterations"
_STATUS: Final[Mapping[str, str]] = {
    "pass": PASS, "fail": FAIL, "warn": WARN, "warning": WARN, "skip": SKIP, "skipped": SKIP, "not run": NOT_RUN,
}  # fmt: skip
# The software test only warns of these, which dcgmi prints as "Fail": devices that cgroups hide, graphics processes,
# environment variables, persistence mode (DCGM's Software.cpp; the API says "warn").
_ONLY_WARNED: Final = frozenset({20, 25, 28, 29})
_MAX_STARTS: Final = 20  # places at which the JSON may begin after text of dcgmi's own
# Exit status: the lowest byte of DCGM's return code, 254 for an exception.
_ENDINGS: Final[Mapping[int, tuple[str, str]]] = {
    **{code & 0xFF: ending for code, ending in diag_results.ENDINGS.items()},
    235: (FAILED, "dcgmi could not reach the engine"),
    255: (FAILED, "the engine does not take what was asked"),
    254: (FAILED, "dcgmi failed"),
}
TEST_FAILED: Final = tuple(code & 0xFF for code in diag_results.TEST_FAILED)
_GPU: Final = re.compile(r"\bGPU:? ?(\d{1,3})\b", re.IGNORECASE)


class Parsed(NamedTuple):
    """As in model.diag.Report."""

    outcome: str
    results: tuple[Result, ...] = ()
    why: str = ""
    version: str = ""
    driver: str = ""


def parse(text: str, rc: Optional[int], uuids: Mapping[int, str]) -> Parsed:
    """text: dcgmi's standard output. rc: its exit status, -N for a signal, None when it is not known. uuids: by DCGM id."""
    try:
        return _judged(_document(text), text, rc, uuids)
    except (RecursionError, ValueError, TypeError, OverflowError) as exc:  # whatever a hostile text holds, it is no pass
        return Parsed(FAILED, (), f"dcgmi's answer could not be read: {clean(str(exc), MAX_NAME)}")


def _judged(document: Optional[Mapping[str, Any]], text: str, rc: Optional[int], uuids: Mapping[int, str]) -> Parsed:
    """The document first, then what the exit status says beside it."""
    if document is None:
        outcome, why = _ending(rc)
        said = clean(text, 160)
        seen = "dcgmi's answer is no JSON" + (f": {said}" if said else ": it said nothing")
        return Parsed(FAILED if outcome == DONE else outcome, (), f"{why}; {seen}" if why else seen)
    version, driver = _known(document, "version"), _known(document, "Driver Version Detected")
    reading = _Reading(uuids, version)
    reading.read(document)
    results = diag_results.merged(reading.results)
    outcome, why = _ending(rc)
    if outcome == DONE and not why:
        if reading.strange:
            seen = reading.strange + (f" (DCGM {version})" if version else " (no version is told)")
            return Parsed(FAILED, diag_results.without_passes(results), clean(seen), version, driver)
        if reading.errors:
            return Parsed(FAILED, diag_results.without_passes(results), clean("; ".join(reading.errors)), version, driver)
        if rc in TEST_FAILED and not diag_results.said_bad(results):
            why = f"exit status {rc} says that a test failed, and no result does"
            return Parsed(FAILED, (), why, version, driver)
        return Parsed(DONE, results, "", version, driver)
    told = "; ".join([why, *reading.errors]) if why else "; ".join(reading.errors)
    return Parsed(outcome, diag_results.without_passes(results), clean(told), version, driver)


def _ending(rc: Optional[int]) -> tuple[str, str]:
    """(outcome, why) by the exit status alone; (DONE, "") when it speaks for an answer that is whole."""
    if rc in (0, *TEST_FAILED):
        return DONE, ""
    if rc is None:
        return FAILED, "the exit status of dcgmi is not known"
    if rc in _ENDINGS:
        outcome, why = _ENDINGS[rc]
        return outcome, f"{why} (exit status {rc})"
    if rc < 0 or 128 < rc <= 128 + 64:
        return FAILED, f"dcgmi was ended by signal {-rc if rc < 0 else rc - 128}"
    return FAILED, f"dcgmi ended with exit status {rc}"


def _document(text: str) -> Optional[Mapping[str, Any]]:
    """The first JSON object in a text, one with a root that is known before others. None when there is none, or it is cut short."""
    decoder = json.JSONDecoder()
    other: Optional[Mapping[str, Any]] = None
    at = text.find("{")
    for _ in range(_MAX_STARTS):
        if at < 0:
            break
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as exc:
            if exc.pos >= len(text.rstrip()) or exc.msg.startswith("Unterminated"):
                return None  # cut short: what stands inside it is not the answer
            value = None
        if isinstance(value, dict):
            if any(key in value for key in (*ROOTS, _ITERATIONS)):
                return value
            other = other or value
        at = text.find("{", end)
    return other


def _known(document: Mapping[str, Any], key: str) -> str:
    """A version, wherever a generation keeps it: beside the root, inside it, in "metadata", or in the first iteration."""
    first = _list(document.get(_ITERATIONS))[:1]
    places: list[Any] = [document, document.get("metadata"), *(document.get(root) for root in ROOTS)]
    for place in places:
        if isinstance(place, dict) and isinstance(place.get(key), str):
            return clean(place[key], MAX_NAME)
    return _known(first[0], key) if first and isinstance(first[0], dict) and _ITERATIONS not in first[0] else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _Reading:
    """One pass over a document. strange: the first thing that was not understood. errors: of the run itself."""

    def __init__(self, uuids: Mapping[int, str], version: str) -> None:
        self._uuids = uuids
        self._version = version
        self.results: list[Result] = []
        self.errors: list[str] = []
        self.strange = ""

    def read(self, document: Mapping[str, Any]) -> None:
        if isinstance(document.get(_ITERATIONS), list):
            for run in document[_ITERATIONS]:
                self._run(run)
            overall = document.get("Overall Result")
            if isinstance(overall, str) and overall.strip().lower() == "fail" and not diag_results.said_bad(self.results):
                self.errors.append(clean(document.get("warning")) or "the overall result of all iterations is a failure")
        else:
            self._run(document)
        if not self.results and not self.errors and not self.strange:
            self.strange = "the answer holds no result of any test"

    def _run(self, document: Any) -> None:
        """One whole diagnostic: the object with a root key."""
        root = next((r for r in ROOTS if isinstance(document, dict) and r in document), None)
        if root is None:
            keys = ", ".join(clean(k, 40) for k in list(document)[:5]) if isinstance(document, dict) else type(document).__name__
            return self._odd(f"dcgmi's answer has a form that is not known: it holds {keys or 'nothing'}")
        body = document[root]
        said = body.get(_ERROR) if isinstance(body, dict) else None
        if said is None:
            said = document.get(_ERROR)
        if said is not None:
            self.errors.append(clean(said) or "the run failed, and says not why")
        categories = body.get(_TESTS) if isinstance(body, dict) else None
        if categories is None and said is not None:
            return None
        if not isinstance(categories, list):
            return self._odd(f"{root} holds no {_TESTS}")
        for category in categories:
            tests = category.get("tests") if isinstance(category, dict) else None
            if not isinstance(tests, list):
                self._odd("a category holds no tests")
            for test in _list(tests):
                if test is not None:  # 3.x leaves places empty
                    self._test(test)
        return None

    def _odd(self, what: str) -> None:
        self.strange = self.strange or what

    def _test(self, test: Any) -> None:
        called = test.get("name") if isinstance(test, dict) else None
        if not isinstance(called, str) or not called.strip():
            return self._odd("a test has no name")
        name = clean(diags.name(called), MAX_NAME)
        check = "" if name == clean(called, MAX_NAME).lower() else clean(called, MAX_NAME)
        rows = test.get("results")
        if rows is not None and not isinstance(rows, list):
            return self._odd(f"the results of {name} are no list")
        lines: list[Line] = []
        for row in _list(rows)[:MAX_RESULTS]:
            if row is not None:
                lines += self._lines(name, row, check if name == "software" else "")
        summary = test.get("test_summary")
        whole = self._status(name, summary) if isinstance(summary, dict) else None
        owned = {(e.text, e.code) for line in lines for e in line.errors}
        every = self._errors(name, summary.get("warnings")) if isinstance(summary, dict) else ()
        loose = tuple(e for e in every if (e.text, e.code) not in owned)
        if whole == FAIL and loose and _only_warned(name, loose):
            whole = WARN
        if not lines and whole is None:
            whole = NOT_RUN  # 4.x leaves out what did not run
        self.results += diag_results.of_test(name, lines, loose, whole or "")
        return None

    def _status(self, name: str, row: Mapping[str, Any]) -> Optional[str]:
        said = row.get("status")
        word = " ".join(said.lower().replace("_", " ").split()) if isinstance(said, str) else ""
        if word in _STATUS:
            return _STATUS[word]
        self._odd(f"the status of {name} is {clean(said, 40)!r}" if isinstance(said, str) else f"a result of {name} has no status")
        return None

    def _lines(self, name: str, row: Any, check: str) -> list[Line]:
        """One result; several lines where it names several GPUs, or its errors are about different ones."""
        if not isinstance(row, dict):
            self._odd(f"a result of {name} is none")
            return []
        status = self._status(name, row)
        if status is None:
            return []
        errors = self._errors(name, row.get("warnings"))
        if status == FAIL and errors and _only_warned(name, errors):
            status = WARN
        told = row.get("info")
        infos = [clean(i) for i in (told if isinstance(told, list) else [told])[:MAX_ERRORS] if isinstance(i, str)]
        info = clean("; ".join([*([check] if check and status != PASS else []), *infos]))
        parts = self._parts(name, row)
        if check and len(errors) > 1:
            return self._sorted(status, errors, info, parts)
        return [Line(where, status, errors, clean("; ".join(filter(None, (about, info))))) for where, about in parts]

    def _sorted(self, status: str, errors: tuple[Error, ...], info: str, parts: list[tuple[str, str]]) -> list[Line]:
        """3.3's checks name one GPU for all their errors, that of the last one: the others name theirs in the text."""
        out = []
        for error in errors[:-1]:
            ids = {int(n) for n in _GPU.findall(error.text)}
            where = self._uuids.get(ids.pop(), NODE) if len(ids) == 1 else NODE
            out.append(Line(where, status, (error,), info))
        return [*out, *(Line(where, status, errors[-1:], clean("; ".join(filter(None, (about, info))))) for where, about in parts)]

    def _parts(self, name: str, row: Mapping[str, Any]) -> list[tuple[str, str]]:
        """(entity, what it is when that is no GPU of ours) of each part that a result is about."""
        if "entity_id" in row or "entity_group" in row:
            group = row.get("entity_group")
            number = _number(row.get("entity_id"))
            if isinstance(group, str) and group.strip().upper() == "GPU":
                return [self._gpu(number if number is not None else row.get("entity_id"))]
            return [(NODE, clean(f"{clean(group, 40) or 'a part'} {number if number is not None else ''}"))]
        said = row.get("gpu_id", row.get("gpu_ids"))
        if said is None:
            return [(NODE, "")]
        listed = said if isinstance(said, list) else said.split(",") if isinstance(said, str) else [said]
        return [self._gpu(item) for item in listed[:MAX_RESULTS]] or [(NODE, "")]

    def _gpu(self, said: Any) -> tuple[str, str]:
        number = _number(said)
        if number is not None and number < 0:
            return NODE, ""  # DCGM's word for "no GPU"
        if number is None or number not in self._uuids:
            return NODE, f"GPU {number if number is not None else clean(str(said), 20)}, which is not known"
        return self._uuids[number], ""

    def _errors(self, name: str, said: Any) -> tuple[Error, ...]:
        """Text, a list of texts, or of objects."""
        out = []
        for item in (said if isinstance(said, list) else [said])[:MAX_ERRORS]:
            if isinstance(item, dict):
                text = item.get("warning", item.get("warnings"))
                out.append(diag_results.error(text, _number(item.get("error_id")), _number(item.get("error_severity"))))
            elif isinstance(item, str) and item.strip():
                out.append(diag_results.error(item))
            elif item is not None and not isinstance(item, str):
                self._odd(f"an error of {name} is none")
        return tuple(out)


def _only_warned(name: str, errors: tuple[Error, ...]) -> bool:
    return name == "software" and all(e.code in _ONLY_WARNED for e in errors)


def _number(value: Any) -> Optional[int]:
    """A whole number, also as text; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**31) <= value < 2**32 else None
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else None
