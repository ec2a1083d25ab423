"""The ports of its node that a pod listens on."""

from itertools import chain
from typing import NamedTuple

from phalanx.kube.model.pod_request import is_sidecar
from phalanx.kube.objects.pod import KubePod

#: All addresses of a node.
ANY_ADDRESS = "0.0.0.0"  # noqa: S104


class HostPort(NamedTuple):
    address: str
    protocol: str
    port: int

    def collides_with(self, address: str) -> bool:
        """Whether the same port is taken at this address."""
        return ANY_ADDRESS in (self.address, address) or self.address == address


def host_ports(pod: KubePod) -> tuple[HostPort, ...]:
    spec = pod.spec
    if not spec.init_containers and not any(each.ports for each in spec.containers):
        return ()
    containers = chain(spec.containers, filter(is_sidecar, spec.init_containers))
    ports = {
        HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port > 0
    }
    return tuple(sorted(ports))
