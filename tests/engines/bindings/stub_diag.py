"""Diagnostics of the stand-in engine: it plays what the simulated node would find, in DCGM's structures, with a real nvvs.

Which versions of the question it takes follows from the simulated node's engine version. A diagnostic takes as many real
seconds as the node's ``diag_plan`` gives, none where it gives none. Further options of "<path>.stub":
  diag_rc: what the engine returns instead   diag_system: an error of the run itself   diag_lie: name of an impossible answer
  stop_hangs: the request to stop is not answered   diag_speaks: versions of the question that it takes
"""

from __future__ import annotations

import contextlib
import ctypes as c
import json
import os
import signal
import subprocess
import sys
import time

import stub_engine

from slurm_nvhc.model import diag
from slurm_nvhc.model.entity import NODE
from slurm_nvhc.sense import diag_json
from slurm_nvhc.sense.sim import diag_output
from slurm_nvhc.sense.sim.world import World

PLAYED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "played.py")
NUMBER = {"pass": 0, "skip": 1, "warn": 2, "fail": 3, "busy": 3, "not_run": 4}
SEVERITY = {"none": 0, "monitor": 1, "isolate": 2, "unknown": 3, "triage": 4, "config": 5, "reset": 6, "": 0}
PLACES = ["memory", "diagnostic", "pcie", "sm_stress", "targeted_stress", "targeted_power", "memory_bandwidth", "memtest", "pulse_test"]
FOREVER = 1e6


def _state():
    return stub_engine._path + ".nvvs"


def _running():
    """The process that runs as nvvs, None when none does."""
    try:
        with open(_state(), encoding="utf-8") as file:
            pid = json.load(file)["nvvs"]
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def dcgmActionValidate_v2(handle, question, answer):
    stub_engine.reach("dcgmActionValidate_v2")
    question, answer, world = question._obj, answer._obj, World.load(stub_engine._path)
    spoken = {"3.1": (7,), "3.3": (7, 8)}.get(world.engine_version[:3], (9, 10))
    if question.version >> 24 not in stub_engine.options().get("diag_speaks", spoken):
        return -12
    stub_engine.count("diag", _asked(question))
    said = stub_engine.options()
    if "diag_rc" in said:
        _system(answer, said.get("diag_system", ""))
        return said["diag_rc"]
    plan = world.diag.plan
    if plan.behaviour == "absent":
        return -52
    if _running() is not None or world.diag.now(world.wall_ns) is not None:
        return -39
    seconds = FOREVER if plan.behaviour in ("hangs", "stubborn") else plan.seconds or plan.real_seconds
    if seconds:
        ended = play(seconds, getattr(question, "timeoutSeconds", 0), "stubborn" if plan.behaviour == "stubborn" else "ok")
        if ended:
            return -66 if ended == -signal.SIGTERM else -53
    if plan.behaviour == "crashes":
        return -53
    ask = diag.Ask(**_asked(question, {i.identity.dcgm_id: i.identity.uuid for i in world.gpus}))
    told = diag_output.answer(world, ask) if plan.output is None else diag_output.Answer(plan.output, plan.rc)
    parsed = diag_json.parse(told.text, told.rc, diag_output.ids(world))
    if parsed.outcome != diag.DONE:
        return -58 if told.rc == 198 else -30
    ids = {uuid: number for number, uuid in diag_output.ids(world).items()}
    (_new if question.version >> 24 >= 9 else _old)(answer, parsed.results, ids)
    for name, value in (("dcgmVersion", world.engine_version), ("dcgmDriverVersion", world.driver)):
        if hasattr(answer, name):
            setattr(answer, name, value.encode())
    _system(answer, said.get("diag_system", ""))
    _lie(answer, said.get("diag_lie", ""))
    return 0


def dcgmStopDiagnostic(handle):
    stub_engine.reach("dcgmStopDiagnostic")
    stub_engine.count("stop_diag", 1)
    while stub_engine.options().get("stop_hangs"):
        time.sleep(0.05)
    with World.edit(stub_engine._path) as world:
        world.diag.running = None
    while (pid := _running()) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)
    return 0


def play(seconds, limit=0, manner="ok"):
    """Run an nvvs to its end: how it ended."""
    start(stub_engine._path, seconds, limit, manner)
    ended = _state() + ".ended"
    while not os.path.exists(ended):
        time.sleep(0.01)
    with open(ended, encoding="utf-8") as file:
        return json.load(file)


def start(path, seconds, limit=0, manner="ok"):
    """Start one that outlives this process, and wait until it runs."""
    state, proc = path + ".nvvs", os.path.join(os.path.dirname(path), "root", "proc")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(state + ".ended")
    command = [sys.executable, "-I", PLAYED, state, proc, str(seconds), str(limit), manner]
    quiet = subprocess.DEVNULL
    subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, check=True)
    while not os.path.exists(state) and not os.path.exists(state + ".ended"):
        time.sleep(0.01)


def _rows(question, name, most):
    field = getattr(type(question), name)
    width = field.size // most
    raw = c.string_at(c.addressof(question) + field.offset, field.size)
    rows = [raw[i * width : (i + 1) * width].split(b"\0")[0].decode() for i in range(most)]
    return [row for row in rows if row]


def _asked(question, uuids=None):
    listed = (question.entityIds if hasattr(question, "entityIds") else question.gpuList).decode().split(",")
    tests = [str(question.validate)] if question.validate else _rows(question, "testNames", 20)
    asked = {"tests": tests, "uuids": listed, "parameters": _rows(question, "testParms", 100)}
    if uuids is None:
        return {**asked, "group": question.groupId, "seconds": getattr(question, "timeoutSeconds", None), "version": question.version >> 24}
    return {**asked, "tests": tuple(tests), "uuids": tuple(uuids[int(i)] for i in listed)}


def _system(answer, text):
    if not text:
        return
    if hasattr(answer, "systemError"):
        answer.systemError.msg = text.encode()
    else:
        row = answer.errors[answer.numErrors]
        row.msg, row.testId, answer.numErrors = text.encode(), 0x70, answer.numErrors + 1


def _lie(answer, name):
    if name == "index":
        answer.tests[0].numResults, answer.tests[0].resultIndices[0] = 1, 20479
    elif name == "status":
        answer.results[0].result = 77
    elif name == "counts":
        answer.numTests = 250
    elif name == "empty":
        answer.numTests = answer.numResults = answer.numErrors = 0


def _new(answer, results, ids):
    for result in results:
        test = next((t for t in answer.tests[: answer.numTests] if t.pluginName == result.test.encode()), None)
        if test is None:
            test = answer.tests[answer.numTests]
            test.name = test.pluginName = result.test.encode()
            answer.numTests += 1
        index = answer.numTests - 1
        part = (1, ids[result.entity]) if result.entity != NODE else (0, 0)
        if part[0]:
            row = answer.results[answer.numResults]
            row.entity.entityGroupId, row.entity.entityId = part
            row.result, row.testId = NUMBER[result.status], index
            test.resultIndices[test.numResults] = answer.numResults
            test.numResults += 1
            answer.numResults += 1
        for error in result.errors:
            row = answer.errors[answer.numErrors]
            row.entity.entityGroupId, row.entity.entityId = part
            row.msg, row.code, row.severity, row.testId = error.text.encode(), error.code or 0, SEVERITY[error.severity], index
            test.errorIndices[test.numErrors] = answer.numErrors
            test.numErrors += 1
            answer.numErrors += 1
        test.result = max(test.result, NUMBER[result.status]) if NUMBER[result.status] < 4 else test.result


def _old(answer, results, ids):
    answer.gpuCount, answer.levelOneTestCount = len(ids), 10
    for i in range(16):
        answer.levelOneResults[i].result = 4
    for i in range(32):
        answer.perGpuResponses[i].gpuId = i if i < len(ids) else 32
        for j in range(13):
            answer.perGpuResponses[i].results[j].result = 4
    for result in results:
        if result.test == "software":
            row = answer.levelOneResults[7 if result.errors else 0]
        elif result.test in PLACES and result.entity != NODE:
            row = answer.perGpuResponses[ids[result.entity]].results[PLACES.index(result.test)]
        else:
            continue
        row.result = NUMBER[result.status]
        several = hasattr(row.error, "__len__")
        for i, error in enumerate(result.errors[: 5 if several else 1]):
            place = row.error[i] if several else row.error
            place.msg, place.code = error.text.encode(), error.code or 0
            if several:
                place.severity, place.gpuId = SEVERITY[error.severity], ids.get(result.entity, -1)
