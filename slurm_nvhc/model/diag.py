"""A DCGM diagnostic: what is asked of the engine, and what it said of each part. Values only.

Skipped, not run and busy are neither pass nor fail; a report that could not be read says nothing about a GPU.
"""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.model.snapshot import Trouble

# Result.status
PASS: Final = "pass"
WARN: Final = "warn"
FAIL: Final = "fail"
SKIP: Final = "skip"
NOT_RUN: Final = "not_run"
BUSY: Final = "busy"  # it failed only because somebody else uses the GPU (go-dcgm#52): says nothing about the hardware
STATUSES: Final = (PASS, WARN, FAIL, SKIP, NOT_RUN, BUSY)

# Report.outcome
DONE: Final = "done"  # it came to its end; the results say what it found
NOT_STARTED: Final = "not_run"  # it was not begun: no time, no free GPU, one is running already, no such test
STOPPED: Final = "stopped"  # its time was over, or somebody stopped it
FAILED: Final = "failed"  # it could not be run, or its answer could not be read
OUTCOMES: Final = (DONE, NOT_STARTED, STOPPED, FAILED)

# Ask.through
AUTO: Final = "auto"  # the engine's API where the bindings can say what is asked, else dcgmi
API: Final = "api"
DCGMI: Final = "dcgmi"


class Ask(NamedTuple):
    """tests: one level ("1" to "4"), or names of tests (catalog/diags.py). uuids: of the GPUs to test, never ().

    parameters: "pcie.max_pcie_replays=80", as DCGM takes them.
    through, dcgmi: see AUTO; path of the command.
    """

    tests: tuple[str, ...]
    uuids: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    through: str = AUTO
    dcgmi: str = "/usr/bin/dcgmi"


class Error(NamedTuple):
    """One complaint. code: DCGM_FR_ number, None where DCGM gave none (3.1 and older tell text only).

    severity: a word of catalog/diags.py SEVERITIES, '' when not told and the code does not say it.
    """

    text: str
    code: Optional[int] = None
    severity: str = ""


class Result(NamedTuple):
    """What one test said of one part.

    test:   DCGM's plugin name: software, memory, pcie, … (catalog/diags.py)
    entity: a GPU's UUID; "node" for what names no GPU, or a part that is none (a CPU): then ``info`` says which
    """

    test: str
    entity: str
    status: str
    errors: tuple[Error, ...] = ()
    info: str = ""


class Report(NamedTuple):
    """tests, uuids: what was asked and of which GPUs. Times are the node's wall clock, ns UTC.

    results: all of them, one per test and part. () where nothing is known.
    why:     one sentence: why it was not run, was stopped or failed; '' when it is done
    version: of DCGM; driver: as the diagnostic says it
    through: "api", "dcgmi", "sim"; '' when it was not begun
    left:    it may still run in the engine: it could not be stopped, or nobody could see that it is gone
    missing: tests that were asked for by name and gave no result at all
    """

    outcome: str
    tests: tuple[str, ...]
    uuids: tuple[str, ...]
    results: tuple[Result, ...] = ()
    why: str = ""
    version: str = ""
    driver: str = ""
    through: str = ""
    started_ns: int = 0
    ended_ns: int = 0
    left: bool = False
    missing: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()

    @property
    def seconds(self) -> float:
        return max(0, self.ended_ns - self.started_ns) / 1e9

    def of(self, uuid: str) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.entity == uuid)


class Stopped(NamedTuple):
    """Outcome of asking the engine to end its diagnostic.

    known: False when it could not be told whether one runs. ran: one was seen running.
    gone: none runs now: that was seen, or the engine says so where its processes can not be seen.
    """

    known: bool
    ran: bool = False
    gone: bool = False
    troubles: tuple[Trouble, ...] = ()


def to_json(report: Report) -> dict[str, Any]:
    results = [{**r._asdict(), "errors": [e._asdict() for e in r.errors]} for r in report.results]
    return {**report._asdict(), "results": results, "troubles": [t._asdict() for t in report.troubles]}


def from_json(raw: Mapping[str, Any]) -> Report:
    """KeyError, TypeError or ValueError for what is no report."""
    values = dict(raw)
    if values["outcome"] not in OUTCOMES:
        raise ValueError(f"outcome {str(values['outcome'])[:20]!r} is not known")
    for name in ("tests", "uuids", "missing"):
        values[name] = tuple(str(x) for x in values.get(name, ()))
    values["results"] = tuple(_result(r) for r in values.get("results", ()))
    values["troubles"] = tuple(Trouble(**t) for t in values.get("troubles", ()))
    return Report(**values)


def _result(raw: Mapping[str, Any]) -> Result:
    if raw["status"] not in STATUSES:
        raise ValueError(f"status {str(raw['status'])[:20]!r} is not known")
    errors = tuple(Error(str(e["text"]), e.get("code"), str(e.get("severity", ""))) for e in raw.get("errors", ()))
    return Result(str(raw["test"]), str(raw["entity"]), raw["status"], errors, str(raw.get("info", "")))
