"""One way of writing values down, so that equal values have equal digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks. Raises ValueError or TypeError for what JSON cannot say (NaN, objects).

    >>> canonical_json({"b": (1, 2), "a": "功夫"})
    '{"a":"功夫","b":[1,2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(text: str) -> str:
    """Hex digest of the text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
