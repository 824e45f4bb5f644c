"""Random requests to the page's server: each is answered or refused by a sentence.

More requests than a test needs: ``python tests/fuzz/fuzz_view.py 100000``.
"""

from __future__ import annotations

import pytest
from fuzz_view import fuzz


@pytest.mark.slow
def test_requests_are_answered_or_refused_by_a_sentence() -> None:
    result = fuzz(300, seed=1)
    assert result.findings == []
    assert {200, 400, 403, 404, 405} <= set(result.statuses)
