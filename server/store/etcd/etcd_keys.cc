#include "server/store/etcd/etcd_keys.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {

std::string EtcdKeys::Value(absl::string_view name) const {
  return absl::StrCat(prefix_, "/v/", name);
}

std::string EtcdKeys::Chunks(absl::string_view name) const {
  return absl::StrCat(prefix_, "/c/", name, "/");
}

std::string EtcdKeys::ChunksOf(absl::string_view name, uint64_t version) const {
  return absl::StrFormat("%s%016x/", Chunks(name), version);
}

std::string EtcdKeys::Chunk(absl::string_view name, uint64_t version, uint32_t number) const {
  return absl::StrFormat("%s%08x", ChunksOf(name, version), number);
}

std::string EtcdKeys::Name(absl::string_view kind, absl::string_view of) {
  return absl::StrCat(kind, "/", EscapedForKey(of));
}

std::string EtcdKeys::LogOf(absl::string_view kind, absl::string_view job) {
  return absl::StrCat(Name(kind, job), "/");
}

std::string EtcdKeys::Batch(absl::string_view log, uint64_t sequence) {
  return absl::StrFormat("%s%016x", log, sequence);
}

uint64_t EtcdKeys::SequenceOf(absl::string_view key) {
  uint64_t sequence = 0;
  const size_t slash = key.rfind('/');
  if (slash == key.npos || !absl::SimpleHexAtoi(key.substr(slash + 1), &sequence)) return 0;
  return sequence;
}

std::string EscapedForKey(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       absl::string_view("-_.@").find(c) != absl::string_view::npos;
    if (plain) {
      escaped += c;
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

std::string UnescapedKey(absl::string_view escaped) {
  std::string text;
  for (size_t i = 0; i < escaped.size(); ++i) {
    int byte = 0;
    if (escaped[i] == '%' && absl::SimpleHexAtoi(escaped.substr(i + 1, 2), &byte)) {
      text += static_cast<char>(byte);
      i += 2;
    } else {
      text += escaped[i];
    }
  }
  return text;
}

std::string EndOfPrefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // all keys
  ++prefix.back();
  return prefix;
}

}  // namespace espalier
