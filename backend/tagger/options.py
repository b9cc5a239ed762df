"""How a model is run, whichever it is: what the settings say and the file of a model does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TaggerOptions:
    """Options of loading.

    `mapping` is a file that says what a checkpoint's labels mean; `threads` are torch's, for the whole process (None:
    as it has them); `int8` computes an encoder's layers in 8 bits; `device` is `auto` (a GPU if there is one), `cpu`
    or a name of torch's such as `cuda:1`.
    """

    mapping: Path | None = None
    threads: int | None = None
    int8: bool = False
    device: str = "auto"
