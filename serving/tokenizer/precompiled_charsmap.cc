#include "serving/tokenizer/precompiled_charsmap.h"

#include "absl/strings/str_cat.h"
#include "serving/tokenizer/unicode.h"

namespace espalier {
namespace {

uint32_t Label(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xFF); }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); }
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & ((uint32_t{1} << 31) - 1); }

uint32_t Load32(const char* at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(at[i]);
  return value;
}

bool IsAsciiByte(char c) { return (c & 0x80) == 0; }

}  // namespace

absl::StatusOr<PrecompiledCharsmap> PrecompiledCharsmap::Parse(absl::string_view blob) {
  const size_t trie = blob.size() < 4 ? 0 : Load32(blob.data());
  if (trie == 0 || trie % 4 != 0 || trie > blob.size() - 4) {
    return absl::InvalidArgumentError(absl::StrCat("the character map has ", blob.size(),
                                                   " bytes, and a trie of ", trie,
                                                   " bytes does not fit into it"));
  }
  PrecompiledCharsmap map;
  map.units_.resize(trie / 4);
  for (size_t i = 0; i < map.units_.size(); ++i) map.units_[i] = Load32(blob.data() + 4 + 4 * i);
  map.replacements_ = std::string(blob.substr(4 + trie));
  return map;
}

std::optional<absl::string_view> PrecompiledCharsmap::Find(absl::string_view text) const {
  size_t node = Offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return std::nullopt;
    node ^= byte;
    if (node >= units_.size()) return std::nullopt;
    const uint32_t unit = units_[node];
    if (Label(unit) != byte) return std::nullopt;
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) return std::nullopt;
    const size_t begin = Value(units_[node]);
    if (begin > replacements_.size()) return std::nullopt;
    const size_t end = replacements_.find('\0', begin);
    return absl::string_view(replacements_)
        .substr(begin, end == std::string::npos ? end : end - begin);
  }
  return std::nullopt;
}

std::string PrecompiledCharsmap::Apply(absl::string_view text) const {
  std::string out;
  out.reserve(text.size());
  const auto characters = [&](absl::string_view run) {
    for (size_t at = 0; at < run.size();) {
      const size_t begin = at;
      NextCodePoint(run, &at);
      const absl::string_view one = run.substr(begin, at - begin);
      const std::optional<absl::string_view> found = Find(one);
      out.append((found.has_value() ? *found : one).data(),
                 (found.has_value() ? *found : one).size());
    }
  };
  const auto cluster = [&](absl::string_view grapheme) {
    if (grapheme.size() < 6) {
      if (const auto found = Find(grapheme); found.has_value()) {
        out.append(found->data(), found->size());
        return;
      }
    }
    characters(grapheme);
  };
  for (size_t at = 0; at < text.size();) {
    // ASCII before ASCII is a cluster of its own, except CR LF.
    if (IsAsciiByte(text[at]) && (at + 1 == text.size() || IsAsciiByte(text[at + 1]))) {
      const size_t length =
          text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n' ? 2 : 1;
      cluster(text.substr(at, length));
      at += length;
      continue;
    }
    size_t end = at + 1;
    while (end < text.size() &&
           (!IsAsciiByte(text[end]) || (end + 1 < text.size() && !IsAsciiByte(text[end + 1])))) {
      ++end;
    }
    const absl::string_view run = text.substr(at, end - at);
    size_t begin = 0;
    for (const size_t grapheme_end : GraphemeEnds(run)) {
      cluster(run.substr(begin, grapheme_end - begin));
      begin = grapheme_end;
    }
    at = end;
  }
  return out;
}

}  // namespace espalier
