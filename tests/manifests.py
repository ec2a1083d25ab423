"""Files of any dialect, as tests look at them: what they become, or why they are refused."""

import json
from typing import Any

import pytest

from phalanx.core.errors import Invalid
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.native_form import native
from phalanx.manifest.bundle import Bundle, read
from phalanx.manifest.native_file import native_yaml
from phalanx.manifest.read_options import ReadOptions


def bundled(text: str, **settings: Any) -> Bundle:
    return read(text.encode(), ReadOptions(**settings))


def jobs_of(data: bytes, **settings: Any) -> list[JobSpec]:
    return read(data, ReadOptions(**settings)).jobs


def converted(text: str, **settings: Any) -> list[dict[str, Any]]:
    """Each job in the native form. Reading that gives the same job."""
    jobs = bundled(text, **settings).jobs
    assert read(native_yaml(jobs).encode(), ReadOptions(**settings)).jobs == jobs
    return [native(job) for job in jobs]


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


def only(text: str, **settings: Any) -> dict[str, Any]:
    [job] = converted(text, **settings)
    return job


def warnings(text: str, **settings: Any) -> list[str]:
    return [str(warning) for warning in bundled(text, **settings).warnings]


def refused(text: str, **settings: Any) -> dict[str, str]:
    """Every problem by its path."""
    with pytest.raises(Invalid) as error:
        bundled(text, **settings)
    return dict(error.value.problems)


def pod(
    name: str, *, labels: str = "{}", annotations: str = "{}", spec: str = "", **meta: str
) -> str:
    """A Pod that runs `train`; `spec` is more of its specification, in flow style."""
    more = "".join(f", {key}: {value}" for key, value in meta.items())
    return f"""
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {labels}, annotations: {annotations}{more}}}
spec: {{containers: [{{name: main, command: [train]}}]{spec and ", "}{spec}}}
"""
