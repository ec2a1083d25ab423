"""Views of the servers of a cluster."""

import msgspec


class ServerView(msgspec.Struct, frozen=True):
    name: str
    url: str


class LeaderView(msgspec.Struct, frozen=True):
    name: str
    url: str
    term: int


class ServersView(msgspec.Struct, frozen=True):
    leader: LeaderView | None  #: null while no server leads
    standbys: tuple[ServerView, ...]
