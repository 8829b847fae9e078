"""Silence is put on and taken off again."""

from __future__ import annotations

import contextlib
import logging

from transformers.utils import logging as transformers_logging

from attnprobe.quiet import first_line, quiet_transformers


def test_quiet_restores_after_an_error() -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    with contextlib.suppress(ZeroDivisionError), quiet_transformers():
        assert transformers_logging.get_verbosity() == logging.CRITICAL
        assert not transformers_logging.is_progress_bar_enabled()
        raise ZeroDivisionError
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before


def test_first_line() -> None:
    assert first_line(ValueError("  a  b\nc")) == "a b"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("x" * 300), limit=10) == "xxxxxxx..."
