"""How the doctor writes lists and names."""

from __future__ import annotations

from typing import Iterable

from slurm_nvhc.model.snapshot import GpuIdentity


def some(items: Iterable[object], most: int = 6) -> str:
    """'a, b, c and 4 more'"""
    words = [str(item) for item in items]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def gpu(identity: GpuIdentity) -> str:
    """'gpu3' by NVML index, else its PCI address or UUID."""
    if identity.nvml_index is not None:
        return f"gpu{identity.nvml_index}"
    return identity.pci or identity.uuid or "gpu?"
