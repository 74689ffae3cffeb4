#include "serving/output_parsers/tool_arguments_parser.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Passes the JSON object through unchanged.
class JsonArgumentsParser : public ToolArgumentsParser {
 public:
  size_t Take(absl::string_view text, std::string* json) override {
    const size_t taken = Follow(text);
    absl::StrAppend(json, text.substr(0, taken));
    return taken;
  }
  bool done() const override { return done_; }

 private:
  size_t Follow(absl::string_view text) {
    size_t at = 0;
    while (at < text.size() && !done_) {
      const char c = text[at];
      if (quoted_) {
        if (!escaped_ && c == '"') quoted_ = false;
        escaped_ = !escaped_ && c == '\\';
      } else if (c == '"') {
        quoted_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        done_ = --depth_ == 0;
      } else if (!absl::ascii_isalnum(c) && !absl::ascii_isspace(c) &&
                 !absl::StrContains(",:+-.", c)) {
        done_ = true;
        return at;
      }
      ++at;
    }
    return at;
  }

  int depth_ = 0;
  bool quoted_ = false, escaped_ = false, done_ = false;
};

}  // namespace

std::unique_ptr<ToolArgumentsParser> NewJsonArgumentsParser() {
  return std::make_unique<JsonArgumentsParser>();
}

size_t PartialTagOverlap(absl::string_view text, absl::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n) {
    if (absl::EndsWith(text, word.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace espalier
