"""Connected components of a graph whose edges come in parts; the memory of a part does not depend on the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def join(links: Numbers, left: Numbers, right: Numbers) -> None:
    """Add the edges `left[i]`-`right[i]` to a forest.

    `links` has the parent of each node; a root is its own parent and the smallest node of its component. Components and
    roots do not depend on the order of the edges.
    """
    while len(left):
        roots = find_roots(links, np.concatenate([left, right]))
        left, right = roots[: len(left)], roots[len(left) :]
        differ = left != right
        left, right = left[differ], right[differ]
        np.minimum.at(links, np.maximum(left, right), np.minimum(left, right))


def find_roots(links: Numbers, nodes: Numbers) -> Numbers:
    """Return the root of each node and link the nodes to their roots.

    A step links every node to its grandparent, so that a chain of these nodes takes logarithmically many steps.
    """
    while True:
        parents = links[nodes]
        grandparents = links[parents]
        if np.array_equal(parents, grandparents):
            return parents
        links[nodes] = grandparents
