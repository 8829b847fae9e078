"""Keeps other libraries' warnings and progress bars off stderr, and their errors to one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' logs below errors, its progress bars, and Python warnings; restore all on exit."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


def first_line(error: BaseException, *, limit: int = 200) -> str:
    """The first line of an error's text, cut to `limit` characters; the name of its class when it has no text."""
    lines = str(error).strip().splitlines()
    text = " ".join(lines[0].split()).rstrip(" :") if lines else ""
    if not text:
        return type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
