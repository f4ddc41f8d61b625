"""Fonts by language: found by fontconfig, or the ones that matplotlib brings; a missing glyph is an error, never a box.

Debian's packages `fonts-noto-core`, `fonts-noto-cjk` and `fonts-noto-color-emoji` cover the sixteen languages. Every further
font that is installed adds variety.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.core.errors import OpenAFMError
from openafm.core.libraries import needed
from openafm.data.drawing.base import Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.ImageFont import FreeTypeFont

Style: TypeAlias = Literal["sans", "serif", "display", "mono", "hand", "any"]

_FONTCONFIG_CODES = {"zh-Hans": "zh-cn", "zh-Hant": "zh-tw"}
# Regional variants of the Noto CJK fonts have the glyphs of all regions, each in its own form.
_REGIONS = {"zh-Hans": ("SC", "CN"), "zh-Hant": ("TC", "TW"), "ja": ("JP",), "ko": ("KR",)}
_REGION = re.compile(r" (JP|KR|SC|CN|TC|TW|HK)\b")
_LATIN = "AaÀàÉéÑñÖößØøÅåÆæÇçÊêÎîÔôÛû0123456789.,:;!?()%&@#/+-–—’“”€•"
# Characters that a font must have to serve a language.
_NEEDED = {
    "tr": _LATIN + "ĞğİıŞş",
    "vi": _LATIN + "ĂăĐđƠơƯưẠạẾếỆệỘộỰựỹ",
    "zh-Hans": "0123456789Aa,.年月日时间地点活动请进东门车站，。：（）",
    "zh-Hant": "0123456789Aa,.年月日時間地點活動請進東門車站，。：（）",
    "ja": "0123456789Aa,.年月日時間場所あいうえおアイウエオ駅、。：（）ー",
    "ko": "0123456789Aa,.년월일시간장소가나다라마바사행사문",
}
_PACKAGES = {"zh-Hans": "fonts-noto-cjk", "zh-Hant": "fonts-noto-cjk", "ja": "fonts-noto-cjk", "ko": "fonts-noto-cjk"}
_HAND = re.compile(
    r"hand|script|comic|caveat|dancing|pacifico|kalam|patrick|indie|shadows|chalk|brush|kai|klee|pen\b|yomogi|gaegu|écolier|ecolier",
    re.I,
)
_DISPLAY = re.compile(r"display|black|narrow|condensed|impact|lobster|bebas|poster|deco|stencil|heavy|gothic ?o", re.I)
_SERIF = re.compile(
    r"serif|times|roman|garamond|georgia|mincho|ming|song|batang|myungjo|myeongjo|stix|bodoni|tinos|caslon", re.I
)
_SANS = re.compile(r"sans", re.I)
_MONO = re.compile(r"mono|courier|typewriter|console|code", re.I)
_LIGHT, _REGULAR, _BOLD, _BLACK = 50, 80, 200, 205
# One family in this many is held out. The salt puts fonts of a usual installation on both sides in every language.
_HELD_OUT_PART, _SALT = 4, "cz"


class FontMissingError(OpenAFMError):
    """No installed font has the glyphs that are asked for."""


@dataclass(frozen=True, order=True)
class Font:
    """One face of a font file. Faces sort by family, then file."""

    family: str
    path: str
    index: int = 0
    style: str = field(default="Regular", compare=False)
    weight: int = field(default=_REGULAR, compare=False)
    is_italic: bool = field(default=False, compare=False)
    kind: Style = field(default="sans", compare=False)

    @property
    def name(self) -> str:
        """Family and style; free of the machine's paths."""
        return f"{self.family} {self.style}"

    @property
    def is_bold(self) -> bool:
        return self.weight >= _BOLD

    @property
    def smallest(self) -> int:
        """The smallest size in pixels that is legible in a photograph: display faces have hairlines."""
        return 28 if self.family.endswith("Display") else 0

    @property
    def split(self) -> Split:
        """The split of the family, by its checksum."""
        return split_of_family(self.family)

    def has(self, text: str) -> bool:
        """True if the font has a glyph for every character; spaces and line breaks do not count."""
        return not self.missing(text)

    def missing(self, text: str) -> str:
        """Return the characters of a text that the font lacks."""
        import numpy as np

        characters = "".join(sorted({char for char in text if not char.isspace()}))
        if not characters:
            return ""
        codes = np.array([ord(char) for char in characters])
        starts, ends = _character_ranges(self.path, self.index)
        at = starts.searchsorted(codes, side="right") - 1
        lacks = (at < 0) | (codes > ends[at])
        return "".join(char for char, is_missing in zip(characters, lacks.tolist(), strict=True) if is_missing)

    def at(self, size: int) -> FreeTypeFont:
        """Return the Pillow font of a size in pixels."""
        return _pillow_font(self.path, self.index, size)

    def __repr__(self) -> str:
        return f"Font({self.name!r})"


def fonts_for(language: str, *, style: Style = "any", split: Split | None = None) -> tuple[Font, ...]:
    """Return the installed fonts that have the letters of a language, sorted; faces thinner than light are left out.

    `display` fonts are heavy, narrow or decorative; where none is installed, they are the bold faces.

    Raises:
        FontMissingError: no font serves; the message names a package that does.
    """
    found = _serving(language)
    if style != "any":
        chosen = tuple(font for font in found if font.kind == style)
        found = chosen or (tuple(font for font in found if font.is_bold) if style == "display" else ())
    if split is not None:
        found = tuple(font for font in found if font.split == split)
    if not found:
        wanted = " ".join((split or "").split("_") + ([style] if style != "any" else []))
        package = _PACKAGES.get(language, "fonts-noto-core")
        if style == "hand":
            package = "fonts-comic-neue, or any font whose name has 'Hand' or 'Script'"
        raise FontMissingError(
            f"no installed{' ' + wanted if wanted else ''} font has the letters of language '{language}';"
            f" install one, for example: apt install {package}"
        )
    return found


def font_named(name: str) -> Font:
    """Return the installed font of a name, as drawing commands state it.

    Raises:
        FontMissingError: no installed font has it.
    """
    for font in installed_fonts():
        if font.name == name:
            return font
    raise FontMissingError(f"no installed font is named {name!r}")


def emoji_font() -> Font:
    """Return the font of color emoji.

    Raises:
        FontMissingError: it is not installed.
    """
    for font in installed_fonts():
        if font.family == "Noto Color Emoji":
            return font
    raise FontMissingError("no font of color emoji is installed; install it with: apt install fonts-noto-color-emoji")


def split_of_family(family: str) -> Split:
    """Return the split of a family. Regions and monospaced variants of one design share a side."""
    design = re.sub(r" Mono\b", "", _REGION.sub("", family))
    return "held_out" if zlib.crc32(f"{_SALT}{design}".encode()) % _HELD_OUT_PART == 0 else "train"


@functools.cache
def installed_fonts() -> tuple[Font, ...]:
    """Return all installed scalable fonts and the emoji font, sorted, without variable ones; of equal names the first."""
    found = sorted(_from_fontconfig() or _from_matplotlib(), reverse=True)
    return tuple(sorted({font.name: font for font in found}.values()))


@functools.cache
def _languages() -> dict[Font, frozenset[str]]:
    """The languages of the fonts as fontconfig states them; empty without fontconfig."""
    return dict(zip(_from_fontconfig(), _fontconfig_languages(), strict=True))


@functools.cache
def _serving(language: str) -> tuple[Font, ...]:
    code = _FONTCONFIG_CODES.get(language, language)
    stated = _languages()
    regions = _REGIONS.get(language)
    letters = _NEEDED.get(language, _LATIN)
    found = []
    for font in installed_fonts():
        if (stated and code not in stated[font]) or font.weight < _LIGHT:
            continue
        region = _REGION.search(font.family)
        if region and (regions is None or region[1] not in regions):
            continue
        if font.has(letters):
            found.append(font)
    return tuple(found)


@functools.cache
def _fontconfig_lines() -> tuple[tuple[str, ...], ...]:
    if shutil.which("fc-list") is None:
        return ()
    fields = "family[0]", "style[0]", "weight", "slant", "spacing", "variable", "color", "index", "lang", "file"
    pattern = "\t".join(f"%{{{name}}}" for name in fields) + "\n"
    listed = subprocess.run(["fc-list", "--format", pattern, ":"], capture_output=True, check=False, timeout=60)
    lines = (tuple(line.split("\t")) for line in listed.stdout.decode("utf-8", "replace").splitlines())
    return tuple(
        line
        for line in lines
        if len(line) == len(fields)
        and Path(line[-1]).suffix.lower() in (".ttf", ".otf", ".ttc", ".otc")
        and line[5] == "False"
        and int(line[7] or 0) <= 0xFFFF  # above: named instances of variable fonts
        and not re.search("math|last resort", line[0], re.I)  # the latter has boxes for every character
    )


@functools.cache
def _from_fontconfig() -> tuple[Font, ...]:
    return tuple(
        Font(
            family=family,
            path=path,
            index=int(index or 0),
            style=style or "Regular",
            weight=int(float(weight.strip("[]").split(" ")[0] or _REGULAR)) if weight else _REGULAR,
            is_italic=slant not in ("", "0"),
            kind=_kind(f"{family} {style}", spacing, path),
        )
        for family, style, weight, slant, spacing, _, _, index, _, path in _fontconfig_lines()
    )


def _fontconfig_languages() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(line[8].split("|")) for line in _fontconfig_lines())


def _from_matplotlib() -> tuple[Font, ...]:
    with needed("Drawing without fontconfig", "matplotlib", "images"):
        import matplotlib
    from PIL import ImageFont

    fonts = []
    for path in sorted(Path(matplotlib.get_data_path()).glob("fonts/ttf/*.ttf")):
        family, style = (name or "" for name in ImageFont.truetype(path, 16).getname())
        if re.search(r"^cm|STIX(?!General$)|Display$|Last Resort", family):
            continue  # parts of mathematical fonts; boxes for missing glyphs
        fonts.append(
            Font(
                family=family,
                path=str(path),
                style=style,
                weight=_BOLD if "Bold" in style else _REGULAR,
                is_italic=bool(re.search("Italic|Oblique", style)),
                kind=_kind(family, "", path.name),
            )
        )
    return tuple(fonts)


def _kind(name: str, spacing: str, path: str) -> Style:
    if spacing == "100" or _MONO.search(name):
        return "mono"
    if _DISPLAY.search(name):
        return "display"
    if _SERIF.search(_SANS.sub("", name).replace("Sans Serif", "")):
        return "serif"
    if not _SANS.search(name) and _HAND.search(f"{name} {Path(path).name}"):
        return "hand"
    return "sans"


@functools.lru_cache(maxsize=256)
def _pillow_font(path: str, index: int, size: int) -> FreeTypeFont:
    with needed("Drawing", "Pillow", "images"):
        from PIL import ImageFont
    return ImageFont.truetype(path, size, index=index)


@functools.cache
def _character_ranges(path: str, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last characters of the ranges for which a font has glyphs."""
    import numpy as np

    with needed("Drawing", "fontTools", "images"):
        from fontTools.ttLib import TTFont
    with TTFont(path, fontNumber=index, lazy=True) as file:
        table = file.reader["cmap"]
        for start in (int.from_bytes(table[at + 4 : at + 8]) for at in range(4, 4 + 8 * int.from_bytes(table[2:4]), 8)):
            if int.from_bytes(table[start : start + 2]) == 12:  # ranges of Unicode; a decoded table takes half a second
                size = int.from_bytes(table[start + 12 : start + 16])
                groups = np.frombuffer(table, ">u4", 3 * size, start + 16).reshape(-1, 3).astype(np.int64)
                return groups[:, 0], groups[:, 1]
        codes = np.array(sorted(file.getBestCmap() or {}), dtype=np.int64)
    return codes, codes
