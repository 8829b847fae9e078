"""How figures are written: signs, digits that fit their interval, `n/a` for what was not measured; lists, capitals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

NOT_MEASURED = "n/a"


def decimals(value: float, low: float, high: float) -> int:
    """Decimals that show two digits of the interval's half width, or three digits of a value without one."""
    width = (high - low) / 2
    if math.isfinite(width) and width > 0:
        return min(max(1 - math.floor(math.log10(width)), 0), 8)
    if value == 0 or not math.isfinite(value):
        return 0
    return min(max(2 - math.floor(math.log10(abs(value))), 0), 8)


def number(value: float, *, signed: bool = False, digits: int | None = None) -> str:
    """A figure with `digits` decimals (default: three significant digits)."""
    if not math.isfinite(value):
        return NOT_MEASURED
    if digits is None:
        digits = decimals(value, math.nan, math.nan)
    if value != 0 and abs(value) < 10**-digits / 2 and digits >= 8:
        return f"{value:{'+' if signed else ''}.1e}"
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    return text.lstrip("+-") if not text.strip("+-0.,") else text


def interval(low: float, high: float, *, signed: bool = False, digits: int | None = None) -> str:
    """`[low, high]`, or nothing where there is no interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    if digits is None:
        digits = decimals(math.nan, low, high)
    return f"[{number(low, signed=signed, digits=digits)}, {number(high, signed=signed, digits=digits)}]"


def estimate(value: float, low: float, high: float, *, signed: bool = False, unit: str = "") -> str:
    """`value unit [low, high]`, all with the same number of decimals."""
    if not math.isfinite(value):
        return NOT_MEASURED
    digits = decimals(value, low, high)
    parts = (number(value, signed=signed, digits=digits), unit, interval(low, high, signed=signed, digits=digits))
    return " ".join(part for part in parts if part)


def known(value: float, write: Callable[[float], str]) -> str:
    """A figure as ``write`` has it, or nothing where it is not known."""
    return write(value) if math.isfinite(value) else ""


def count(value: float) -> str:
    """A whole number with thousands separated."""
    return f"{round(value):,}" if math.isfinite(value) else NOT_MEASURED


def compact(value: float, *, signed: bool = False) -> str:
    """Two significant digits, for labels inside a chart and for what stands in brackets."""
    if not math.isfinite(value):
        return NOT_MEASURED
    if value == 0:
        return "0"
    sign = "+" if signed else ""
    digits = min(max(1 - math.floor(math.log10(abs(value))), 0), 8)
    return f"{value:{sign},.{digits}f}" if abs(value) >= 5e-5 else f"{value:{sign}.0e}".replace("e-0", "e-")


def rounded(value: float) -> float | None:
    """Four significant digits for JSON; None for what is not a number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def rounded_all(values: Iterable[float]) -> list[float | None]:
    """`rounded` of every value."""
    return [rounded(value) for value in values]


def join(names: Sequence[str], word: str = "and") -> str:
    """Names as a sentence lists them: `one, two and three`."""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def capital(sentence: str) -> str:
    """With a capital first letter; the others as they are."""
    return sentence[:1].upper() + sentence[1:]


def typeset(text: str) -> str:
    """Hyphens before a figure become minus signs (not those inside dates, names or ranges)."""
    return re.sub(r"(?<![\w.\-])-(?=\d)", "\N{MINUS SIGN}", text)
