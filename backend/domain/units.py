"""What a set is made for: each sentence of a text, or the whole text (METHODS 10).

A *task* is what people open in Label Studio. Its text is cut into *units*: what a set of labelings is made for, what is
scored and what a threshold is fitted on. People act on tasks; guarantees speak of units.
"""

from __future__ import annotations

SENTENCE, TASK = "sentence", "task"
