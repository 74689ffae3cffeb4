// What the other end of an output is capable of, and colours for it.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

struct Terminal {
  bool is_tty = false;
  bool color = false;
  bool unicode = true;
  int width = 80;
};

// `getenv` is asked for NO_COLOR (any value: no colours), TERM, LC_ALL, LC_CTYPE, LANG and COLUMNS.
// Colours need a tty; Unicode is assumed unless the locale says another character set.
Terminal DetectTerminal(int fd, const std::function<const char*(const char*)>& getenv);

// Wraps text in colours where the terminal has them; elsewhere the text is returned as it is.
class Style {
 public:
  explicit Style(const Terminal& terminal) : on_(terminal.color) {}

  std::string Bold(absl::string_view text) const { return Wrap("1", text); }
  std::string Dim(absl::string_view text) const { return Wrap("2", text); }
  std::string Red(absl::string_view text) const { return Wrap("31", text); }
  std::string Green(absl::string_view text) const { return Wrap("32", text); }
  std::string Yellow(absl::string_view text) const { return Wrap("33", text); }
  std::string Cyan(absl::string_view text) const { return Wrap("36", text); }

 private:
  std::string Wrap(const char* code, absl::string_view text) const;
  bool on_;
};

}  // namespace espalier
