"""The fixture that holds a family's model under control."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from attnprobe.attention import attach
from tests.attention.attached import Attached, without_padding
from tests.helpers.families import run


@pytest.fixture(scope="module")
def attached(request: pytest.FixtureRequest) -> Iterator[Attached]:
    """The family and backend that the parameter names."""
    family, backend = request.param
    model = family.model()
    model.set_attn_implementation("eager")
    inputs = family.inputs()
    own = without_padding(run(model, inputs), inputs)
    with attach(model, backend=backend) as session:
        yield Attached(family=family, model=model, session=session, inputs=inputs, own=own)
