"""PDF pages: the text layer gives transcription and boxes; locked, broken and hidden ones are dropped with a reason."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.data.drawing.pdf import PdfConfig, pdf_pages
from openafm.data.images.decoding import pixels
from openafm.data.images.shards import open_image_corpus
from openafm.data.web.documents import Dropped

LINES = ("First line of this page", "and a second one: 42 %", "Größe überall")


def made(lines=LINES, *, color="black", alpha=1.0, num_pages=1):
    """A PDF file with lines of text."""
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    data = io.BytesIO()
    with PdfPages(data) as file:
        for _ in range(num_pages):
            figure = Figure(figsize=(5, 3))
            for row, line in enumerate(lines):
                figure.text(0.1, 0.8 - 0.2 * row, line, fontsize=12, color=color, alpha=alpha)
            file.savefig(figure)
    return data.getvalue()


def pdf(objects, trailer=""):
    """A PDF file of objects written by hand."""
    body, offsets = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    count = len(objects) + 1
    end = f"xref\n0 {count}\n0000000000 65535 f \n{table}trailer\n<< /Size {count} /Root 1 0 R {trailer}>>\n"
    return body + f"{end}startxref\n{len(body)}\n%%EOF".encode()


def test_words_have_boxes_with_ink_in_the_order_of_the_page():
    ((document, images),) = pdf_pages(made(), PdfConfig(), source="a.pdf")
    assert document.transcription == "\n".join(LINES)
    assert [region.label for region in document.regions] == " ".join(LINES).split()
    ink = pixels(images[0]).min(axis=2) < 128
    rest = ink.copy()
    for region in document.regions:
        left, top, right, bottom = (round(value) for value in region.box)
        assert ink[top:bottom, left:right].any()
        rest[max(top - 1, 0) : bottom + 2, max(left - 1, 0) : right + 2] = False
    assert not rest.any()
    assert (document.source, document.kind) == ("a.pdf#page=1", "pdf_page")


def test_rotated_pages_have_boxes_with_ink():
    import pypdfium2

    file = pypdfium2.PdfDocument(made())
    file[0].set_rotation(90)
    data = io.BytesIO()
    file.save(data)
    ((document, images),) = pdf_pages(data.getvalue(), PdfConfig())
    array = pixels(images[0])
    assert images[0].height > images[0].width
    for region in document.regions:
        left, top, right, bottom = (round(value) for value in region.box)
        assert np.ptp(array[top:bottom, left:right]) > 100


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "pdf_broken"),
        (b"%PDF-1.7 nothing", "pdf_broken"),
        (b"\x89PNG\r\n", "pdf_broken"),
        (made()[:700], "pdf_broken"),
        (made(("one",)), "pdf_without_text"),
        (made(color="white"), "pdf_hidden_text"),
        (
            pdf(
                ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [] /Count 0 >>",
                 f"<< /Filter /Standard /V 1 /R 2 /P -4 /O <{'41' * 32}> /U <{'42' * 32}> >>"],
                f"/Encrypt 3 0 R /ID [<{'00' * 16}> <{'00' * 16}>] ",
            ),
            "pdf_password",
        ),
    ],
)  # fmt: skip
def test_files_that_are_not_usable_are_dropped(data, reason):
    (dropped,) = pdf_pages(data, PdfConfig(), source="x.pdf")
    assert isinstance(dropped, Dropped)
    assert (dropped.reason, dropped.url.partition("#")[0]) == (reason, "x.pdf")


def test_limits():
    assert [item.reason for item in pdf_pages(made(), PdfConfig(max_bytes=10))] == ["pdf_too_large"]
    found = list(pdf_pages(made(num_pages=3), PdfConfig(max_pages=1)))
    assert [isinstance(item, Dropped) for item in found] == [False, True, True]
    ((_, (image,)),) = pdf_pages(made(), PdfConfig(max_side=100))
    assert max(image.width, image.height) == 100
    with pytest.raises(ConfigError):
        PdfConfig(dpi=0)


def test_the_command_adds_pages(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pdf").write_bytes(made())
    (tmp_path / "in" / "b.pdf").write_bytes(b"broken")
    out = tmp_path / "out"
    assert run(["data", "draw", "--pdf", str(tmp_path / "in"), "-o", str(out), "--workers", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kinds"], found["dropped"]) == ({"pdf_page": 1}, {"pdf_broken": 1})
    (document,) = open_image_corpus(out).documents()
    assert document.source == "a.pdf#page=1"
    assert run(["data", "draw", "-o", str(out)]) == 2
    assert run(["data", "draw", "charts", "--pages", str(tmp_path / "in"), "-o", str(out)]) == 2
    assert "--pages needs the kind tables" in capsys.readouterr().err
