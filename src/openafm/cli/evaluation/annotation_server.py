"""Options that the servers of `openafm annotate` and `openafm grade` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.annotation.web import WebConfig

DatabaseOption = Annotated[
    str, typer.Option(help="PostgreSQL URL, such as postgresql://user@host/name; default: an SQLite file in the project.")
]
HostOption = Annotated[str, typer.Option(help="Address to listen on; other addresses than loopback ones need accounts.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")]
AccountsOption = Annotated[bool, typer.Option("--accounts", help="People sign in on a loopback address too.")]
PublicURLOption = Annotated[str, typer.Option(help="How browsers reach the server, if a proxy is before it.")]
ForwardedOption = Annotated[
    str,
    typer.Option(
        "--forwarded-allow-ips",
        help="Addresses or networks of proxies, separated by commas, whose X-Forwarded-For header is used. Default: none.",
    ),
]
CertificateOption = Annotated[Path | None, typer.Option(help="PEM file of the certificate chain.")]
KeyOption = Annotated[Path | None, typer.Option(help="PEM file of the private key.")]


def web_config(
    host: str,
    port: int,
    *,
    accounts: bool,
    public_url: str,
    forwarded_allow_ips: str,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> WebConfig:
    """Return the settings of a server, from its options.

    Raises:
        UsageError: a certificate without a key, or a key without a certificate.
        ServerSetupError: passwords would be sent without encryption, or a proxy is not an address.
    """
    from openafm.annotation.web import WebConfig

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together; pass both")
    config = WebConfig(
        host=host,
        port=port,
        public_url=public_url.rstrip("/"),
        needs_accounts=accounts,
        trusted_proxies=tuple(each.strip() for each in forwarded_allow_ips.split(",") if each.strip()),
        tls_certificate=str(tls_cert or ""),
        tls_key=str(tls_key or ""),
    )
    config.server()
    return config
