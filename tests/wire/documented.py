"""What docs/wire.md says, read from its tables, and the golden bytes beside them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "wire.md"
FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| `(\w+)` \|", re.MULTILINE)


def golden(name: str) -> bytes:
    return bytes.fromhex((HERE / "golden" / f"{name}.hex").read_text())


def documented_header(section: str) -> tuple[struct.Struct, list[str]]:
    """The header of a section of the document, whose rows must leave no gap."""
    text = DOCUMENT.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    layout, names, end = "<", [], 0
    for offset, size, kind, name in ROW.findall(text):
        assert int(offset) == end, f"{section}.{name} is documented at {offset}, the row before ends at {end}"
        layout += FORMATS.get(kind, f"{size}s")
        names.append(name)
        end += int(size)
        assert struct.calcsize(layout) == end, f"{section}.{name}: {kind} does not have {size} bytes"
    return struct.Struct(layout), names


def fields_of(section: str, data: bytes) -> dict:
    header, names = documented_header(section)
    return dict(zip(names, header.unpack(data[: header.size]), strict=True))
