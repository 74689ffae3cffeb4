// What PEM texts hold, with owners for OpenSSL's objects.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace espalier::openssl {

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* it) const { kFree(it); }
};
using Certificate = std::unique_ptr<X509, Freer<X509, X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using Source = std::unique_ptr<BIO, Freer<BIO, BIO_free_all>>;

// Of a text that outlives it.
inline Source Open(const std::string& pem) {
  return Source(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Programs have nobody to ask for one.
inline int NoPassword(char*, int, int, void*) { return 0; }

// Null at the end, or if what comes next is none.
inline Certificate NextCertificate(BIO* source) {
  return Certificate(PEM_read_bio_X509(source, nullptr, NoPassword, nullptr));
}

// The first one; null if there is none that needs no password.
inline PrivateKey KeyIn(const std::string& pem) {
  return PrivateKey(PEM_read_bio_PrivateKey(Open(pem).get(), nullptr, NoPassword, nullptr));
}

}  // namespace espalier::openssl
