"""Who a certificate or a login line names: subjects, mapping rules, JAAS, key stores."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from kalda.network.named_files import find_entry, server_sections
from kalda.security.certificates import Authority, Issued
from kalda.security.jaas import PLAIN_MODULE, BadJaas, parse_file, parse_jaas
from kalda.security.keystores import BadStore, der_of, pem_blocks, read_key_store, read_trust_store
from kalda.security.principals import (
    AuthenticationContext,
    BadCertificate,
    DefaultPrincipalBuilder,
    NoMatchingRule,
    PrincipalFailed,
    PrincipalMapping,
    identity_of,
)
from kalda.security.tls_settings import enabled_protocols, openssl_name

STORES = Path(__file__).parents[2] / "golden" / "keystores"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("a CA", NOW)


# -- distinguished names


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("CN=alice\\, b,OU=Users,O=X Y,L=Z,ST=Q,C=DE", "CN=alice\\, b,OU=Users,O=X Y,L=Z,ST=Q,C=DE"),
        ("UID=u1+CN=two,DC=kalda,DC=org", "CN=two+UID=u1,DC=kalda,DC=org"),
        ("CN=\\ blanks\\ ", "CN=\\ blanks\\ "),
        ("CN=Ünï=c", "CN=Ünï\\=c"),
        ("1.2.840.113549.1.9.1=a@b.c,CN=x", "1.2.840.113549.1.9.1=#16056140622e63,CN=x"),
    ],
)
def test_subjects_are_written_as_java_writes_them(authority: Authority, subject: str, text: str) -> None:
    assert identity_of(der_of(authority.issue(subject).certificate)).subject == text


def test_alternative_names_are_compared_one_by_one(authority: Authority) -> None:
    one = identity_of(der_of(authority.issue("CN=a", ["localhost", "127.0.0.1"]).certificate)).alternative_names
    more = identity_of(
        der_of(authority.issue("CN=a", ["127.0.0.1", "x.org", "localhost"]).certificate)
    ).alternative_names
    assert len(one) == 2
    assert one < more
    assert not identity_of(der_of(authority.issue("CN=a").certificate)).alternative_names


def test_what_is_no_certificate_is_refused(authority: Authority) -> None:
    der = der_of(authority.issued.certificate)
    for bad in (b"", b"\x30", b"\x30\x84\xff\xff\xff\xff", bytes(100), der[:40], der[:-200]):
        with pytest.raises(BadCertificate):
            identity_of(bad)


# -- mapping rules


@pytest.mark.parametrize(
    ("rules", "name", "found"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka1,OU=ServiceUsers,O=U", "kafka1"),
        ("RULE:^CN=(.*?),OU=SME,O=(.*?)$/$1@$2/L", "CN=Adm1,OU=SME,O=Corp", "adm1@corp"),
        ("RULE:^cn=(.*?)$/$1/U,RULE:^.*$/other/", "cn=me", "ME"),
        ("RULE:^x$/y/,DEFAULT", "CN=a", "CN=a"),
        ("RULE:^CN=([^,]+).*$/a\\/$1/", "CN=q,O=z", "a/q"),
        # What Kafka's SslPrincipalMapper has made of these:
        ("RULE:CN=(.*?)(,.*)?/$1/", "CN=q,O=z", "q,O=z"),
        ("RULE:.*/all/", "CN=q", "allall"),
        ("RULE:CN=(.*)/$11$2/", "CN=q", "q1$2"),
        ("RULE:CN=(?<own>.*)/${own}$11\\\\/", "CN=q", "qq1\\"),
        ("RULE:CN=(.*)/$1$0/", "CN=q", "qCN=q"),
    ],
)
def test_mapping_rules(rules: str, name: str, found: str) -> None:
    assert PrincipalMapping(rules).name_of(name) == found


def test_a_name_without_a_rule_has_no_principal() -> None:
    with pytest.raises(NoMatchingRule, match=r"No rules apply to CN=a, rules RULE:\^b\$/c/"):
        PrincipalMapping("RULE:^b$/c/").name_of("CN=a")


def test_a_name_has_no_principal_where_a_rule_has_no_such_group_or_there_is_no_rule() -> None:
    for rules in ("RULE:.*/$1/", "RULE:CN=(.*)/$x/", "RULE:CN=(.*)/${x}/", ""):
        with pytest.raises(PrincipalFailed, match="Failed to map name for 'CN=a'"):
            DefaultPrincipalBuilder(PrincipalMapping(rules)).build(
                AuthenticationContext("SSL", "L", "10.0.0.1", "CN=a")
            )


@pytest.mark.parametrize(
    "rules", ["deault", "RULE:CN=(.*?)/$1", "RULE:^(/x/", "DEFAULT,oops", "RULE:(?=CN).*/x/", "RULE:(.)\\1/x/"]
)
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="Invalid rule"):
        PrincipalMapping(rules)


def test_neither_a_rule_nor_a_name_takes_long_to_read() -> None:
    """Each took longer than exponentially many steps, or their cube."""
    mapping = PrincipalMapping("RULE:(.*a){25}/x/,RULE:(a|aa)+b/y/,DEFAULT")
    name = "CN=" + "a" * 5_000 + "!"
    assert mapping.name_of(name) == name
    with pytest.raises(ValueError, match="Invalid rule"):
        PrincipalMapping("RULE:a/b/" + " " * 5_000 + "x")


def test_default_principals() -> None:
    builder = DefaultPrincipalBuilder(PrincipalMapping("RULE:^CN=(.*?)$/$1/"))
    context = AuthenticationContext("SSL", "L", "10.0.0.1")
    assert builder.build(context) == "User:ANONYMOUS"
    assert builder.build(context._replace(subject="CN=alice")) == "User:alice"
    by_sasl = context._replace(subject="CN=alice", sasl_mechanism="PLAIN", authorization_id="bob")
    assert builder.build(by_sasl) == "User:bob"


# -- JAAS


def test_login_lines() -> None:
    line = f'{PLAIN_MODULE} required // a comment\n username="a\\"b" password=\'x;y\' user_alice="p" /* */ plain=w;'
    entry = parse_jaas(line, "PLAIN")
    assert entry.flag == "REQUIRED"
    assert entry.options == {"username": 'a"b', "password": "x;y", "user_alice": "p", "plain": "w"}
    assert "x;y" not in repr(entry)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "Login module not specified"),
        (f"{PLAIN_MODULE};", "control flag"),
        ("hush required;", "a login module, package.Class, is expected first"),
        ("= required;", "a login module, package.Class, is expected first"),
        (f"{PLAIN_MODULE} maybe a=b;", "control flag"),
        (f"{PLAIN_MODULE} required username=a", "not terminated by semi-colon"),
        (f"{PLAIN_MODULE} required username;", "Value not specified"),
        (f'{PLAIN_MODULE} required password="hush', "has no end"),
        (f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;", "contains 2 login modules, should be 1"),
        (
            "com.sun.security.auth.module.JndiLoginModule required user.provider.url=hush;",
            "JndiLoginModule is not allowed",
        ),
        ("com.sun.security.auth.module.LdapLoginModule required;", "LdapLoginModule is not allowed"),
        ("org.apache.kafka.common.security.scram.ScramLoginModule required;", "not the login module of PLAIN"),
    ],
)
def test_login_lines_that_are_refused(line: str, why: str) -> None:
    """CVE-2023-25194, CVE-2025-27818 and CVE-2025-27819: no line has a class of its author's choice loaded."""
    with pytest.raises(BadJaas, match=why) as raised:
        parse_jaas(line, "PLAIN")
    assert "hush" not in str(raised.value)


JAAS_FILE = """
/* of a broker */ KafkaServer {
  org.apache.kafka.common.security.plain.PlainLoginModule required user_a="hush}";
  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;
};
inner.KafkaServer { org.apache.kafka.common.security.plain.PlainLoginModule required user_b="hush"; };
Client { org.example.Other required; };
many.KafkaServer {
  org.apache.kafka.common.security.plain.PlainLoginModule required user_a="hush" username="a";
  org.apache.kafka.common.security.scram.ScramLoginModule required username="s";
  org.apache.kafka.common.security.plain.PlainLoginModule required user_a="no" user_b="hush" password="hush";
};
"""


def test_sections_of_a_jaas_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener's own section counts alone where there is one. A section that is not used may have any module."""
    file = tmp_path / "jaas file"
    file.write_text(JAAS_FILE)
    assert find_entry(server_sections("OUTER"), "PLAIN") is None
    monkeypatch.setenv("KAFKA_OPTS", f"-Xmx1G '-Djava.security.auth.login.config={file}' -Dother=1")
    outer, inner = (find_entry(server_sections(name), "PLAIN") for name in ("OUTER", "INNER"))
    assert outer is not None
    assert inner is not None
    assert (outer.options, inner.options) == ({"user_a": "hush}"}, {"user_b": "hush"})
    assert find_entry(server_sections("OUTER"), "GSSAPI") is not None
    assert find_entry(server_sections("INNER"), "GSSAPI") is None
    assert find_entry(("KafkaClient",), "PLAIN") is None
    many = find_entry(server_sections("MANY"), "PLAIN")
    assert many is not None
    assert many.options == {"user_a": "hush", "user_b": "hush", "username": "a", "password": "hush"}
    with pytest.raises(BadJaas, match=r"org.example.Other is not allowed"):
        find_entry(("Client",), "PLAIN")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("// Gr\u00f6\u00dfe\n\nKafkaServer a.B required;", "line 3: NAME { is expected"),
        ("KafkaServer { a.B required x=hush;", "line 1: the section KafkaServer has no end"),
        ("KafkaServer { a.B required;\n }", "line 2: the section KafkaServer is not terminated by semi-colon"),
        ("A { a.B required; };\nA { };", "line 2: the section A is there twice"),
        ("A {\n a.B required x=hush };", "line 2: JAAS config entry of a.B not terminated"),
        ("A {\n a.B required\n x };", "line 3: Value not specified"),
        ("A {\n\n a.B required x='hush };", "line 3: a quoted value has no end"),
    ],
)
def test_jaas_files_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadJaas, match=why) as raised:
        parse_file(text, "/jaas.conf")
    assert "hush" not in str(raised.value)


# -- stores of keys


@pytest.mark.parametrize(
    ("name", "password", "key_password"), [("key.jks", "changeit", "changeit2"), ("key.p12", "secret", None)]
)
@pytest.mark.parametrize("kind", ["JKS", "pkcs12"])
def test_key_stores_of_javas_keytool(name: str, password: str, key_password: str | None, kind: str) -> None:
    material = read_key_store(kind, (STORES / name).read_bytes(), password, key_password)
    subjects = [identity_of(der_of(each)).subject for each in material.certificates]
    assert subjects == ["CN=alice\\, b,OU=ServiceUsers,O=X Y,L=Z,ST=Q,C=DE", "CN=Kalda test CA"]
    assert material.key == read_key_store("JKS", (STORES / "key.p12").read_bytes(), "secret", None).key.strip() + (
        "\n" if material.key.endswith("\n") else ""
    )


@pytest.mark.parametrize("name", ["trust.jks", "trust.p12"])
def test_trust_stores_of_javas_keytool(name: str) -> None:
    (found,) = read_trust_store("JKS", (STORES / name).read_bytes(), "changeit")
    assert identity_of(der_of(found)).subject == "CN=Kalda test CA"


@pytest.mark.parametrize(("name", "password"), [("key.jks", "changeit"), ("key.p12", "secret")])
def test_the_certificate_of_a_key_is_trusted_where_its_store_is_a_trust_store(name: str, password: str) -> None:
    trusted = read_trust_store("JKS", (STORES / name).read_bytes(), password)
    assert identity_of(der_of(trusted[0])).subject.startswith("CN=alice")


def test_stores_that_cannot_be_read() -> None:
    jks, p12 = (STORES / "key.jks").read_bytes(), (STORES / "key.p12").read_bytes()
    cases = [
        ("JKS", jks, "wrong", None, "password is wrong"),
        ("JKS", jks, "changeit", "wrong", "password of the key is wrong"),
        ("JKS", jks[:50], None, None, "within an entry|no private key"),
        ("PKCS12", p12, "wrong", None, "password is wrong"),
        ("PKCS12", b"nothing", "x", None, "neither JKS nor PKCS #12"),
        ("JKS", (STORES / "trust.jks").read_bytes(), "changeit", None, "no private key"),
        ("PEM", b"\xff\xfe", None, None, "it is not text"),
        ("BKS", jks, None, None, "is not one of JKS, PKCS12, PEM"),
    ]
    for kind, content, password, key_password, why in cases:
        with pytest.raises(BadStore, match=why):
            read_key_store(kind, content, password, key_password)


def test_pem_with_blanks_instead_of_line_breaks(authority: Authority) -> None:
    issued: Issued = authority.issue("CN=a")
    keys, certificates = pem_blocks((issued.key + issued.certificate).replace("\n", " "))
    assert keys == (issued.key.strip(),)
    assert certificates == (issued.certificate.strip(),)


def test_a_pem_store_may_have_a_text_in_any_encoding(authority: Authority) -> None:
    issued: Issued = authority.issue("CN=a")
    content = "subject=CN=Größe\n".encode("latin-1") + issued.certificate.encode()
    assert read_trust_store("PEM", content, None) == (issued.certificate.strip(),)


def test_blocks_that_do_not_end_are_passed_over_at_once() -> None:
    begins = "-----BEGIN X-----" * 50_000 + "-----BEGIN CERTIFICATE-----"
    assert pem_blocks(begins + "-----END Y-----" * 20_000) == ((), ())
    assert len(pem_blocks(begins + "-----END CERTIFICATE-----" * 20_000)[1]) == 1


# -- names of TLS


def test_cipher_suites_of_java() -> None:
    assert openssl_name("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256") == "ECDHE-RSA-AES128-GCM-SHA256"
    assert openssl_name("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256") == "ECDHE-ECDSA-CHACHA20-POLY1305"
    assert openssl_name("TLS_RSA_WITH_AES_256_CBC_SHA") == "AES256-SHA"
    assert openssl_name("ECDHE-RSA-AES128-GCM-SHA256") == "ECDHE-RSA-AES128-GCM-SHA256"


def test_old_protocols_are_not_served() -> None:
    assert enabled_protocols(("TLSv1.3", "TLSv1.1", "TLSv1.2")) == ("TLSv1.2", "TLSv1.3")
    with pytest.raises(ValueError, match=r"older ones are broken"):
        enabled_protocols(("TLSv1.1",))
    with pytest.raises(ValueError, match="TLSv9"):
        enabled_protocols(("TLSv9",))
