"""Files with documents of many kinds, accepted or refused as a whole."""

import json

import pytest
import yaml
from tests.manifests import as_json, bundled, converted, pod, refused

from phalanx.core.errors import Invalid
from phalanx.manifest.bundle import read

NATIVE = """
---
name: plain
roles: {worker: {command: train}}
"""


def test_a_file_can_have_documents_of_many_kinds() -> None:
    text = NATIVE + pod("a") + "---\n{command: train, gang_size: 2}\n---\n{kind: Queue, name: q}"
    found = bundled(text)
    assert [job.name for job in found.jobs] == ["plain", None, "a"]
    assert [queue.name for queue in found.queues] == ["q"]


def test_json_is_read_as_well() -> None:
    document = yaml.safe_load(pod("a"))
    assert read(json.dumps(document).encode()) == bundled(pod("a"))


def test_a_single_list_is_read_as_many_documents() -> None:
    [first, second] = yaml.safe_load_all(pod("a") + pod("b"))
    assert read(json.dumps([first, second]).encode()) == bundled(pod("a") + pod("b"))


def test_two_jobs_of_one_name_are_refused() -> None:
    assert refused(NATIVE + NATIVE) == {
        "document 2: name": "is plain, as in document 1; choose another name"
    }
    assert refused(NATIVE + pod("plain")) == {
        "document 2: metadata.name": "is plain, as in document 1; choose another name"
    }


def test_one_wrong_document_refuses_the_whole_file() -> None:
    text = NATIVE + pod("a") + pod("b", spec="volumes: [{}]") + NATIVE.replace("command", "comand")
    assert set(refused(text)) == {
        "document 3: spec.volumes",
        "document 4: roles.worker.comand",
        "document 4: roles.worker.command",
    }


@pytest.mark.parametrize(
    "document",
    [
        "{apiVersion: apps/v1, kind: Deployment}",
        "{apiVersion: 7, kind: [Pod]}",
        "{apiVersion: kubeflow.org/v1beta1, kind: TFJob}",
    ],
)
def test_an_unknown_kind_is_refused_with_the_known_ones(document: str) -> None:
    [(path, message)] = refused(NATIVE + "---\n" + document).items()
    assert path == "document 2:"
    assert "kubeflow.org/v1 TFJob" in message


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        ("metadata: {annotations: {a: b}}", "apiVersion and kind are missing"),
        ("labels: {pod-group.scheduling.sigs.k8s.io/name: web}", "apiVersion and kind are missing"),
        ("{apiVersion: v1, spec: {}}", "kind is missing"),
        ("{kind: Pod}", "apiVersion is missing; a Pod has v1"),
        ("{kind: TFJob, spec: {}}", "apiVersion is missing; a TFJob has kubeflow.org/v1"),
    ],
)
def test_a_part_of_an_object_is_refused_with_what_is_missing(document: str, missing: str) -> None:
    [(path, message)] = refused(document).items()
    assert path == "document 1:"
    assert message.startswith(missing)


@pytest.mark.parametrize("value", ["7", "text", "[1]", "true"])
@pytest.mark.parametrize("key", ["metadata", "spec"])
def test_a_part_that_is_not_a_mapping_is_refused_with_its_path(key: str, value: str) -> None:
    for kind in ("v1 Pod", "batch/v1 Job", "batch.volcano.sh/v1alpha1 Job", "v1alpha1 LatticeJob"):
        version, name = kind.split()
        document = {"apiVersion": version, "kind": name, key: yaml.safe_load(value)}
        with pytest.raises(Invalid) as error:
            read(as_json(document))
        assert f"document 1: {key}" in dict(error.value.problems)


def test_an_image_of_the_native_form_can_be_ignored_too() -> None:
    text = "roles: {w: {image: i, command: train}}"
    [job] = converted(text, ignore_image=True)
    assert job == {"roles": {"w": {"command": "train"}}}
    [path] = refused("roles: {w: {image: i}}", ignore_image=True)
    assert path == "roles.w.command"
