"""The JSON of a request, read with care: whatever it is, it ends in a value or in a 4xx with the reason."""

from __future__ import annotations

import json

from flask import request

from backend.labelstudio.payloads import InvalidPayload


def read_json() -> object:
    """Return the body of the request that is being answered.

    Raises:
        InvalidPayload: when it is empty, no JSON, or nested too deeply.
        RequestEntityTooLarge: when it is larger than the limit (werkzeug answers 413).
    """
    data = request.get_data(cache=False)
    if not data:
        raise InvalidPayload("a JSON body", "an empty one")
    try:
        return json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise InvalidPayload("JSON of bearable depth", "one nested too deeply") from None
    except (ValueError, UnicodeError):
        raise InvalidPayload("a JSON body", "something that is not JSON") from None


def _refuse(name: str) -> float:
    raise ValueError(name)  # NaN and Infinity are no JSON, though Python would read them
