"""Says what a checkpoint is, what would bite later, and what each command can do with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict

from attnprobe.architectures import HEAD_NAMES, SUPPORTED, TEXT_INPUT, HeadKind, shared_layers
from attnprobe.attention import BACKENDS, AttentionSession, Site
from attnprobe.checkpoint import Checkpoint, open_checkpoint
from attnprobe.checkpoint.notes import tied_parameters
from attnprobe.errors import UnsupportedModelError
from attnprobe.export.attaching import attached
from attnprobe.export.words import in_words, kept_share, residual_in_words
from attnprobe.options import DEFAULT_LENGTH

SCHEMA_VERSION = 1

SPECIAL_TOKENS = ("cls", "sep", "pad", "mask", "bos", "eos", "unk")
"""Roles of special tokens, as tokenizers name them."""


class SiteFindings(TypedDict):
    """One site: see `attnprobe.attention.Site`."""

    index: int
    name: str
    application: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool


class FileFindings(TypedDict):
    """The weight files: see `attnprobe.weights.WeightFiles`; `bytes` is the size of all."""

    format: str
    count: int
    sharded: bool
    dtypes: list[str]
    bytes: int


class HeadFindings(TypedDict):
    """The head: see `attnprobe.checkpoint.Head`; `labels` in the order of its outputs."""

    kind: HeadKind
    trained: bool
    labels: list[str]
    missing_keys: list[str]


class TokenFindings(TypedDict):
    """One special token."""

    token: str
    id: int


class Verdict(TypedDict):
    """Whether a command can use the checkpoint in this version, and what for or why not."""

    available: bool
    text: str


class ExportFindings(TypedDict):
    """The mask that an export of attnprobe applies.

    `mask` is in words; `kept_share` of the cells of one text of `tokens` tokens, over sites and heads (0 to 1);
    `longest` the most tokens it covers, None without a limit; `provenance` how it was made.
    """

    attnprobe: str
    mask: str
    kind: str
    granularity: str | None
    diagonal: str
    kept_share: float
    tokens: int
    longest: int | None
    provenance: dict[str, Any]


class Findings(TypedDict):
    """What `examine` finds; JSON-able.

    `modules` counts the attention modules behind the sites; `reads` is "input_ids" for a model of text; `backends` maps
    each name to None when it works, else to the reason; `special_tokens` maps each role to None when no token has it,
    and is None without a tokenizer; `export` is None for a checkpoint without a mask, `residual` (in
    words) for one without residual attention.
    """

    schema_version: int
    name: str
    path: str | None
    digest: str
    family: str
    family_tested: bool
    model_class: str
    parameters: int
    device: str
    dtype: str
    files: FileFindings
    sites: list[SiteFindings]
    modules: int
    backends: dict[str, str | None]
    shared_layers: dict[str, int] | None
    tied_parameters: list[list[str]]
    special_tokens: dict[str, TokenFindings | None] | None
    reads: str
    usable_length: int
    head: HeadFindings
    export: ExportFindings | None
    residual: str | None
    notes: list[dict[str, str]]
    commands: dict[str, Verdict]


@dataclass(frozen=True, kw_only=True)
class _Patient:
    checkpoint: Checkpoint
    sites: tuple[Site, ...]
    backends: dict[str, str | None]

    @property
    def working(self) -> list[str]:
        return [name for name, reason in self.backends.items() if reason is None]


def examine(name: str, *, device: str = "cpu", dtype: str = "float32", trust_remote_code: bool = False) -> Findings:
    """Open the checkpoint `name`, run it once through every backend, and say what was found.

    Raises:
        AttnProbeError: whatever `open_checkpoint` and `find_sites` refuse; no tokenizer is not among it.
    """
    checkpoint = open_checkpoint(
        name, device=device, dtype=dtype, trust_remote_code=trust_remote_code, need_tokenizer=False
    )
    with _attached(checkpoint) as session:
        sites = session.sites
    patient = _Patient(checkpoint=checkpoint, sites=sites, backends=_try_backends(checkpoint))
    config, shared = checkpoint.model.config, shared_layers(checkpoint.model.config)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": checkpoint.name,
        "path": None if checkpoint.path is None else str(checkpoint.path),
        "digest": checkpoint.digest,
        "family": config.model_type,
        "family_tested": config.model_type in SUPPORTED,
        "model_class": type(checkpoint.model).__name__,
        "parameters": sum(parameter.numel() for parameter in checkpoint.model.parameters()),
        "device": str(checkpoint.model.device),
        "dtype": dtype,
        "files": _files(checkpoint),
        "sites": [_site(site) for site in sites],
        "modules": len({id(site.module) for site in sites}),
        "backends": patient.backends,
        "shared_layers": None if shared is None else {"distinct": shared[0], "applied": shared[1]},
        "tied_parameters": [list(group) for group in tied_parameters(checkpoint.model)],
        "special_tokens": _special_tokens(checkpoint),
        "reads": checkpoint.model.main_input_name,
        "usable_length": checkpoint.usable_length,
        "head": {
            "kind": checkpoint.head.kind,
            "trained": checkpoint.head.trained,
            "labels": sorted(checkpoint.head.label2id, key=checkpoint.head.label2id.__getitem__),
            "missing_keys": list(checkpoint.head.missing_keys),
        },
        "export": _export_findings(checkpoint, sites),
        "residual": None if checkpoint.residual is None else residual_in_words(checkpoint.residual),
        "notes": [{"code": note.code, "text": note.text} for note in checkpoint.notes],
        "commands": {command: judge(patient) for command, judge in COMMANDS.items()},
    }


def _attached(checkpoint: Checkpoint, *, backend: str = "eager") -> AbstractContextManager[AttentionSession]:
    return attached(checkpoint.model, checkpoint.applied, backend=backend)


def _try_backends(checkpoint: Checkpoint) -> dict[str, str | None]:
    outcome: dict[str, str | None] = {}
    for backend in BACKENDS:
        try:
            with _attached(checkpoint, backend=backend):
                outcome[backend] = None
        except UnsupportedModelError as error:
            outcome[backend] = str(error)
    return outcome


def _files(checkpoint: Checkpoint) -> FileFindings:
    weights = checkpoint.weights
    assert weights is not None, "open_checkpoint always fills it"
    return {
        "format": weights.format,
        "count": len(weights.files),
        "sharded": weights.sharded,
        "dtypes": list(weights.dtypes),
        "bytes": sum(file.stat().st_size for file in weights.files),
    }


def _export_findings(checkpoint: Checkpoint, sites: tuple[Site, ...]) -> ExportFindings | None:
    applied = checkpoint.applied
    if applied is None or applied.mask is None or applied.rules is None:
        return None
    mask = applied.mask
    description = mask.describe()
    granularity = description.get("granularity", {})
    tokens = min(checkpoint.usable_length, granularity.get("length", DEFAULT_LENGTH))
    return {
        "attnprobe": applied.version,
        "mask": in_words(mask),
        "kind": description["kind"],
        "granularity": granularity.get("name"),
        "diagonal": mask.diagonal,
        "kept_share": kept_share(mask, applied.rules, sites=len(sites), heads=sites[0].heads, length=tokens),
        "tokens": tokens,
        "longest": mask.limit,
        "provenance": dict(applied.provenance),
    }


def _site(site: Site) -> SiteFindings:
    return {
        "index": site.index,
        "name": site.name,
        "application": site.application,
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "head_dim": site.head_dim,
        "causal": site.causal,
    }


def _special_tokens(checkpoint: Checkpoint) -> dict[str, TokenFindings | None] | None:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        return None
    found: dict[str, TokenFindings | None] = {}
    for role in SPECIAL_TOKENS:
        token = getattr(tokenizer, f"{role}_token")
        found[role] = None if token is None else {"token": token, "id": getattr(tokenizer, f"{role}_token_id")}
    return found


# What each command can do -------------------------------------------------------------------------------------------

_TASKS: dict[HeadKind, str] = {
    "sequence_classification": "the loss and accuracy of its trained classifier, on labelled texts",
    "regression": "the loss and correlation of its trained regression head, on labelled texts",
    "token_classification": "the loss and span F1 of its trained token classifier, on labelled tokens",
    "masked_lm": "the masked-language-model loss of its trained head, on any text",
    "causal_lm": "the language-model loss of its trained head, on any text",
    "none": "label-free fidelity to the dense model, on any text (it has no trained head: no accuracy)",
}


_LEARNS_FROM: dict[HeadKind, str] = {
    kind: "labelled data" if kind in ("sequence_classification", "regression", "token_classification") else "any text"
    for kind in _TASKS
}


def _measure(patient: _Patient) -> Verdict:
    reads = patient.checkpoint.model.main_input_name
    if reads != TEXT_INPUT:
        return {"available": False, "text": f"it reads {reads}, and data is text in this version"}
    if patient.checkpoint.tokenizer is None:
        return {"available": False, "text": "it has no tokenizer, so text cannot be read"}
    return {"available": True, "text": f"measures {_TASKS[patient.checkpoint.head.kind]}"}


def _later(would: Callable[[_Patient], str]) -> Callable[[_Patient], Verdict]:
    """The verdict on a command that is to come: never available, but what it will find is known."""
    return lambda patient: {"available": False, "text": f"not in this version; {would(patient)}"}


def _sparsify(patient: _Patient) -> Verdict:
    readable = _measure(patient)
    if not readable["available"]:
        return readable
    if len({(site.heads, site.causal) for site in patient.sites}) > 1:
        return {
            "available": False,
            "text": "its sites differ in heads or direction, and masks need sites that are alike",
        }
    heads, learns_from = sum(site.heads for site in patient.sites), _LEARNS_FROM[patient.checkpoint.head.kind]
    text = f"learns gates on {heads} heads in all, at {len(patient.sites)} sites, from {learns_from}"
    return {"available": True, "text": text}


def _retrofit(patient: _Patient) -> Verdict:
    readable = _measure(patient)
    if not readable["available"]:
        return readable
    if len(patient.sites) < 2:
        return {"available": False, "text": "it has a single site, and residual attention needs two"}
    if len({site.heads for site in patient.sites}) > 1:
        return {"available": False, "text": "its sites differ in heads, and head i adds to head i"}
    if patient.checkpoint.residual is not None:
        return {"available": False, "text": "it has residual attention already"}
    heads, learns_from = patient.sites[0].heads, _LEARNS_FROM[patient.checkpoint.head.kind]
    text = f"hands scores on through {len(patient.sites)} sites of {heads} heads, trained on {learns_from}"
    return {"available": True, "text": text}


def _finetune(patient: _Patient) -> str:
    head = patient.checkpoint.head.kind
    start = "would start from a new head" if head == "none" else f"could start from its {HEAD_NAMES[head]} head"
    return f"fine-tuning {start}"


def _export(patient: _Patient) -> str:
    if len({id(site.module) for site in patient.sites}) < len(patient.sites):
        return "masks can be exported, but heads cannot be removed from layers that share their weights"
    if any(site.kv_heads < site.heads for site in patient.sites):
        return "masks can be exported; heads can be removed in whole key-value groups only"
    return "masks can be exported, and whole heads be removed"


def _bench(patient: _Patient) -> str:
    backends = " and ".join(patient.working) or "no backend"
    return f"the checkpoint can be timed up to {patient.checkpoint.usable_length} tokens, under {backends}"


COMMANDS: dict[str, Callable[[_Patient], Verdict]] = {
    "importance": _measure,
    "evaluate": _measure,
    "sparsify": _sparsify,
    "retrofit": _retrofit,
    "finetune": _later(_finetune),
    "export": _later(_export),
    "bench": _later(_bench),
}
"""One line a command that takes a checkpoint."""
