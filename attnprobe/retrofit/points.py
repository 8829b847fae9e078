"""The trainings of a retrofit run: the retrofits, and the controls that each is held against. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from attnprobe.retrofit.options import DEEPEST_SUM, RetrofitOptions


@dataclass(frozen=True, kw_only=True)
class Training:
    """One row of ``retrofit.csv``.

    Attributes:
        kind: ``dense`` (nothing is trained), ``continued`` (no residual attention), ``retrofit`` or ``immediate``
            (gates of 1 from the first step).
        variant: of the residual attention; empty without.
        end: ``canonical`` or ``learned``; empty without.
        align: ``scores`` or ``none``.
        seed: of everything that is drawn.
    """

    kind: str
    variant: str = ""
    end: str = ""
    align: str = "none"
    seed: int = 0

    @property
    def residual(self) -> bool:
        """Whether it ends with residual attention."""
        return self.kind in ("retrofit", "immediate")

    @property
    def name(self) -> str:
        """A name that tells the trainings of a run apart, fit for files."""
        if self.kind == "dense":
            return "dense"
        parts = [self.variant, self.end if self.kind == "retrofit" else "", self.kind]
        parts += ["unaligned" if self.residual and self.align == "none" else "", f"s{self.seed}"]
        return "-".join(part for part in parts if part)


def plan_trainings(options: RetrofitOptions, seed: int, *, sites: int, can_align: bool) -> list[Training]:
    """All rows: the dense model, controls, retrofits.

    Args:
        options: of the run.
        seed: where the options name no seeds.
        sites: of the model.
        can_align: whether its heads can change places.
    """
    seeds = options.seed_numbers or (seed,)
    variants = options.variants or (("sum",) if sites <= DEEPEST_SUM else ("mean",))
    align = options.align if can_align else "none"
    plan = [Training(kind="dense", seed=seeds[0])]
    if "continued" in options.controls:
        plan += [Training(kind="continued", seed=s) for s in seeds]
    for variant in variants:
        for end in options.ends:
            plan += [Training(kind="retrofit", variant=variant, end=end, align=align, seed=s) for s in seeds]
            if "unaligned" in options.controls and align != "none":
                plan += [Training(kind="retrofit", variant=variant, end=end, seed=s) for s in seeds]
        if "immediate" in options.controls:
            plan += [Training(kind="immediate", variant=variant, end="canonical", align=align, seed=s) for s in seeds]
    return plan
