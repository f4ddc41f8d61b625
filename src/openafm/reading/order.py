"""The reading order of lines: lines below each other are a block, and blocks follow each other from top to bottom.

Two blocks beside each other whose lines have the same heights are a table, which is read row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openafm.reading.lines import TextLine

_WIDEST_GAP = 1.1  # between two parts of a line, in sizes of the font
_SAME_HEIGHT = 0.5  # two parts of a line differ in height by less
_NEXT_LINE = 2.2  # the next line of a block is not farther below
_SAME_FONT = 1.5  # two lines of a block differ in their fonts by less, as a factor
_BESIDE = 0.5  # of the height of a row, in which lines of a table agree


@dataclass
class _Block:
    lines: list[TextLine] = field(default_factory=list)

    @property
    def top(self) -> float:
        return self.lines[0].y

    @property
    def left(self) -> float:
        return min(line.left for line in self.lines)


def in_reading_order(lines: Sequence[TextLine]) -> list[TextLine]:
    """Return the lines of a page as they are read; parts of one line are joined."""
    blocks: list[_Block] = []
    for line in _joined(lines):
        above = [block for block in blocks if _continues(block.lines[-1], line)]
        if above:
            min(above, key=lambda block: line.y - block.lines[-1].y).lines.append(line)
        else:
            blocks.append(_Block([line]))
    ordered: list[TextLine] = []
    rest = sorted(blocks, key=lambda block: (block.top, block.left))
    while rest:
        block = rest.pop(0)
        beside = next((other for other in rest if _is_table(block, other)), None)
        if beside is None:
            ordered += block.lines
            continue
        rest.remove(beside)
        for row in zip(block.lines, beside.lines, strict=True):
            ordered += sorted(row, key=lambda line: line.left)
    return ordered


def _joined(lines: Sequence[TextLine]) -> list[TextLine]:
    """Return lines from top to bottom, with parts of a line that are near each other as one."""
    done: list[TextLine] = []
    for line in sorted(lines, key=lambda line: line.left):
        before = next((other for other in done if _follows(other, line)), None)
        if before is None:
            done.append(line)
        else:
            done[done.index(before)] = TextLine(
                text=f"{before.text} {line.text}",
                left=before.left,
                right=line.right,
                y=(before.y + line.y) / 2,
                font_size=max(before.font_size, line.font_size),
                probability=(before.probability + line.probability) / 2,
            )
    return sorted(done, key=lambda line: line.y)


def _follows(before: TextLine, line: TextLine) -> bool:
    font_size = min(before.font_size, line.font_size)
    gap = line.left - before.right
    return 0 < gap < _WIDEST_GAP * font_size and abs(line.y - before.y) < _SAME_HEIGHT * font_size


def _continues(above: TextLine, line: TextLine) -> bool:
    small, large = sorted((above.font_size, line.font_size))
    overlap = min(above.right, line.right) - max(above.left, line.left)
    return 0 < line.y - above.y < _NEXT_LINE * large and large < _SAME_FONT * small and overlap > 0


def _is_table(block: _Block, other: _Block) -> bool:
    if len(block.lines) != len(other.lines):
        return False
    heights = zip(block.lines, other.lines, strict=True)
    return all(abs(one.y - two.y) < _BESIDE * min(one.font_size, two.font_size) for one, two in heights)
