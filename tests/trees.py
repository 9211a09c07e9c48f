"""File trees that stand in for a machine's /proc and /sys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_sysmetrics.sources.files import Files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_tree(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Files:
    """Write files and symbolic links by their path below `root`, and return the door to them."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    for name, target in (links or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return Files(str(root))
