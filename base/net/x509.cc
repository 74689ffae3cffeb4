#include "base/net/x509.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/sha256.h"
#include "third_party/openssl/pem.h"

namespace espalier {
namespace {

using openssl::Certificate;
using openssl::Freer;
using openssl::PrivateKey;

using Request = std::unique_ptr<X509_REQ, Freer<X509_REQ, X509_REQ_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES, GENERAL_NAMES_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION, X509_EXTENSION_free>>;
using Number = std::unique_ptr<BIGNUM, Freer<BIGNUM, BN_free>>;

struct FreeExtensions {
  void operator()(STACK_OF(X509_EXTENSION) * it) const {
    sk_X509_EXTENSION_pop_free(it, X509_EXTENSION_free);
  }
};
using Extensions = std::unique_ptr<STACK_OF(X509_EXTENSION), FreeExtensions>;

constexpr size_t kLongestHost = 253;
constexpr int kMostHosts = 64;
constexpr size_t kLongestRequest = 64 << 10;
constexpr int kSerialBits = 127;  // positive, below the 20 bytes of RFC 5280

absl::Status CannotByOpenSsl(const char* what) {
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", what));
}

absl::Status WrongRequest(absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("the certificate request ", what));
}

template <typename Write>
absl::StatusOr<std::string> Written(const Write& write) {
  const openssl::Source out(BIO_new(BIO_s_mem()));
  if (out == nullptr || write(out.get()) != 1) return CannotByOpenSsl("write PEM");
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(bytes));
}

template <typename T>
std::string Der(const T* it, int (*encode)(const T*, unsigned char**)) {
  unsigned char* bytes = nullptr;
  const int length = encode(it, &bytes);
  if (length <= 0) return "";
  std::string out(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  OPENSSL_free(bytes);
  return out;
}

bool IsHostName(absl::string_view host) {
  if (host.empty() || host.size() > kLongestHost) return false;
  for (const char c : host) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-' && c != '_') return false;
  }
  return true;
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

absl::StatusOr<Names> NamesOf(const std::vector<std::string>& hosts) {
  Names names(sk_GENERAL_NAME_new_null());
  for (const std::string& host : hosts) {
    GENERAL_NAME* const name = GENERAL_NAME_new();
    if (name == nullptr || sk_GENERAL_NAME_push(names.get(), name) <= 0)
      return CannotByOpenSsl("add hosts");
    if (IsAddress(host)) {
      ASN1_OCTET_STRING* const address = a2i_IPADDRESS(host.c_str());
      if (address == nullptr) return CannotByOpenSsl("read an address");
      GENERAL_NAME_set0_value(name, GEN_IPADD, address);
      continue;
    }
    if (!IsHostName(host)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", host, "' is neither a host name nor an address"));
    }
    ASN1_IA5STRING* const text = ASN1_IA5STRING_new();
    if (text == nullptr || ASN1_STRING_set(text, host.data(), static_cast<int>(host.size())) != 1) {
      return CannotByOpenSsl("add a host");
    }
    GENERAL_NAME_set0_value(name, GEN_DNS, text);
  }
  return names;
}

// Addresses and host names; others are left out.
std::vector<std::string> HostsOf(const GENERAL_NAMES* names) {
  std::vector<std::string> hosts;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    int kind = 0;
    const auto* value = static_cast<const ASN1_STRING*>(
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind));
    const unsigned char* bytes = ASN1_STRING_get0_data(value);
    const int length = ASN1_STRING_length(value);
    if (kind == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
    } else if (kind == GEN_IPADD && (length == 4 || length == 16)) {
      char text[INET6_ADDRSTRLEN] = {};
      inet_ntop(length == 4 ? AF_INET : AF_INET6, bytes, text, sizeof text);
      hosts.emplace_back(text);
    }
  }
  return hosts;
}

absl::Status AddToName(X509_NAME* name, const char* kind, const std::string& text) {
  if (text.empty()) return absl::OkStatus();
  const int done = X509_NAME_add_entry_by_txt(name, kind, MBSTRING_UTF8,
                                              reinterpret_cast<const unsigned char*>(text.data()),
                                              static_cast<int>(text.size()), -1, 0);
  return done == 1 ? absl::OkStatus() : CannotByOpenSsl("write a subject");
}

std::string InName(const X509_NAME* name, int kind) {
  const int at = X509_NAME_get_index_by_NID(name, kind, -1);
  if (at < 0) return "";
  const ASN1_STRING* const text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at));
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

absl::Status AddExtension(X509* to, X509V3_CTX* context, int kind, const char* value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, context, kind, value));
  if (extension == nullptr || X509_add_ext(to, extension.get(), -1) != 1) {
    return CannotByOpenSsl("add an extension");
  }
  return absl::OkStatus();
}

// `issuer`: the certificate that signs; null: this one itself.
absl::StatusOr<std::string> Sign(const CertificateFields& fields, EVP_PKEY* public_key,
                                 X509* issuer, EVP_PKEY* signer) {
  const Certificate made(X509_new());
  X509* const x = made.get();
  const Number serial(BN_new());
  if (x == nullptr || serial == nullptr ||
      BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(x)) == nullptr ||
      X509_set_version(x, X509_VERSION_3) != 1 || X509_set_pubkey(x, public_key) != 1 ||
      ASN1_TIME_set(X509_getm_notBefore(x), absl::ToTimeT(fields.not_before)) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(x), absl::ToTimeT(fields.not_after)) == nullptr) {
    return CannotByOpenSsl("make a certificate");
  }
  X509_NAME* const subject = X509_get_subject_name(x);
  for (const auto& [kind, text] :
       {std::pair("O", fields.organization), std::pair("OU", fields.organizational_unit),
        std::pair("CN", fields.common_name)}) {
    if (absl::Status s = AddToName(subject, kind, text); !s.ok()) return s;
  }
  X509_set_issuer_name(x, issuer == nullptr ? subject : X509_get_subject_name(issuer));
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer == nullptr ? x : issuer, x, nullptr, nullptr, 0);
  const std::pair<int, const char*> authority[] = {
      {NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
      {NID_key_usage, "critical,keyCertSign,cRLSign"}};
  const std::pair<int, const char*> holder[] = {{NID_basic_constraints, "critical,CA:FALSE"},
                                                {NID_key_usage, "critical,digitalSignature"},
                                                {NID_ext_key_usage, "serverAuth,clientAuth"}};
  std::vector<std::pair<int, const char*>> extensions;
  if (fields.authority) {
    extensions.assign(std::begin(authority), std::end(authority));
  } else {
    extensions.assign(std::begin(holder), std::end(holder));
  }
  extensions.emplace_back(NID_subject_key_identifier, "hash");
  extensions.emplace_back(NID_authority_key_identifier, "keyid:always");
  for (const auto& [kind, value] : extensions) {
    if (absl::Status s = AddExtension(x, &context, kind, value); !s.ok()) return s;
  }
  if (!fields.hosts.empty()) {
    const absl::StatusOr<Names> names = NamesOf(fields.hosts);
    if (!names.ok()) return names.status();
    if (X509_add1_ext_i2d(x, NID_subject_alt_name, names->get(), 0, 0) != 1) {
      return CannotByOpenSsl("add hosts to a certificate");
    }
  }
  if (X509_sign(x, signer, EVP_sha256()) <= 0) return CannotByOpenSsl("sign a certificate");
  return Written([&](BIO* out) { return PEM_write_bio_X509(out, x); });
}

absl::StatusOr<PrivateKey> KeyIn(const std::string& pem) {
  PrivateKey key = openssl::KeyIn(pem);
  if (key == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("there is no private key in this PEM text");
  }
  return key;
}

absl::StatusOr<Certificate> CertificateIn(const std::string& pem) {
  Certificate out = openssl::NextCertificate(openssl::Open(pem).get());
  if (out == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("there is no certificate in this PEM text");
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> MakePrivateKey() {
  const PrivateKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return CannotByOpenSsl("make a key");
  return Written([&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

absl::StatusOr<std::string> MakeSelfSigned(const CertificateFields& fields,
                                           const std::string& private_key) {
  const absl::StatusOr<PrivateKey> key = KeyIn(private_key);
  if (!key.ok()) return key.status();
  return Sign(fields, key->get(), nullptr, key->get());
}

absl::StatusOr<std::string> MakeCertificateRequest(const std::vector<std::string>& hosts,
                                                   const std::string& private_key) {
  const absl::StatusOr<PrivateKey> key = KeyIn(private_key);
  if (!key.ok()) return key.status();
  const absl::StatusOr<Names> names = NamesOf(hosts);
  if (!names.ok()) return names.status();
  const Request request(X509_REQ_new());
  const Extensions extensions(sk_X509_EXTENSION_new_null());
  X509_EXTENSION* const extension = X509V3_EXT_i2d(NID_subject_alt_name, 0, names->get());
  if (request == nullptr || extension == nullptr ||
      sk_X509_EXTENSION_push(extensions.get(), extension) <= 0 ||
      X509_REQ_add_extensions(request.get(), extensions.get()) != 1 ||
      X509_REQ_set_pubkey(request.get(), key->get()) != 1 ||
      X509_REQ_sign(request.get(), key->get(), EVP_sha256()) <= 0) {
    return CannotByOpenSsl("make a certificate request");
  }
  return Written([&](BIO* out) { return PEM_write_bio_X509_REQ(out, request.get()); });
}

absl::StatusOr<CertificateRequest> ReadCertificateRequest(const std::string& pem) {
  if (pem.size() > kLongestRequest) return WrongRequest("is longer than 64 KiB");
  const Request request(
      PEM_read_bio_X509_REQ(openssl::Open(pem).get(), nullptr, openssl::NoPassword, nullptr));
  if (request == nullptr) return WrongRequest("is no PKCS #10 request in PEM form");
  EVP_PKEY* const key = X509_REQ_get0_pubkey(request.get());
  char group[32] = {};
  if (key == nullptr || EVP_PKEY_get_base_id(key) != EVP_PKEY_EC ||
      EVP_PKEY_get_group_name(key, group, sizeof group, nullptr) != 1 ||
      absl::string_view(group) != "prime256v1") {
    return WrongRequest("has no P-256 key");
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    return WrongRequest("is not signed with its own key");
  }
  CertificateRequest out;
  out.public_key = Der<EVP_PKEY>(key, i2d_PUBKEY);
  out.public_key_sha256 = Sha256Hex(out.public_key);
  const Extensions extensions(X509_REQ_get_extensions(request.get()));
  const Names names(static_cast<GENERAL_NAMES*>(
      X509V3_get_d2i(extensions.get(), NID_subject_alt_name, nullptr, nullptr)));
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  if (names != nullptr) out.hosts = HostsOf(names.get());
  if (count < 1 || count > kMostHosts || out.hosts.size() != static_cast<size_t>(count)) {
    return WrongRequest(absl::StrCat("must be for 1 to ", kMostHosts, " hosts"));
  }
  for (const std::string& host : out.hosts) {
    if (!IsAddress(host) && !IsHostName(host)) return WrongRequest("has a bad host name");
  }
  return out;
}

absl::StatusOr<std::string> SignCertificate(const CertificateFields& fields,
                                            const std::string& public_key,
                                            const std::string& authority,
                                            const std::string& authority_key) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(public_key.data());
  const PrivateKey key(d2i_PUBKEY(nullptr, &bytes, static_cast<long>(public_key.size())));
  if (key == nullptr) return CannotByOpenSsl("read a public key");
  const absl::StatusOr<Certificate> issuer = CertificateIn(authority);
  if (!issuer.ok()) return issuer.status();
  const absl::StatusOr<PrivateKey> signer = KeyIn(authority_key);
  if (!signer.ok()) return signer.status();
  return Sign(fields, key.get(), issuer->get(), signer->get());
}

absl::StatusOr<std::string> PublicKeyOf(const std::string& private_key) {
  const absl::StatusOr<PrivateKey> key = KeyIn(private_key);
  if (!key.ok()) return key.status();
  return Der<EVP_PKEY>(key->get(), i2d_PUBKEY);
}

absl::StatusOr<CertificateFields> ReadCertificate(const std::string& pem) {
  const absl::StatusOr<Certificate> read = CertificateIn(pem);
  if (!read.ok()) return read.status();
  X509* const x = read->get();
  CertificateFields out;
  const X509_NAME* const subject = X509_get_subject_name(x);
  out.common_name = InName(subject, NID_commonName);
  out.organization = InName(subject, NID_organizationName);
  out.organizational_unit = InName(subject, NID_organizationalUnitName);
  out.not_before = TimeOf(X509_get0_notBefore(x));
  out.not_after = TimeOf(X509_get0_notAfter(x));
  out.authority = X509_check_ca(x) == 1;
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(x, NID_subject_alt_name, nullptr, nullptr)));
  if (names != nullptr) out.hosts = HostsOf(names.get());
  ERR_clear_error();
  return out;
}

absl::StatusOr<std::string> PublicKeySha256(const std::string& pem) {
  const absl::StatusOr<Certificate> read = CertificateIn(pem);
  if (!read.ok()) return read.status();
  return Sha256Hex(Der<X509_PUBKEY>(X509_get_X509_PUBKEY(read->get()), i2d_X509_PUBKEY));
}

absl::Status CheckSignedBy(const std::string& pem, const std::string& authority) {
  const absl::StatusOr<Certificate> one = CertificateIn(pem);
  if (!one.ok()) return one.status();
  const absl::StatusOr<Certificate> issuer = CertificateIn(authority);
  if (!issuer.ok()) return issuer.status();
  const bool fits = X509_check_ca(issuer->get()) == 1 &&
                    X509_check_issued(issuer->get(), one->get()) == X509_V_OK &&
                    X509_verify(one->get(), X509_get0_pubkey(issuer->get())) == 1;
  ERR_clear_error();
  return fits ? absl::OkStatus()
              : absl::FailedPreconditionError("the certificate is not signed by this authority");
}

}  // namespace espalier
