from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model import entity


@pytest.mark.parametrize(
    ("given_form", "one_form"),
    [
        ("00000000:5E:00.0", "0000:5e:00.0"),  # DCGM's and NVML's
        ("0000:5e:00.0", "0000:5e:00.0"),  # sysfs
        ("0000:5e:00", "0000:5e:00.0"),  # the kernel log
        ("5E:00.0", "0000:5e:00.0"),
        ("5e:00", "0000:5e:00.0"),
        (" 0009:01:00.0\n", "0009:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),  # a domain beyond 16 bits is kept
        ("0000:01:00.7", "0000:01:00.7"),
    ],
)
def test_one_form_of_pci(given_form: str, one_form: str) -> None:
    assert entity.pci(given_form) == one_form
    assert entity.pci(one_form) in (one_form, "")


@pytest.mark.parametrize(
    "text",
    ["", "x", "5e", "0000:5e:00.8", "0000:5e", "000:5e:00.0", "0000:5g:00.0", "0000:5e:00.0 x", "0000:5e:00.00", "٠٠٠٠:5e:00.0", "\x00"],
)
def test_what_is_no_pci_address(text: str) -> None:
    assert entity.pci(text) == ""


def test_domains_do_not_collide() -> None:
    assert entity.pci("0008:01:00.0") != entity.pci("0009:01:00.0")


@given(st.text(max_size=30))
def test_pci_takes_any_text_and_is_stable(text: str) -> None:
    form = entity.pci(text)
    if len(form) == len("0000:00:00.0"):
        assert entity.pci(form) == form


@given(st.integers(0, 40))
def test_link_and_back(number: int) -> None:
    name = entity.link("GPU-1f2e", number)
    assert entity.split_link(name) == ("GPU-1f2e", number)
    assert entity.gpu_of(name) == "GPU-1f2e"


@pytest.mark.parametrize(
    ("name", "parts", "gpu"),
    [
        ("GPU-a", ("GPU-a", None), "GPU-a"),
        ("GPU-a/link", ("GPU-a/link", None), "GPU-a/link"),
        ("GPU-a/linkx", ("GPU-a/linkx", None), "GPU-a/linkx"),
        ("node", ("node", None), ""),
        ("pci:0000:5e:00.0", ("pci:0000:5e:00.0", None), ""),
        ("switch:0000:5e:00.0/link3", ("switch:0000:5e:00.0", 3), ""),
        ("monitor:engine", ("monitor:engine", None), ""),
        ("", ("", None), ""),
    ],
)
def test_any_entity_can_be_split(name: str, parts: tuple[str, int | None], gpu: str) -> None:
    assert entity.split_link(name) == parts
    assert entity.gpu_of(name) == gpu
