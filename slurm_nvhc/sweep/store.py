"""A sweep's folder: what is swept (sweep.json), a lock, and one file of its own for each node that has a result."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Final, Iterator, Mapping, NamedTuple, Optional

from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.proc.files import make_private_dir, write_atomic
from slurm_nvhc.record.lock import held
from slurm_nvhc.slurm.environment import node_name
from slurm_nvhc.sweep.outcome import VERDICTS, Gpu, NodeResult

SWEEP: Final = "sweep.json"
NODES: Final = "nodes"
LOCK_S: Final = 0.5
MAX_BYTES: Final = 16 * 1024 * 1024


class Task(NamedTuple):
    """What a folder's results are results of. command: words for nvhc on the node, without --json and the site's options.

    name: the name of its jobs in Slurm: those that an earlier, killed sweep left behind are known by it.
    """

    partition: str
    command: tuple[str, ...]
    name: str


class Store:
    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)

    def open(self, partition: str, command: tuple[str, ...]) -> Task:
        """Make the folder, or go on in one that was made for the same. InputError when it holds results of something else."""
        try:
            make_private_dir(self.directory)
            make_private_dir(f"{self.directory}/{NODES}")
            task = self.task()
            if task is None:
                task = Task(partition, command, f"nvhc-sweep-{os.urandom(4).hex()}")
                write_atomic(f"{self.directory}/{SWEEP}", json.dumps({"schema": 1, **task._asdict()}) + "\n")
        except OSError as exc:
            raise InputError(self.directory, "", f"can not be used: {exc.strerror or exc}", "--dir names another folder") from exc
        if (task.partition, task.command) != (partition, command):
            what = f"`{' '.join(task.command)}` in partition {task.partition}"
            raise InputError(self.directory, "", f"holds the results of {what}", "--dir names another folder")
        return task

    def task(self) -> Optional[Task]:
        """None when there is none yet. InputError for a file that is not ours."""
        path = f"{self.directory}/{SWEEP}"
        raw = _load(path)
        if raw is None:
            return None
        try:
            command = tuple(str(word) for word in raw["command"])
            return Task(str(raw["partition"]), command, str(raw["name"]))
        except (KeyError, TypeError) as exc:
            raise InputError(path, "", "is not the file of a sweep", "--dir names another folder") from exc

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """InputError while another sweep works in this folder."""
        with held(f"{self.directory}/lock", LOCK_S) as got:
            if not got:
                raise InputError(self.directory, "", "another nvhc sweep works in it", "wait for it, or --dir names another folder")
            yield

    def put(self, result: NodeResult) -> None:
        document = {"schema": 1, **result._asdict(), "gpus": [gpu._asdict() for gpu in result.gpus]}
        path = f"{self.directory}/{NODES}/{_file(result.node)}"
        try:
            write_atomic(path, json.dumps(document, ensure_ascii=True) + "\n")
        except OSError as exc:
            raise MonitorError(path, "", f"can not be written: {exc.strerror or exc}") from exc

    def results(self) -> dict[str, NodeResult]:
        """By node. A file that can not be read is no result: its node is swept again."""
        try:
            names = sorted(os.listdir(f"{self.directory}/{NODES}"))
        except OSError as exc:
            raise InputError(self.directory, "", f"is not the folder of a sweep: {exc.strerror}") from exc
        out = {}
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                with contextlib.suppress(InputError, KeyError, TypeError, ValueError):
                    result = _result(_load(f"{self.directory}/{NODES}/{name}") or {})
                    out[result.node] = result
        return out


def _file(node: str) -> str:
    if node_name({"SLURMD_NODENAME": node}, "") != node:
        raise MonitorError(node, "", "is not a node name that can be a file's")
    return f"{node}.json"


def _load(path: str) -> Optional[Mapping[str, Any]]:
    try:
        with open(path, "rb") as file:
            raw = json.loads(file.read(MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror or exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise InputError(path, "", "is not JSON") from exc
    if not isinstance(raw, dict) or raw.get("schema") != 1:
        raise InputError(path, "", "is not a file of nvhc sweep's")
    return raw


def _result(raw: Mapping[str, Any]) -> NodeResult:
    """KeyError, TypeError or ValueError for what is none."""
    if raw["verdict"] not in VERDICTS:
        raise ValueError("verdict")
    gpus = tuple(Gpu(**row) for row in raw["gpus"])
    numbers = float(raw["seconds"]), int(raw["at_ns"]), int(raw["tries"])
    return NodeResult(str(raw["node"]), raw["verdict"], gpus, *numbers, str(raw["why"]), dict(raw["document"]))


def done(result: Optional[NodeResult], since_ns: int) -> bool:
    """Does a node need no diagnostic any more? Unknown is no result."""
    return result is not None and result.verdict != fd.UNKNOWN and result.at_ns >= since_ns
