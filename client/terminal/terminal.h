// The capabilities of a terminal, and colors for it.
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

// Reads NO_COLOR (any value: no colors), TERM, LC_ALL, LC_CTYPE, LANG and COLUMNS by `getenv`.
// Colors need a tty; Unicode is assumed unless the locale names another character set.
Terminal DetectTerminal(int fd, const std::function<const char*(const char*)>& getenv);

// Wraps text in colors if the terminal has them; otherwise returns it unchanged.
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
