"""What `attnprobe doctor` found, as one screen of text. Imports no torch."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from attnprobe.architectures import HEAD_NAMES, TEXT_INPUT

if TYPE_CHECKING:
    from attnprobe.doctor import ExportFindings, FileFindings, Findings, HeadFindings, SiteFindings, TokenFindings

_LABEL_WIDTH = 16


def render(findings: Findings, *, width: int = 100) -> str:
    """The findings as one screen of text, `width` columns wide."""
    name, where = findings["name"], findings["path"] or "on the Hugging Face hub"
    rows = [
        ("checkpoint", name if Path(where) == Path(name) else f"{name} ({where})"),
        ("digest", findings["digest"]),
        ("family", findings["family"] + ("" if findings["family_tested"] else " (not among those tested)")),
        ("class", findings["model_class"]),
        ("parameters", f"{findings['parameters']:,}, {findings['dtype']} on {findings['device']}"),
        ("files", _describe_files(findings["files"])),
        ("attention", _describe_sites(findings["sites"])),
        ("backends", ", ".join(_describe_backend(*item) for item in findings["backends"].items())),
        ("sharing", _describe_sharing(findings)),
        ("special tokens", _describe_special_tokens(findings["special_tokens"])),
        ("usable length", _describe_length(findings)),
        ("head", _describe_head(findings["head"])),
    ]
    if findings["export"] is not None:
        rows.append(("mask", _describe_export(findings["export"])))
    if findings["residual"] is not None:
        rows.append(("scores", findings["residual"]))
    lines = [_row(label, text, width) for label, text in rows]
    if findings["notes"]:
        lines += ["", "What would bite later"]
        lines += [_row("  -", note["text"], width, indent=4) for note in findings["notes"]]
    lines += ["", "What the commands can do"]
    for command, verdict in findings["commands"].items():
        lines.append(_row(f"  {command}", ("yes: " if verdict["available"] else "no: ") + verdict["text"], width))
    return "\n".join(lines)


def _row(label: str, text: str, width: int, *, indent: int = _LABEL_WIDTH) -> str:
    return textwrap.fill(
        text,
        width=width,
        initial_indent=label.ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _describe_files(files: FileFindings) -> str:
    number = f"{files['count']} shards" if files["sharded"] else "one file"
    return f"{number}, {files['format']}, {' and '.join(files['dtypes'])}, {files['bytes'] / 2**20:.1f} MiB"


def _describe_sites(sites: list[SiteFindings]) -> str:
    def span(values: list[int]) -> str:
        return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"

    heads, pairs = span([site["heads"] for site in sites]), span([site["kv_heads"] for site in sites])
    grouped = "" if heads == pairs else f" over {pairs} key-value heads"
    direction = {True: "causal", False: "bidirectional"}
    kinds = " and ".join(direction[causal] for causal in sorted({site["causal"] for site in sites}))
    width = span([site["head_dim"] for site in sites])
    return f"{len(sites)} sites of {heads} heads{grouped}, head dimension {width}, {kinds}"


def _describe_backend(name: str, reason: str | None) -> str:
    return name if reason is None else f"not {name}: {reason}"


def _describe_sharing(findings: Findings) -> str:
    modules, sites = findings["modules"], len(findings["sites"])
    plural = "s" if modules > 1 else ""
    layers = f"{sites} sites share {modules} attention module{plural}" if modules < sites else "no layers are shared"
    tied = findings["tied_parameters"]
    return f"{layers}, {f'{len(tied)} tensors are tied' if tied else 'no tensors are tied'}"


def _describe_special_tokens(tokens: dict[str, TokenFindings | None] | None) -> str:
    if tokens is None:
        return "unknown: it has no tokenizer"
    return ", ".join(f"{role} {t['token']} ({t['id']})" if t else f"no {role}" for role, t in tokens.items())


def _describe_length(findings: Findings) -> str:
    if findings["reads"] != TEXT_INPUT:
        return f"none in tokens: it reads {findings['reads']}"
    return f"{findings['usable_length']} tokens, special tokens included"


def _describe_export(export: ExportFindings) -> str:
    plain = {name: value for name, value in export["provenance"].items() if isinstance(value, str | int | float)}
    provenance = ", ".join(f"{name} {value}" for name, value in plain.items())
    made = f"; {provenance}" if provenance else ""
    return f"{export['mask']}; keeps {export['kept_share']:.1%} of the cells of {export['tokens']} tokens{made}"


def _describe_head(head: HeadFindings) -> str:
    if not head["trained"]:
        return "none" + (" that was trained" if head["missing_keys"] else "")
    labels = head["labels"]
    shown = ", ".join(labels[:6]) + (", ..." if len(labels) > 6 else "")
    return f"{HEAD_NAMES[head['kind']]}, trained" + (f", {len(labels)} labels: {shown}" if labels else "")
