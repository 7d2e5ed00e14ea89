"""Brings the rigs' fixture to the contract's tests."""

from __future__ import annotations

from contract_support import rig

__all__ = ["rig"]
