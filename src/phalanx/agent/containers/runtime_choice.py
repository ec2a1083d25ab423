"""The container runtimes that an operator can choose from."""

import enum


class RuntimeChoice(enum.StrEnum):
    AUTO = "auto"
    PODMAN = "podman"
    DOCKER = "docker"
    NONE = "none"
