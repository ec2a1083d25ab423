"""Why there was no answer from the API server, in words."""

import os
import ssl

import aiohttp


def connection_fault(error: Exception) -> str:
    """`cannot connect: Connection refused`, `certificate verify failed: certificate has expired`,
    `no answer in time`, …"""
    match error:
        case TimeoutError():
            fault = "no answer in time"
        case aiohttp.ClientConnectorCertificateError():
            fault = connection_fault(error.certificate_error)
        case ssl.SSLCertVerificationError():
            fault = f"certificate verify failed: {error.verify_message}"
        case aiohttp.ClientConnectorError():
            fault = f"cannot connect: {connection_fault(error.os_error)}"
        case ssl.SSLError():
            fault = f"TLS failed: {error.reason or error}"
        case OSError(errno=int(code)) if code > 0:
            fault = os.strerror(code)
        case _:
            fault = str(error) or type(error).__name__
    return fault
