"""Write the reader of pages of a bundle: the encoder of letters, and n-grams of English of the built-in texts.

    openafm train vision.letters --size nano --name letters-nano
    python -m openafm.recipes.shipping.reader --from letters-nano --out reader

The folder `reader` of a bundle is read by `openafm.reading.page.open_reader`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from openafm.bundle import open_bundle
from openafm.data.synthetic.announcements import draw_announcement
from openafm.data.synthetic.text_files.catalogs import catalog_of
from openafm.data.synthetic.text_files.posters import poster_texts
from openafm.reading.page import write_reader
from openafm.reading.spelling import Spelling

SEED = 20261129
LANGUAGE = "en"
NUM_ANNOUNCEMENTS, NUM_NAMES = 1_200, 4_000
_NAMES = ("{person} {surname}", "{street}", "{city}", "{company}")


def english_lines() -> Iterator[str]:
    """Yield lines of the texts of training: hand-written ones, what flyers say, and names. Each occurs once."""
    rng, frames = random.Random(SEED), poster_texts(LANGUAGE, "train").frames
    seen: set[str] = set()

    def lines() -> Iterator[str]:
        for labels in catalog_of(LANGUAGE, "train").label_sets:
            for label in labels.labels:
                yield from (frame.line.text for frame in label.texts if "{" not in frame.line.text)
        for _ in range(NUM_ANNOUNCEMENTS):
            drawn = draw_announcement(rng, LANGUAGE, "train")
            yield from (drawn.title, drawn.date, drawn.time, drawn.place, drawn.host, drawn.free, *drawn.lines)
            yield from drawn.labels.values()
        for _ in range(NUM_NAMES):
            for pattern in _NAMES:
                kinds = {kind: frames.draw_word(rng, kind) for kind in ("person", "surname", "street", "city", "company")}
                yield pattern.format(**kinds)

    for line in lines():
        if line not in seen:
            seen.add(line)
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="bundle", required=True, help="a bundle of vision.letters")
    parser.add_argument("--out", type=Path, required=True, help="folder of the reader")
    options = parser.parse_args()
    write_reader(open_bundle(options.bundle), options.out, Spelling.of(english_lines()))


if __name__ == "__main__":
    main()
