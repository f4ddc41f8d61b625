"""Key configurations of Oblivious HTTP (RFC 9458, section 3), and the HPKE keys of a node (RFC 9180)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.serving.private.errors import MessageError
from openafm.serving.private.oblivious_http.varints import Reader

if TYPE_CHECKING:
    from pyhpke import CipherSuite

X25519 = 0x0020
"""The only key encapsulation that is supported: DHKEM(X25519, HKDF-SHA256)."""

HKDF_SHA256 = 0x0001
AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305 = 0x0001, 0x0002, 0x0003
_KEY_BYTES = 32


@dataclass(frozen=True)
class Algorithms:
    """The key derivation and the cipher of a message."""

    kdf: int = HKDF_SHA256
    aead: int = AES_128_GCM

    @property
    def is_supported(self) -> bool:
        return self.kdf == HKDF_SHA256 and self.aead in (AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305)

    @property
    def key_bytes(self) -> int:
        return 16 if self.aead == AES_128_GCM else 32

    def suite(self) -> CipherSuite:
        """Return the HPKE suite of these algorithms."""
        from pyhpke import AEADId, CipherSuite, KDFId, KEMId

        return CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId(self.kdf), AEADId(self.aead))


@dataclass(frozen=True, kw_only=True)
class KeyConfig:
    """A public key and the algorithms that its node supports, in order of preference."""

    key_id: int
    public_key: bytes
    algorithms: tuple[Algorithms, ...] = (Algorithms(), Algorithms(aead=CHACHA20_POLY1305))

    def encode(self) -> bytes:
        """Return the bytes of the configuration, as in `application/ohttp-keys` after the length."""
        pairs = b"".join(pair.kdf.to_bytes(2, "big") + pair.aead.to_bytes(2, "big") for pair in self.algorithms)
        head = bytes((self.key_id,)) + X25519.to_bytes(2, "big") + self.public_key
        return head + len(pairs).to_bytes(2, "big") + pairs

    def chosen(self) -> Algorithms:
        """Return the first supported pair of algorithms.

        Raises:
            MessageError: none is supported.
        """
        for pair in self.algorithms:
            if pair.is_supported:
                return pair
        raise MessageError(
            "the key configuration has no supported algorithms; expected HKDF-SHA256 with AES-GCM or ChaCha20"
        )


def decode_key_config(data: bytes) -> KeyConfig:
    """Return a key configuration.

    Raises:
        MessageError: it is damaged, or of another kind of key than X25519.
    """
    reader = Reader(data)
    key_id, kem = reader.integer(1), reader.integer(2)
    if kem != X25519:
        raise MessageError(f"the key encapsulation 0x{kem:04x} is not supported; expected 0x{X25519:04x} (X25519)")
    public_key = reader.take(_KEY_BYTES)
    pairs = Reader(reader.take(reader.integer(2)))
    algorithms = []
    while not pairs.is_at_end:
        algorithms.append(Algorithms(pairs.integer(2), pairs.integer(2)))
    if not algorithms or not reader.is_at_end:
        raise MessageError("the key configuration has no algorithms, or ends late")
    return KeyConfig(key_id=key_id, public_key=public_key, algorithms=tuple(algorithms))


def encode_key_configs(configs: list[KeyConfig]) -> bytes:
    """Return the body of `application/ohttp-keys`."""
    return b"".join(len(data).to_bytes(2, "big") + data for data in (config.encode() for config in configs))


class NodeKey:
    """A private key of a node, in memory only."""

    def __init__(self, key_id: int, private_key: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = X25519PrivateKey.generate() if private_key is None else X25519PrivateKey.from_private_bytes(private_key)
        self.config = KeyConfig(key_id=key_id, public_key=key.public_key().public_bytes_raw())
        self.private_key = key.private_bytes_raw()
