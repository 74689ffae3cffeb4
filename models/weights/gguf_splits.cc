#include "models/weights/gguf_splits.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr size_t kDigits = 5;

// Removes a five-digit number from the end.
bool ConsumeNumber(absl::string_view* text, int64_t* number) {
  if (text->size() < kDigits) return false;
  const absl::string_view digits = text->substr(text->size() - kDigits);
  for (const char c : digits) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  text->remove_suffix(kDigits);
  return absl::SimpleAtoi(digits, number);
}

}  // namespace

GgufSplitName ParseGgufSplitName(const std::string& path) {
  absl::string_view rest = path;
  GgufSplitName name;
  int64_t number = 0, count = 0;
  if (absl::ConsumeSuffix(&rest, ".gguf") && ConsumeNumber(&rest, &count) &&
      absl::ConsumeSuffix(&rest, "-of-") && ConsumeNumber(&rest, &number) &&
      absl::ConsumeSuffix(&rest, "-") && number >= 1 && number <= count) {
    return {std::string(rest), number - 1, count};
  }
  return {path};
}

std::string GgufSplitPath(const GgufSplitName& name, int64_t number) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", name.prefix, number + 1, name.count);
}

}  // namespace espalier
