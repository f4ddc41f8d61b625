"""Merkle trees of append-only logs: hashes of RFC 6962, proofs and their checks as in RFC 9162, section 2.1."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


class ProofError(ValueError):
    """A proof does not lead to the root."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of an entry."""
    return hashlib.sha256(b"\0" + data).digest()


def root_hash(leaves: Sequence[bytes]) -> bytes:
    """Return the root of a tree, given the hashes of its leaves."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    split = _split(len(leaves))
    return _parent(root_hash(leaves[:split]), root_hash(leaves[split:]))


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes that lead from leaf `index` to the root, the lowest first."""
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*inclusion_proof(leaves[:split], index), root_hash(leaves[split:])]
    return [*inclusion_proof(leaves[split:], index - split), root_hash(leaves[:split])]


def consistency_proof(leaves: Sequence[bytes], size: int) -> list[bytes]:
    """Return the hashes which show that the tree begins with its first `size` leaves; none for 0 and for all leaves."""
    return _subproof(leaves, size, is_whole=True) if 0 < size < len(leaves) else []


def check_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Check that the leaf with this hash is number `index` of the tree of `size` leaves.

    Raises:
        ProofError: the proof does not show it.
    """
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} is outside the tree of {size} leaves")
    position, last, computed = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise ProofError(f"the proof for leaf {index} has too many hashes")
        if position & 1 or position == last:
            computed = _parent(sibling, computed)
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            computed = _parent(computed, sibling)
        position, last = position >> 1, last >> 1
    if last or computed != root:
        raise ProofError(f"the proof for leaf {index} does not lead to the root of the tree of {size} leaves")


def check_consistency(old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """Check that the tree of `size` leaves begins with the leaves of the one of `old_size`.

    Raises:
        ProofError: the proof does not show it.
    """
    wrong = ProofError(f"the proof does not show that the tree of {size} leaves contains the one of {old_size}")
    if old_size > size:
        raise ProofError(f"the tree has shrunk from {old_size} to {size} leaves")
    if old_size in (0, size):
        if proof or (old_size and old_root != root):
            raise wrong
        return
    hashes = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not hashes:
        raise wrong
    position, last = old_size - 1, size - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    computed_old = computed = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            raise wrong
        if position & 1 or position == last:
            computed_old, computed = _parent(sibling, computed_old), _parent(sibling, computed)
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            computed = _parent(computed, sibling)
        position, last = position >> 1, last >> 1
    if last or (computed_old, computed) != (old_root, root):
        raise wrong


def _parent(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _split(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _subproof(leaves: Sequence[bytes], size: int, *, is_whole: bool) -> list[bytes]:
    if size == len(leaves):
        return [] if is_whole else [root_hash(leaves)]
    split = _split(len(leaves))
    if size <= split:
        return [*_subproof(leaves[:split], size, is_whole=is_whole), root_hash(leaves[split:])]
    return [*_subproof(leaves[split:], size - split, is_whole=False), root_hash(leaves[:split])]
