from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend.store.redact import REDACTED, dump_payload, redact


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    )
)
def test_what_names_no_secret_is_never_changed(value: Any) -> None:
    kept = {"value": value}
    secret_like = json.dumps(kept).lower()
    if not any(word in secret_like for word in ("token", "pass", "secret", "auth", "cookie", "credential", "key")):
        assert redact(kept) == kept
        assert json.loads(dump_payload(kept)) == kept


def test_redacting_does_not_touch_the_original() -> None:
    payload = {"project": {"token": "x", "deep": [{"api_key": "y"}]}}
    assert redact(payload)["project"]["deep"] == [{"api_key": REDACTED}]
    assert payload == {"project": {"token": "x", "deep": [{"api_key": "y"}]}}
