#include "base/log/log_format.h"

#include <spdlog/pattern_formatter.h>

#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace espalier {
namespace {

class Text : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&,
              spdlog::memory_buf_t& out) override {
    unsigned char before = 0;
    for (const char c : line.payload) {
      const auto byte = static_cast<unsigned char>(c);
      // Terminals also interpret the control characters 0x80 to 0x9f in UTF-8.
      const bool control =
          byte < 0x20 || byte == 0x7f || (before == 0xc2 && byte >= 0x80 && byte < 0xa0);
      before = byte;
      if (control) {
        const std::string escaped = absl::StrFormat("\\x%02x", byte);
        out.append(escaped.data(), escaped.data() + escaped.size());
      } else {
        out.push_back(c);
      }
    }
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<Text>();
  }
};

}  // namespace

std::unique_ptr<spdlog::formatter> LogFormat() {
  auto format = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  format->add_flag<Text>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %*");
  return format;
}

}  // namespace espalier
