#!/usr/bin/env python3
"""Fixed work on one GPU; prints the SHA-256 of what came out. An example for `nvhc screen`.

A chain of matrix products. Every number in it is a whole number small enough that any order of adding gives the same
sum: the digest depends on nothing but arithmetic being right, not on the GPU's model, its clocks, the driver or the
library's choice of a kernel, and the same digest can be had without a GPU (--cpu, for small sizes). After each product
the sums are taken modulo 7: a flipped bit of a sum changes it by a power of two, which is no multiple of 7, so it can not
vanish there, and the next product spreads it. What is no whole number is counted, and goes into the digest.

It needs PyTorch with CUDA, or, with --cpu, nothing but Python. It uses the first GPU that it is shown
(CUDA_VISIBLE_DEVICES). Exit status 0 with a digest, 1 when it could not compute.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import struct
import sys
from typing import Any

SEED = b"slurm-nvhc screen 1"
# On an NVIDIA GPU: tensor cores from 16-bit and from TF32 numbers, and the ordinary units for 32 and 64 bits.
MODES = ("half", "tf32", "float", "double")
# 16 bits hold every whole number up to 2048. Entries are -3 to 3, so sums of this many products stay around 256.
MOST = 4096


def start(name: str, size: int) -> bytes:
    """A matrix as bytes, the same on every machine."""
    return hashlib.shake_256(SEED + name.encode()).digest(size * size)


def digest(state: bytes, broken: int) -> str:
    return hashlib.sha256(state + struct.pack("<q", broken)).hexdigest()


def by_python(size: int, rounds: int) -> str:
    """The same numbers without a GPU. Slow: size³ steps a round."""
    columns = list(zip(*_rows(start("b", size), size)))
    state = _rows(start("a", size), size)
    for _ in range(rounds):
        state = [[sum(map(int.__mul__, row, column)) % 7 - 3 for column in columns] for row in state]
    return digest(b"".join(struct.pack(f"{size}b", *row) for row in state), 0)


def _rows(raw: bytes, size: int) -> list[list[int]]:
    return [[value % 7 - 3 for value in raw[n * size : (n + 1) * size]] for n in range(size)]


def by_torch(torch: Any, device: str, size: int, rounds: int) -> str:
    kinds = {"half": torch.float16, "tf32": torch.float32, "float": torch.float32, "double": torch.float64}
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # partial sums in 16 bits would not be exact

    def matrix(name: str) -> Any:
        raw = torch.frombuffer(bytearray(start(name, size)), dtype=torch.uint8).to(device)
        return (raw.to(torch.int32) % 7 - 3).reshape(size, size)

    state, fixed = matrix("a"), matrix("b")
    broken = torch.zeros((), dtype=torch.int64, device=device)
    for turn in range(rounds):
        mode = MODES[turn % len(MODES)]
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        product = state.to(kinds[mode]) @ fixed.to(kinds[mode])
        whole = product.to(torch.int32)
        broken += (whole.to(product.dtype) != product).sum()
        state = torch.remainder(whole, 7) - 3
    result = state.to(torch.int8).cpu().contiguous()
    return digest(ctypes.string_at(result.data_ptr(), result.numel()), int(broken.item()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Fixed work on one GPU; prints the SHA-256 of what came out.", allow_abbrev=False)
    parser.add_argument("--size", type=int, default=0, metavar="N", help=f"rows and columns of the matrices ({MOST}; with --cpu 32)")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="products (2000; with --cpu 100)")
    parser.add_argument("--cpu", action="store_true", help="without GPU and PyTorch, to try it out or to check a digest")
    args = parser.parse_args()
    size, rounds = args.size or (32 if args.cpu else MOST), args.rounds or (100 if args.cpu else 2000)
    if not 1 <= size <= MOST or rounds < 1:
        parser.error(f"--size is 1 to {MOST}, and --rounds at least 1")
    if args.cpu:
        print(by_python(size, rounds))
        return 0
    try:
        import torch
    except ImportError as exc:
        print(f"PyTorch can not be loaded by {sys.executable}: {exc}", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        return 1
    print(by_torch(torch, "cuda", size, rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
