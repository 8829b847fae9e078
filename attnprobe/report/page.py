"""A report page as data, and its rendering to one HTML file that needs nothing else.

A report is a `Page` of `Section`s of blocks; a block is a `Chart` (views behind a selector), a `Table`, a `Facts` list,
a grid of `Maps` or a `Gallery` of grids behind a selector. Which command the page is for is none of this module's
business.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from attnprobe.report.numbers import typeset
from attnprobe.runs import replacing

LIMIT = 6_000_000
"""Bytes that a page should not exceed."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first column heads its row, the others are numbers unless named in `text_columns`.

    `tints` gives cells a background by row and column: -1 to 1, diverging.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset()
    tints: Mapping[tuple[int, int], float] = field(default_factory=dict)
    kind: Literal["table"] = "table"


@dataclass(frozen=True, kw_only=True)
class Swatch:
    """One series of a figure's key: a button that hides and shows the traces whose `legendgroup` is `series`.

    `dash` is an SVG dash array, empty for a solid line; `mark` an SVG path around (0, 0), hollow or filled.
    """

    series: str
    label: str
    color: str
    dash: str
    mark: str
    hollow: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Plotly's traces and layout; colours are CSS variables, `var(--name)`, which the page resolves for its theme.

    `heading` stands above the figure, with a `key` of marks ("dot", "ring", "line", "dashes", "band", "bar", "whisker")
    and what they mean, and `swatches` of its series.
    """

    data: Sequence[Mapping[str, Json]]
    layout: Mapping[str, Json]
    height: int
    heading: str = ""
    key: Sequence[tuple[str, str]] = ()
    swatches: Sequence[Swatch] = ()


@dataclass(frozen=True, kw_only=True)
class View:
    """One choice of a chart's selector; `alt` says in words what its figure shows."""

    label: str
    figure: Figure
    alt: str
    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with a selector of views; `open_table` shows the views' tables without a click."""

    key: str
    title: str
    text: str
    views: Sequence[View]
    selector: str = "Show"
    open_table: bool = False
    kind: Literal["chart"] = "chart"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and values, in order."""

    title: str
    items: Sequence[tuple[str, str]]
    code: bool = False
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One map: its image as a data URI, and what is known of its head, in the order of `Maps.facts`."""

    row: int
    column: int
    label: str
    image: str
    facts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Maps:
    """A grid of maps, rows by columns, each of which opens enlarged."""

    key: str
    text: str
    rows: Sequence[str]
    columns: Sequence[str]
    facts: Sequence[str]
    tiles: Sequence[Tile]
    size: int
    peak: str
    kind: Literal["maps"] = "maps"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice of a gallery: for each of its tiles, row by row, an image's number and whole per cents by fact."""

    label: str
    text: str
    tiles: Sequence[int]
    facts: Sequence[Sequence[int | None]]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Grids of small images behind a selector, one grid shown at a time; each image opens enlarged.

    Images are square, `size` pixels wide, drawn without smoothing at `scale` screen pixels a pixel; `tokens` name
    their rows and columns.
    """

    key: str
    text: str
    selector: str
    rows: Sequence[str]
    columns: Sequence[str]
    facts: Sequence[str]
    choices: Sequence[Choice]
    images: Sequence[str]
    tokens: Sequence[str]
    size: int
    scale: int
    kind: Literal["gallery"] = "gallery"


Block = Chart | Table | Facts | Maps | Gallery


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with blocks below it."""

    key: str
    title: str
    text: Sequence[str]
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A report: `finding` is its first line, `notes` what follows, `alerts` what must not be overlooked."""

    title: str
    subtitle: str
    finding: str
    notes: Sequence[str]
    alerts: Sequence[str]
    sections: Sequence[Section]


def render(page: Page) -> str:
    """The page as one HTML document: plotly.js, style, script and data inlined, no network by its own policy."""
    environment = Environment(
        loader=PackageLoader("attnprobe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["typeset"] = typeset
    scripts = [get_plotlyjs(), _source(environment, "report.js")]
    blocks = [block for section in page.sections for block in section.blocks]
    charts = [block for block in blocks if isinstance(block, Chart)]
    galleries = [block for block in blocks if isinstance(block, Gallery)]
    return environment.get_template("page.html").render(
        page=page,
        data={chart.key: [_plotly(view.figure) for view in chart.views] for chart in charts},
        galleries={gallery.key: _pictures(gallery) for gallery in galleries},
        style=Markup(_source(environment, "report.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=[_policy_hash(script) for script in scripts],
    )


def write_page(path: Path, page: Page) -> Path:
    """Render into `path`: under a temporary name beside it first, then renamed, so that no half page is ever there.

    Raises: RunFolderError when the folder cannot be written.
    """
    document = render(page)
    if len(document.encode()) > LIMIT:
        document = render(without_closed_tables(page))
    with replacing(path) as temporary:
        temporary.write_text(document, encoding="utf-8", newline="\n")
    return path


def without_closed_tables(page: Page) -> Page:
    """The page without the tables that charts only show on demand, and an alert that says so."""

    def slim(block: Block) -> Block:
        if not isinstance(block, Chart) or block.open_table:
            return block
        return replace(block, views=[replace(view, table=None) for view in block.views])

    alert = "To keep this file small, the tables under its charts are left out; the CSV files hold them."
    sections = [replace(section, blocks=[slim(block) for block in section.blocks]) for section in page.sections]
    return replace(page, sections=sections, alerts=[*page.alerts, alert])


def _plotly(figure: Figure) -> Json:
    return {"data": list(figure.data), "layout": {**figure.layout, "height": figure.height}}


def _pictures(gallery: Gallery) -> Json:
    """What the page's script needs of a gallery: the choices, and the images that they share."""
    choices: list[Json] = [
        {"text": choice.text, "tiles": choice.tiles, "facts": choice.facts} for choice in gallery.choices
    ]
    return {"images": gallery.images, "tokens": gallery.tokens, "choices": choices}


def _source(environment: Environment, name: str) -> str:
    """A template file as it stands: style and script are inlined, not interpreted."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _policy_hash(script: str) -> str:
    """The hash by which the page's policy lets exactly this script run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
