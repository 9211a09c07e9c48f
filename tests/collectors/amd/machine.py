"""A machine with AMD's tools and the driver's files, as a test puts them there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.collector import Context
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from tests.parts import Bench, program, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

CARD: Final = {"card0": {"GPU use (%)": "5", "Unique ID": "0xA1", "PCI Bus": "0000:63:00.0", "Card Series": "MI210"}}
TWO: Final = {**CARD, "card1": {"GPU use (%)": "6", "Unique ID": "0xb2", "PCI Bus": "0000:C3:00.0"}}


class Machine:
    """A PATH with the tools that a test puts there, and a root with the files that it writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self.benches: list[Bench] = []
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")

    def has(self, name: str, **writes: object) -> None:
        """Put a tool there that writes a text, or a document, per first argument; `_` stands for any."""
        for word, what in writes.items():
            text = what if isinstance(what, str) else json.dumps(what)
            (self.folder / f"{name}{word}").write_text(text)
        self.does(name, f'cat {self.folder}/{name}_ 2>/dev/null || cat "{self.folder}/{name}$1"')

    def does(self, name: str, script: str) -> None:
        """Put a tool there that does something."""
        program(self.folder / "bin", name, f'echo "$*" >>{self.folder}/runs\n{script}\n')

    def runs(self) -> list[str]:
        """Return the arguments of all runs."""
        runs = self.folder / "runs"
        return runs.read_text().splitlines() if runs.exists() else []

    def bench(self, **settings: Any) -> Bench:  # noqa: ANN401 - of any setting
        """Return the collector there."""
        self.benches.append(Bench("amd", self.root, **settings))
        return self.benches[-1]

    def card(self, node: int, pci: str, **files: str) -> None:
        """Give it a card of the driver's."""
        device = f"sys/class/drm/renderD{node}/device"
        whole = {"vendor": "0x1002\n", "mem_info_vram_total": "8589934592\n", "uevent": f"PCI_SLOT_NAME={pci}\n"}
        named = {name.replace("__", "/"): text for name, text in files.items()}
        tree(self.root, {f"{device}/{name}": text for name, text in {**whole, **named}.items()})

    def context(self, clock: Callable[[], float]) -> Context:
        """Return what a collector knows there, by another clock than a bench's."""
        files = Files(str(self.root))
        return Context(
            settings=Settings(root_path=str(self.root)),
            files=files,
            watched=WatchedProcess(files, lambda: None, tree=False, clock=clock),
            wants=lambda _: True,
            clock=clock,
        )
