"""Formulas: random LaTeX in the subset that matplotlib's mathtext draws, with the LaTeX as truth."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.core.libraries import needed
from openafm.data.drawing.base import Drawn, DrawnImage, Generator, GeneratorConfig, Split
from openafm.data.drawing.canvas_check import check_ink
from openafm.data.drawing.choices import DrawingFailedError, color_of, png_of
from openafm.data.drawing.phrases import question
from openafm.data.images.documents import Question, Region
from openafm.data.synthetic.words import is_held_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LETTERS = "abcdefghkmnpqrstuvwxyzABCDEFGHKLMNPQRSTVWXYZ"
_GREEK = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "theta",
    "lambda",
    "mu",
    "pi",
    "rho",
    "sigma",
    "phi",
    "omega",
    "Delta",
)
_FUNCTIONS = (r"\sin", r"\cos", r"\tan", r"\log", r"\ln", r"\exp")
_RELATIONS = ("=", "=", "=", r"\leq", r"\geq", r"\neq", r"\approx", "<", ">", r"\equiv")
_OPERATORS = ("+", "-", "+", "-", r"\cdot", r"\times", r"\pm")
_TEMPLATES = (
    r"A = \frac{-B \pm \sqrt{B^{2} - 4 C D}}{2 C}",
    r"A^{2} + B^{2} = C^{2}",
    r"P(A \mid B) = \frac{P(B \mid A) P(A)}{P(B)}",
    r"\lim_{A \to \infty} \left(1 + \frac{1}{A}\right)^{A} = e",
    r"\sum_{A=1}^{B} A = \frac{B (B + 1)}{2}",
    r"\int_{A}^{B} C(D) \, dD = E(B) - E(A)",
    r"\frac{d}{dA} A^{B} = B A^{B - 1}",
    r"e^{i \theta} = \cos \theta + i \sin \theta",
    r"\nabla \cdot \mathbf{A} = \frac{\rho}{\varepsilon_{0}}",
    r"\frac{\partial A}{\partial t} = B \frac{\partial^{2} A}{\partial C^{2}}",
    r"A \in \mathbb{R}, \; B \notin \mathbb{Q}",
    r"\left| A + B \right| \leq \left| A \right| + \left| B \right|",
    r"\prod_{A=1}^{B} \left(1 - \frac{1}{A^{2}}\right)",
    r"\hat{A} = \arg\max_{B} P(C \mid B)",
    r"A_{B+1} = A_{B} - \frac{C(A_{B})}{C'(A_{B})}",
    r"\overline{A} = \frac{1}{B} \sum_{C=1}^{B} A_{C}",
)
_FONTS = {"dejavusans": "train", "cm": "train", "stix": "held_out", "dejavuserif": "train", "stixsans": "train"}
_COLORS = (
    ("#ffffff", "#000000"),
    ("#ffffff", "#1b2a49"),
    ("#fdf6e3", "#3b3024"),
    ("#1f2933", "#f5f7fa"),
    ("#0b3d2e", "#f4f9f4"),
)
_DPI = 100
_ATTEMPTS = 200
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")


@dataclass(frozen=True, kw_only=True)
class FormulasConfig(GeneratorConfig):
    """One to three formulas an image. `depth` limits how deep fractions, roots and scripts nest."""

    depth: int = 3

    def __post_init__(self) -> None:
        self.require(1 <= self.depth <= 6, f"depth must be from 1 to 6, got {self.depth}")

    @property
    def name(self) -> str:
        return "formulas"

    def build(self) -> Generator:
        return FormulaGenerator(self)


@dataclass(frozen=True)
class _Style:
    font: str
    size: int
    background: str
    ink: str


class FormulaGenerator(Generator):
    """Draws formulas."""

    def __init__(self, config: FormulasConfig) -> None:
        self._depth = config.depth

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        fonts = [font for font, side in _FONTS.items() if side == split]
        background, ink = rng.choice(_COLORS)
        style = _Style(rng.choice(fonts), rng.choice((20, 22, 24, 28, 32)), background, ink)
        formulas = [self._draw_formula(rng, split) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        pixels, boxes = _render(formulas, style)
        height, width, _ = pixels.shape
        regions = tuple(Region(label=text, box=box, kind="formula") for text, box in zip(formulas, boxes, strict=True))
        transcription = "\n\n".join(f"$${formula}$$" for formula in formulas)
        asked = Question(question=question(language, split, "formula"), answer=transcription, kind="formula.latex")
        return Drawn(
            kind="formula",
            language=language,
            images=(DrawnImage(data=png_of(pixels), width=width, height=height, regions=regions),),
            transcription=transcription,
            questions=(asked,),
            metadata={"font": style.font, "design": background},
            log={"style": [style.font, style.size, style.background, style.ink]},
        )

    def check(self, drawn: Drawn) -> Sequence[str]:
        """Draw the LaTeX of the transcription again; the pixels must be equal, and the boxes those of the ink."""
        from PIL import Image

        image, values = drawn.images[0], drawn.log["style"]
        assert isinstance(values, list)
        style = _Style(*values)
        pixels = np.asarray(Image.open(io.BytesIO(image.data)))
        formulas = [part.removeprefix("$$").removesuffix("$$") for part in drawn.transcription.split("\n\n")]
        errors = check_ink(np.any(pixels != np.array(color_of(style.background), np.uint8), axis=2), image.regions)
        errors += [f"{formula!r} is not balanced" for formula in formulas if not _is_balanced(formula)]
        if formulas != [region.label for region in image.regions]:
            errors.append("the labels of the regions are not the formulas")
        if errors:
            return errors
        again, _ = _render(formulas, style)
        if again.shape != pixels.shape or bool((again != pixels).any()):
            errors.append("the transcription draws another image")
        if any(asked.answer != drawn.transcription for asked in drawn.questions):
            errors.append("the answer is not the transcription")
        return errors

    def _draw_formula(self, rng: random.Random, split: Split) -> str:
        """Return a formula whose skeleton, without letters and digits, belongs to the split."""
        for _ in range(_ATTEMPTS):
            formula = _from_template(rng) if rng.random() < 0.3 else _equation(rng, self._depth)
            if is_held_out(skeleton(formula)) == (split == "held_out") and len(formula) <= 110:
                return formula
        raise DrawingFailedError(f"no formula of split '{split}' after {_ATTEMPTS} attempts")


def skeleton(formula: str) -> str:
    """Return a formula with every letter and number replaced, which the split depends on."""
    parts = [
        part if part.startswith("\\") else re.sub(r"[A-Za-z]", "x", part) for part in re.split(r"(\\[A-Za-z]+|\\.)", formula)
    ]
    greek = re.compile(r"\\(" + "|".join(_GREEK) + r")(?![A-Za-z])")
    return re.sub(r"\d+", "1", greek.sub("x", "".join(parts)))


def _from_template(rng: random.Random) -> str:
    """Return a known formula with other letters."""
    template = rng.choice(_TEMPLATES)
    letters = rng.sample([letter for letter in _LETTERS if letter not in "Pdet"], 5)  # fixed ones of templates
    names = dict(zip("ABCDE", letters, strict=True))
    parts = re.split(r"(\\[A-Za-z]+|P\()", template)
    return "".join(
        part if part.startswith("\\") or part == "P(" else re.sub(r"[A-E]", lambda match: names[match[0]], part)
        for part in parts
    )


def _equation(rng: random.Random, depth: int) -> str:
    left, right = _expression(rng, depth), _expression(rng, depth)
    return f"{left} {rng.choice(_RELATIONS)} {right}" if rng.random() < 0.8 else left


def _expression(rng: random.Random, depth: int) -> str:
    terms = [_term(rng, depth) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    text = terms[0]
    for term in terms[1:]:
        text += f" {rng.choice(_OPERATORS)} {term}"
    return text


def _term(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return _atom(rng)
    return rng.choice(_FORMS)(rng, depth - 1)


def _atom(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.45:
        return rng.choice(_LETTERS)
    if roll < 0.65:
        return "\\" + rng.choice(_GREEK)
    return str(rng.choice((rng.randint(1, 9), rng.randint(10, 999))))


def _letter(rng: random.Random) -> str:
    return rng.choice(_LETTERS)


def _limits(rng: random.Random, depth: int) -> str:
    sign = rng.choice((r"\sum", r"\prod", r"\int"))
    low = f"{_letter(rng)}={rng.randint(0, 9)}" if sign != r"\int" else str(rng.randint(0, 9))
    return (
        f"{sign}_{{{low}}}^{{{rng.choice((_letter(rng), chr(92) + 'infty', str(rng.randint(10, 99))))}}} {_term(rng, depth)}"
    )


_FORMS: tuple[Callable[[random.Random, int], str], ...] = (
    lambda rng, depth: _atom(rng),
    lambda rng, depth: _atom(rng),
    lambda rng, depth: f"{_letter(rng)}_{{{_atom(rng)}}}",
    lambda rng, depth: f"{_letter(rng)}^{{{_expression(rng, min(depth, 1))}}}",
    lambda rng, depth: f"\\frac{{{_expression(rng, depth)}}}{{{_expression(rng, depth)}}}",
    lambda rng, depth: f"\\sqrt{{{_expression(rng, depth)}}}",
    lambda rng, depth: f"\\sqrt[{rng.randint(3, 9)}]{{{_expression(rng, depth)}}}",
    lambda rng, depth: f"\\left({_expression(rng, depth)}\\right)",
    lambda rng, depth: f"{rng.choice(_FUNCTIONS)}\\left({_expression(rng, depth)}\\right)",
    lambda rng, depth: f"\\{rng.choice(('hat', 'vec', 'overline', 'tilde'))}{{{_letter(rng)}}}",
    _limits,
)


def _is_balanced(formula: str) -> bool:
    """True if braces match, and each `\\left` has its `\\right`."""
    depth = 0
    for char in re.sub(r"\\.", "", formula):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:
            return False
    commands = _COMMAND.findall(formula)
    return depth == 0 and commands.count("left") == commands.count("right")


def _render(formulas: Sequence[str], style: _Style) -> tuple[NDArray[np.uint8], list[tuple[float, float, float, float]]]:
    """Draw formulas below each other; return the pixels, and the box of the ink of each."""
    masks = [_mask(formula, style) for formula in formulas]
    margin, gap = 14, 16
    width = max(mask.shape[1] for mask in masks) + 2 * margin
    height = sum(mask.shape[0] for mask in masks) + gap * (len(masks) - 1) + 2 * margin
    coverage = np.zeros((height, width), np.float32)
    boxes, top = [], margin
    for mask in masks:
        rows, columns = mask.shape
        coverage[top : top + rows, margin : margin + columns] = mask
        boxes.append((float(margin), float(top), float(margin + columns), float(top + rows)))
        top += rows + gap
    ground, ink = (np.array(color_of(color), np.float32) for color in (style.background, style.ink))
    mixed = ground + (ink - ground) * coverage[..., None]
    return np.rint(mixed).astype(np.uint8), boxes


def _mask(formula: str, style: _Style) -> NDArray[np.float32]:
    """Return the coverage of a formula's ink from 0 to 1, cut to the ink."""
    with needed("formulas", "matplotlib", "images"):
        import matplotlib
        from matplotlib.font_manager import FontProperties
        from matplotlib.mathtext import MathTextParser
    settings: Any = {"mathtext.fontset": style.font, "text.hinting": "force_autohint"}
    with matplotlib.rc_context(settings):
        parser: Any = MathTextParser("agg")
        drawn = parser.parse(f"${formula}$", _DPI, FontProperties(size=style.size))
    mask = np.asarray(drawn.image, dtype=np.float32) / 255
    # Coverage below half a level of the least contrast leaves no pixel of another color.
    visible = mask > 1 / 128
    rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    if not len(rows):
        raise DrawingFailedError(f"mathtext draws nothing for {formula!r}")
    return np.where(visible, mask, 0)[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
