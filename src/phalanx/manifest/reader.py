"""Request bodies, read: a file of jobs and queues, a batch of jobs, or plain documents.

The work is described by a message and its result is one, so that a process of its own can do it
(`reader_process`). Reading is a pure function of the message.
"""

from enum import StrEnum
from typing import Any

import msgspec

from phalanx.core.errors import Invalid, Problem
from phalanx.core.model import GangMembers, Queue
from phalanx.core.spec.job import JobSpec
from phalanx.manifest import documents
from phalanx.manifest.bundle import Bundle, bundle, check_tasks
from phalanx.manifest.problems import ManifestWarning
from phalanx.manifest.read_options import ReadOptions


class InputKind(StrEnum):
    FILE = "file"  #: jobs and queues, accepted or refused together
    BATCH = "batch"  #: a list of jobs, each accepted or refused on its own
    DOCUMENTS = "documents"  #: plain data


class ReadRequest(msgspec.Struct, frozen=True):
    kind: InputKind
    data: bytes
    limit_bytes: int
    options: ReadOptions = ReadOptions()


class ReadFile(msgspec.Struct, frozen=True, tag="file"):
    """A bundle whose jobs are still encoded: they are decoded a few at a time."""

    jobs: list[msgspec.Raw]
    queues: list[Queue]
    warnings: list[ManifestWarning]
    parts: dict[str, GangMembers]
    is_short: bool


class ReadRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    problems: list[Problem]


class ReadBatch(msgspec.Struct, frozen=True, tag="batch"):
    files: list[ReadFile | ReadRefusal]


class ReadDocuments(msgspec.Struct, frozen=True, tag="documents"):
    documents: list[Any]


ReadReply = ReadFile | ReadRefusal | ReadBatch | ReadDocuments

#: Numbers that know how they were written are sent as numbers.
encode = msgspec.msgpack.Encoder(enc_hook=float).encode
request_from = msgspec.msgpack.Decoder(ReadRequest).decode
reply_from: Any = msgspec.msgpack.Decoder(ReadReply).decode
spec_from = msgspec.msgpack.Decoder(JobSpec).decode


def read_file(request: ReadRequest) -> Bundle:
    """The jobs and queues of a file. Raises Invalid."""
    return bundle(_documents(request), request.options)


def read_batch(request: ReadRequest) -> list[Bundle | Invalid]:
    """Of each document in a list of jobs: its job, or why it is refused. Raises Invalid if the
    list cannot be read, or is too long."""
    contents = _documents(request)
    if contents == [[]]:
        return []
    files: list[Bundle | Invalid] = []
    for document in documents.entries(contents):
        try:
            files.append(bundle([document], request.options))
        except Invalid as error:
            files.append(error)
    check_tasks(sum(job.size for each in files if isinstance(each, Bundle) for job in each.jobs))
    return files


def read_documents(request: ReadRequest) -> list[object]:
    """The documents as plain data. Raises Invalid."""
    return _documents(request)


def reply_to(request: ReadRequest) -> ReadReply:
    """The result as a message."""
    try:
        if request.kind is InputKind.FILE:
            return _encoded(read_file(request))
        if request.kind is InputKind.BATCH:
            return ReadBatch([_encoded(each) for each in read_batch(request)])
        return ReadDocuments(read_documents(request))
    except Invalid as error:
        return ReadRefusal(list(error.problems))


def _documents(request: ReadRequest) -> list[object]:
    return documents.read(request.data, limit_bytes=request.limit_bytes)


def _encoded(file: Bundle | Invalid) -> ReadFile | ReadRefusal:
    if isinstance(file, Invalid):
        return ReadRefusal(list(file.problems))
    jobs = [msgspec.Raw(encode(job)) for job in file.jobs]
    return ReadFile(jobs, file.queues, file.warnings, file.parts, file.is_short)
