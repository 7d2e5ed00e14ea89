"""A node whose engine is the stand-in bindings of tests/engines: read through the dcgm backend as production does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import patient
import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model.reading import NoData, Reading, number
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.proc import child
from slurm_nvhc.sense import client
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.sim.world import World

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines")
BINDINGS = os.path.join(HERE, "bindings")
CAPTURE = os.path.join(HERE, "h100x8.json")
NS = 1_000_000_000


def write_host(root: str, world: World, offset_ns: int) -> None:
    """A simulated node's kernel log, PCI bus and driver as files below ``root``."""
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    records = [
        f"6,{line.seq},{max(0, line.wall_ns + offset_ns - booted_ns) // 1000},-;{line.text}\n SUBSYSTEM=pci\n" for line in world.kernel
    ]
    put(root, "proc/sys/kernel/random/boot_id", world.boot_id + "\n")
    put(root, "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {world.driver}  Sat\nGCC version: 12\n")
    put(root, "dev/kmsg", "".join(records))
    if "kernel_log" in world.blind:
        os.unlink(os.path.join(root, "dev/kmsg"))
    devices = os.path.join(root, "sys/bus/pci/devices")
    for name in os.listdir(devices) if os.path.isdir(devices) else ():
        for file in os.listdir(os.path.join(devices, name)):
            os.unlink(os.path.join(devices, name, file))
        os.rmdir(os.path.join(devices, name))
    for gpu in world.gpus:
        if gpu.on_pci:
            pci_device(root, gpu.identity.pci, responds=gpu.responds)
            put(root, f"sys/bus/pci/slots/{gpu.identity.slot}/address", gpu.identity.pci[:-2] + "\n")
    for address in world.switches:
        pci_device(root, address, kind="0x068000")
    write_node(root, world)
    write_rdma(root, world)


def write_node(root: str, world: World) -> None:
    """The kernel's release, the fabric manager's service and the processes that compute, as /proc and /sys have them."""
    readings = world.parts["node"].readings
    put(root, "proc/sys/kernel/osrelease", f"{readings['kernel_release']}\n")
    for name in os.listdir(os.path.join(root, "proc")):
        # A link leads to a process that really runs (engines/played.py).
        if name.isdigit() and not os.path.islink(os.path.join(root, "proc", name)):
            shutil.rmtree(os.path.join(root, "proc", name))
    service = "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service/cgroup.procs"
    runs = isinstance(readings["fabric_manager"], str)
    put(root, service, "900\n" if runs else "")
    if runs:
        process(root, 900, "nv-fabricmanage", ["/dev/nvidiactl", "/dev/nvidia-nvswitchctl"])
    process(root, 901, "nv-hostengine", ["/dev/nvidiactl", "/dev/null"])
    put(root, "proc/901/stat", f"901 (nv-hostengine) S 1 901 901 {' '.join('0' * 15)} 100 0 0\n")
    pid = 1000
    for gpu in world.gpus:
        for _ in range(int(number(gpu.readings["gpu_processes"]) or 0)):
            process(root, pid, "python3", ["/dev/nvidiactl", f"/dev/nvidia{gpu.identity.minor}", "/dev/nvidia-uvm", "/dev/null"])
            pid += 1


def process(root: str, pid: int, name: str, files: Sequence[str]) -> None:
    put(root, f"proc/{pid}/comm", f"{name}\n")
    os.makedirs(os.path.join(root, f"proc/{pid}/fd"))
    for descriptor, path in enumerate(files):
        os.symlink(path, os.path.join(root, f"proc/{pid}/fd/{descriptor}"))


def write_rdma(root: str, world: World) -> None:
    """RDMA ports as sysfs shows them."""
    folder = os.path.join(root, "sys/class/infiniband")
    shutil.rmtree(folder, ignore_errors=True)
    for name, part in world.parts.items():
        if name.startswith("rdma:") and part.present:
            device, _, port = name.removeprefix("rdma:").partition("/port")
            rdma_port(root, device, int(port), part.readings)


def rdma_port(root: str, device: str, port: int, readings: Mapping[str, Reading]) -> None:
    """Each reading as the file that it comes from; a reading that is left out, or that the device does not have, is no file."""
    folder = f"sys/class/infiniband/{device}/ports/{port}"
    texts = {
        "rdma_state": lambda v: f"{v}: {cat.RDMA_STATES[v].upper()}",
        "rdma_phys_state": lambda v: f"{v}: LinkUp",
        "rdma_link_layer": lambda v: cat.RDMA_LINK_LAYERS[v],
        "rdma_rate": lambda v: f"{v:g} Gb/sec (4X NDR)",
        "rdma_xmit_bytes": lambda v: str(v // 4),
        "rdma_rcv_bytes": lambda v: str(v // 4),
    }
    for name, path in RDMA_FILES.items():
        value = readings.get(name, NoData("not_supported"))
        if not isinstance(value, NoData):
            put(root, f"{folder}/{path}", texts.get(name, str)(value) + "\n")


RDMA_FILES = {
    "rdma_state": "state",
    "rdma_phys_state": "phys_state",
    "rdma_link_layer": "link_layer",
    "rdma_rate": "rate",
    "rdma_link_downed": "counters/link_downed",
    "rdma_link_recovery": "counters/link_error_recovery",
    "rdma_symbol_errors": "counters/symbol_error",
    "rdma_rcv_errors": "counters/port_rcv_errors",
    "rdma_rcv_remote_physical_errors": "counters/port_rcv_remote_physical_errors",
    "rdma_local_link_integrity_errors": "counters/local_link_integrity_errors",
    "rdma_buffer_overrun_errors": "counters/excessive_buffer_overrun_errors",
    "rdma_xmit_discards": "counters/port_xmit_discards",
    "rdma_packet_seq_errors": "hw_counters/packet_seq_err",
    "rdma_ack_timeouts": "hw_counters/local_ack_timeout_err",
    "rdma_xmit_bytes": "counters/port_xmit_data",
    "rdma_rcv_bytes": "counters/port_rcv_data",
}


def pci_device(root: str, address: str, kind: str = "0x030200", responds: bool = True, vendor: str = "0x10de") -> None:
    folder = f"sys/bus/pci/devices/{address}"
    put(root, f"{folder}/vendor", vendor + "\n")
    put(root, f"{folder}/class", kind + "\n")
    with open(os.path.join(root, folder, "config"), "wb") as file:
        file.write(bytes.fromhex("de10") if responds else b"\xff\xff")


def put(root: str, path: str, text: str) -> None:
    whole = os.path.join(root, path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with open(whole, "w", encoding="utf-8") as file:
        file.write(text)


def with_root(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """Let readers that this test starts look for /proc, /sys and /dev below ``root``."""

    def run(argv: Any, timeout_s: float, environment: Any = None, request: Any = None) -> child.Result:
        document = json.loads(request)
        document["options"]["root"] = root
        return child.run(argv, timeout_s, environment, json.dumps(document) + "\n")

    class Seam:
        Result = child.Result

    Seam.run = staticmethod(run)  # type: ignore[attr-defined]
    monkeypatch.setattr(client, "child", Seam)


class StubNode:
    """An HGX H100 behind the stub. ``world`` is the path of its state."""

    def __init__(self, folder: str, monkeypatch: pytest.MonkeyPatch, preset: str = "hgx-h100-8") -> None:
        self.root = os.path.join(folder, "root")
        self.world = os.path.join(folder, "world.json")
        world = World.preset(preset)
        self._offset_ns = time.time_ns() - world.wall_ns
        world.save(self.world)
        self.engine = Engine("dcgm", f"unix://{self.world}", bindings=(BINDINGS,))
        self.stub()
        self.refresh()
        with_root(monkeypatch, self.root)

    def do(self, operation: str, **arguments: Any) -> None:
        with World.edit(self.world) as world:
            world.apply({"op": operation, **arguments})
        self.refresh()

    def refresh(self) -> None:
        write_host(self.root, World.load(self.world), self._offset_ns)

    def stub(self, **options: Any) -> None:
        """How the stub misbehaves, see stub_engine."""
        with open(self.world + ".stub", "w", encoding="utf-8") as file:
            json.dump({"offset_ns": self._offset_ns, **options}, file)

    def kept(self) -> dict[str, Any]:
        """What the engine keeps: groups, field groups, calls."""
        try:
            with open(self.world + ".engine", encoding="utf-8") as file:
                document: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return document

    @property
    def nvvs(self) -> int:
        """The pid of the diagnostic that runs, 0 for none."""
        try:
            with open(self.world + ".nvvs", encoding="utf-8") as file:
                pid = int(json.load(file)["nvvs"])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return 0
        return pid

    def somebody_runs_one(self) -> int:
        """Let a diagnostic run that no reader of ours asked for: its pid. It goes on until it is stopped, or for 100 s."""
        quiet, played = subprocess.DEVNULL, [sys.executable, "-I", os.path.join(HERE, "played.py")]
        command = [*played, self.world + ".nvvs", os.path.join(self.root, "proc"), "100", "0", "ok"]
        subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, check=True)
        end = time.monotonic() + patient.PROCESS_S
        while not self.nvvs and time.monotonic() < end:
            time.sleep(0.01)
        return self.nvvs

    def end_diagnostic(self) -> None:
        if self.nvvs:
            os.kill(self.nvvs, signal.SIGKILL)

    def read(self, deadline_s: float = patient.READ_S, **options: Any) -> Snapshot:
        return read_snapshot("n1", self.engine, deadline_s, **options)
