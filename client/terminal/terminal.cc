#include "client/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace espalier {

Terminal DetectTerminal(int fd, const std::function<const char*(const char*)>& getenv) {
  const auto env = [&](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  Terminal t;
  t.is_tty = isatty(fd) == 1;
  t.color = t.is_tty && env("NO_COLOR").empty() && env("TERM") != "dumb";
  std::string locale = env("LC_ALL");
  if (locale.empty()) locale = env("LC_CTYPE");
  if (locale.empty()) locale = env("LANG");
  const std::string lower = absl::AsciiStrToLower(locale);
  // Containers default to "C" or "POSIX", but their terminals do show UTF-8.
  t.unicode = !absl::StrContains(lower, ".") || absl::StrContains(lower, "utf");
  winsize size = {};
  int columns = 0;
  if (absl::SimpleAtoi(env("COLUMNS"), &columns) && columns > 0) {
    t.width = columns;
  } else if (t.is_tty && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    t.width = size.ws_col;
  }
  t.width = std::clamp(t.width, 40, 500);
  return t;
}

std::string Style::Wrap(const char* code, absl::string_view text) const {
  if (!on_ || text.empty()) return std::string(text);
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

}  // namespace espalier
