"""What captions are asked for: levels, prompts, limits, regions."""

from __future__ import annotations

from dataclasses import dataclass, field

from openafm.core.config import Config
from openafm.data.captions.grounder import GrounderConfig
from openafm.data.captions.regions import DetectorConfig, KnownRegionsConfig
from openafm.data.images.documents import CAPTION_LEVELS

KEYWORDS = "keywords"
GROUNDED = "grounded"


@dataclass(frozen=True, kw_only=True)
class LevelConfig(Config):
    """A level of captions: the prompt and the limits of its answers.

    `{language}` in a prompt becomes the language of the captions. In the prompt of the level `grounded`, `{regions}` becomes
    the captions of the regions with their boxes and spatial facts.
    """

    name: str
    prompt: str
    max_tokens: int
    min_words: int
    max_words: int

    def __post_init__(self) -> None:
        self.require(bool(self.prompt.strip()), f"the level {self.name} needs a prompt")
        self.require(self.max_tokens > 0, f"max_tokens must be at least 1, got {self.max_tokens}")
        self.require(0 < self.min_words <= self.max_words, f"need 0 < min_words ({self.min_words}) <= {self.max_words}")


LEVELS = (
    LevelConfig(
        name=KEYWORDS,
        prompt="List 3 to 15 key words for what is visible in this image, in {language}, separated by commas. Write only the"
        " key words.",
        max_tokens=96,
        min_words=2,
        max_words=60,
    ),
    LevelConfig(
        name="short",
        prompt="Describe this image in one sentence, in {language}. Name only what is visible.",
        max_tokens=96,
        min_words=3,
        max_words=45,
    ),
    LevelConfig(
        name="paragraph",
        prompt="Describe this image in one detailed paragraph, in {language}: objects with their colors, number and places,"
        " people and what they do, the background, and any text exactly as written. Name only what is visible.",
        max_tokens=400,
        min_words=20,
        max_words=300,
    ),
    LevelConfig(
        name=GROUNDED,
        prompt="These objects were found in the image, each with its box [left,top,right,bottom] in thousandths of the width"
        " and height, its place and its size:\n{regions}\nDescribe the whole image in one paragraph, in {language}. Use"
        " these descriptions and their spatial relations. Write the box of each object exactly as above, right after its"
        " noun, and write no other coordinates.",
        max_tokens=600,
        min_words=10,
        max_words=400,
    ),
)
REGION = LevelConfig(
    name="region",
    prompt="This image shows one object, cut out of a larger image. Name and describe it with one noun phrase of at most 15"
    " words, in {language}. Write only the phrase.",
    max_tokens=64,
    min_words=1,
    max_words=30,
)


@dataclass(frozen=True, kw_only=True)
class RegionsConfig(Config):
    """Regions that are captioned alone for the level `grounded`: the largest ones that the detector finds."""

    detector: DetectorConfig = field(default_factory=KnownRegionsConfig)
    caption: LevelConfig = REGION
    min_share: float = 0.002
    max_regions: int = 12

    def __post_init__(self) -> None:
        self.require(0 <= self.min_share < 1, f"min_share is a share of the image from 0 to 1, got {self.min_share}")
        self.require(self.max_regions > 0, f"max_regions must be at least 1, got {self.max_regions}")


@dataclass(frozen=True, kw_only=True)
class CaptionConfig(Config):
    """What captions an image corpus gets. `seconds` bounds one answer.

    `language` is an English name, or `document` for the language of each document (English if it is none of the sixteen).
    Levels that a document already has, such as the exact captions of drawn images, are kept unless `replaces`. A `grounder`
    makes the level `grounded` of the paragraph, or else the sentence; without one it is fused from captions of regions.
    """

    levels: tuple[LevelConfig, ...] = LEVELS
    regions: RegionsConfig = field(default_factory=RegionsConfig)
    grounder: GrounderConfig | None = None
    language: str = "English"
    seconds: float = 120.0
    replaces: bool = False

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        self.require(bool(names), f"needs at least one level of {', '.join(each.name for each in LEVELS)}")
        self.require(len(set(names)) == len(names), f"each level has one prompt, got {', '.join(names)}")
        unknown = [name for name in names if name not in CAPTION_LEVELS[1:]]
        self.require(not unknown, f"levels are {', '.join(CAPTION_LEVELS[1:])}; got {', '.join(unknown)}")
        self.require(self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
