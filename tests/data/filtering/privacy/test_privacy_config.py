"""Masking, dropping and counting."""

import pytest

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.filtering import FilterConfig
from openafm.data.filtering.privacy import PrivacyConfig, counts_of
from openafm.data.web.documents import Dropped, Media, WebDocument

_TEXT = "Write to bob@example.com or ann@example.org. SSN 219-09-9999. ![x](a.png) The end."


def _document(**values: object) -> WebDocument:
    return WebDocument(**({"id": "1", "url": "https://example.org/", "text": _TEXT, "language": "en"} | values))


def test_findings_are_masked_and_counted_by_kind() -> None:
    found = PrivacyConfig().build().apply(_document(title="Mail to bob@example.com"))
    assert isinstance(found, WebDocument)
    assert found.text == "Write to [email] or [email]. SSN [national_id]. ![x](a.png) The end."
    assert found.title == "Mail to [email]"
    assert counts_of(found.metadata) == {"email": 3, "us_ssn": 1}


def test_media_keep_their_place_and_their_texts_are_masked() -> None:
    offset = _TEXT.index("![x]")
    media = (Media(url="a.png", alt="Mail bob@example.com", caption="x", offset=offset), Media(url="b", offset=12))
    found = PrivacyConfig().build().apply(_document(media=media))
    assert isinstance(found, WebDocument)
    assert found.text[found.media[0].offset :].startswith("![x]")
    assert found.media[0].alt == "Mail [email]"
    assert found.media[1].offset == len("Write to ")  # inside the masked address


def test_documents_without_findings_are_unchanged() -> None:
    document = _document(text="In 1998 the town had 12,345 inhabitants.")
    assert PrivacyConfig().build().apply(document) is document


def test_only_configured_kinds_are_masked_with_the_configured_text() -> None:
    found = PrivacyConfig(mask=("email",), replacements={"email": "name@domain"}).build().apply(_document())
    assert isinstance(found, WebDocument)
    assert found.text.startswith("Write to name@domain or name@domain. SSN 219-09-9999.")


@pytest.mark.parametrize("config", [PrivacyConfig(drop=("national_id",)), PrivacyConfig(max_findings=2)])
def test_documents_are_dropped_for_a_kind_or_many_findings(config: PrivacyConfig) -> None:
    found = config.build().apply(_document())
    assert isinstance(found, Dropped)
    assert found.reason == "private_data"
    assert found.detail == "2 email, 1 us_ssn"
    assert isinstance(config.build().apply(_document(text="Write to bob@example.com")), WebDocument)


def test_config_is_checked_and_survives_json() -> None:
    with pytest.raises(ConfigError, match=r"unknown kind passport; known: email"):
        PrivacyConfig(mask=("passport",))
    config = PrivacyConfig(drop=("card",), max_findings=3)
    assert from_dict(FilterConfig, {"type": "PrivacyConfig", **to_dict(config)}) == config
