"""BPE training that starts from tokens; the trainer of the `tokenizers` library starts from bytes only.

The algorithm is the usual one (Sennrich et al. 2016): repeatedly merge the most frequent pair of neighbors. Ties go to the
pair with lower ids, as in the library, so both learn the same merges from bytes. Counts are updated incrementally: a merge
takes time in the words that contain its pair, and the total is bounded by the number of tokens in the distinct words.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# A pair of token ids in one integer, left above right: sorts like a tuple, smaller and faster.
_ID_BITS = 24
_PAIR_BITS = 2 * _ID_BITS
_ID_MASK = (1 << _ID_BITS) - 1
_PAIR_MASK = (1 << _PAIR_BITS) - 1


@dataclass(frozen=True, slots=True)
class Merge:
    """Neighbors `left` and `right` become token `product`; they occurred `count` times."""

    left: int
    right: int
    product: int
    count: int


def learn_merges(
    words: Mapping[tuple[int, ...], int],
    first_id: int,
    may_merge: Callable[[int, int, int], bool],
    min_frequency: int,
) -> Iterator[Merge]:
    """Yield merges in the order learned until no pair is frequent enough; products are numbered from `first_id`.

    Args:
        words: distinct words as token ids, with their counts.
        first_id: id of the first product.
        may_merge: called once for each pair with (left, right, product); a rejected pair is never merged.
        min_frequency: pairs that occur less often are not merged.
    """
    state = _State(words, min_frequency)
    product = first_id
    while (found := state.pop()) is not None:
        pair, count = found
        left, right = pair >> _ID_BITS, pair & _ID_MASK
        if may_merge(left, right, product):
            state.merge(left, right, product)
            yield Merge(left, right, product, count)
            product += 1


class _State:
    """Words, the counts of pairs, the words that contain each pair, and a heap of pairs by count.

    The count of a pair only decreases after the merge that created it. So heap entries are corrected when they reach the
    top, and the list of words of a pair may contain words that no longer hold it.
    """

    def __init__(self, words: Mapping[tuple[int, ...], int], min_frequency: int) -> None:
        self._min_frequency = min_frequency
        self._words: list[Sequence[int]] = []
        self._word_counts: list[int] = []
        self._pair_counts: dict[int, int] = defaultdict(int)
        self._places: dict[int, list[int]] = defaultdict(list)
        for word, count in words.items():
            if len(word) < 2:
                continue
            for left, right in itertools.pairwise(word):
                pair = left << _ID_BITS | right
                self._pair_counts[pair] += count
                self._places[pair].append(len(self._words))
            self._words.append(word)
            self._word_counts.append(count)
        self._heap: list[int] = []
        self._offer(self._pair_counts)

    def pop(self) -> tuple[int, int] | None:
        """Remove and return the most frequent pair and its count; None if no pair is frequent enough."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            pair, count = entry & _PAIR_MASK, -(entry >> _PAIR_BITS)
            current = self._pair_counts.get(pair, 0)
            if current == count:
                return pair, count
            if current >= self._min_frequency:
                heapq.heappush(self._heap, _entry(pair, current))
        return None

    def merge(self, left: int, right: int, product: int) -> None:
        """Replace every `left` `right` by `product`."""
        created: set[int] = set()
        pair = left << _ID_BITS | right
        for place in set(self._places[pair]):
            created |= self._merge_in_word(place, left, right, product)
        del self._pair_counts[pair], self._places[pair]
        self._offer(created)

    def _merge_in_word(self, place: int, left: int, right: int, product: int) -> set[int]:
        word, count = self._words[place], self._word_counts[place]
        pair_counts, created = self._pair_counts, set()
        merged: list[int] = []
        position, last = 0, len(word) - 1
        while position <= last:
            if position == last or word[position] != left or word[position + 1] != right:
                merged.append(word[position])
                position += 1
                continue
            if merged:
                pair_counts[merged[-1] << _ID_BITS | left] -= count
                pair = merged[-1] << _ID_BITS | product
                pair_counts[pair] += count
                created.add(pair)
            position += 2
            if position <= last:
                pair_counts[right << _ID_BITS | word[position]] -= count
                pair = product << _ID_BITS | word[position]
                pair_counts[pair] += count
                created.add(pair)
            merged.append(product)
        self._words[place] = merged
        for pair in created:
            self._places[pair].append(place)
        return created

    def _offer(self, pairs: Iterable[int]) -> None:
        for pair in pairs:
            if (count := self._pair_counts[pair]) >= self._min_frequency:
                heapq.heappush(self._heap, _entry(pair, count))


def _entry(pair: int, count: int) -> int:
    """Heap key: higher counts first, then lower pairs."""
    return (-count << _PAIR_BITS) + pair
