"""The form of names in certificates, by which users are found."""

import pytest

from broker.frontend.encryption import Encryption, Name, distinguished_name, peer_certificate

SUBJECT: Name = ((("countryName", "DE"),), (("organizationName", "shop, inc."),),
                 (("commonName", "app"),))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SUBJECT, "CN=app,O=shop\\, inc.,C=DE"),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("commonName", "#1"),),), "CN=\\#1"),
        (((("commonName", " x "),),), "CN=\\ x\\ "),
        (((("1.2.3.4", "a=b"),),), "1.2.3.4=a\\=b"),
        ((), ""),
    ],
)
def test_distinguished_names(name: Name, text: str) -> None:
    """RFC 4514: the last part first; separators are escaped."""
    assert distinguished_name(name) == text


def test_a_name_cannot_pretend_to_have_other_parts() -> None:
    """One value `app,O=shop` is not the two parts CN=app and O=shop."""
    assert distinguished_name(((("commonName", "app,O=shop"),),)) == "CN=app\\,O\\=shop"


def test_the_names_that_a_certificate_contains() -> None:
    found = peer_certificate(
        {
            "subject": SUBJECT,
            "issuer": ((("commonName", "our CA"),),),
            "subjectAltName": (("DNS", "a.shop"), ("email", "a@shop"), ("DNS", "b.shop")),
            "notBefore": "Jan  1 00:00:00 2026 GMT",
            "notAfter": "Jan  1 00:00:00 2027 GMT",
        }
    )
    assert found is not None
    assert (found.common_name, found.issuer) == ("app", "CN=our CA")
    assert [found.alternative("DNS", i) for i in range(3)] == ["a.shop", "b.shop", ""]
    assert found.alternative("email") == "a@shop"
    details = Encryption("TLSv1.3", "TLS_AES_256_GCM_SHA384", 256, found).details()
    assert details["peer_cert_subject"] == "CN=app,O=shop\\, inc.,C=DE"
    assert details["ssl_protocol"] == "tlsv1.3"


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_certificate_was_given_or_verified(nothing: dict[str, object] | None) -> None:
    assert peer_certificate(nothing) is None
    assert "certificate" not in Encryption("TLSv1.2", "X", 128, None).describe()
