#include "client/terminal/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::string Bar(double fraction, int width, bool unicode) {
  // Eighths of a column, from one to seven.
  static constexpr const char* kParts[] = {"",       "\u258f", "\u258e", "\u258d",
                                           "\u258c", "\u258b", "\u258a", "\u2589"};
  std::string out;
  if (!unicode) {
    const int full = static_cast<int>(fraction * width);
    out = std::string(full, '#') + std::string(width - full, '.');
    return out;
  }
  const int eighths = static_cast<int>(fraction * width * 8);
  for (int i = 0; i < eighths / 8; ++i) out += "\u2588";
  out += kParts[eighths % 8];
  return Pad(out, width, Align::kLeft);
}

}  // namespace

std::string RenderProgress(const Progress& p, const Terminal& terminal) {
  const bool known = p.total > 0;
  const double fraction = known ? std::clamp(p.done / p.total, 0.0, 1.0) : 0;
  std::string head;
  if (known) {
    const std::string total = absl::StrFormat("%.0f", p.total);
    const std::string done =
        Pad(absl::StrFormat("%.0f", p.done), static_cast<int>(total.size()), Align::kRight);
    head = absl::StrFormat("%s %s/%s %3.0f%%", p.unit, done, total, std::floor(fraction * 100));
  } else {
    head = absl::StrFormat("%s %.0f", p.unit, p.done);
  }
  std::string tail;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) absl::StrAppend(&tail, "  ", text);
  };
  add(p.detail);
  if (p.rate > 0) add(absl::StrCat(FormatCount(p.rate), " ", p.rate_unit));
  if (p.seconds_left >= 0) add(FormatSeconds(p.seconds_left, terminal.unicode) + " left");

  const int room = terminal.width - 1 - DisplayWidth(head) - DisplayWidth(tail) - 1;
  const int bar = std::min(room, 30);
  std::string line = head;
  if (terminal.is_tty && known && bar >= 5) {
    absl::StrAppend(&line, " ", Style(terminal).Cyan(Bar(fraction, bar, terminal.unicode)));
  }
  line += tail;
  return terminal.is_tty && DisplayWidth(line) > terminal.width - 1
             ? Truncate(head + tail, terminal.width - 1, terminal.unicode)
             : line;
}

ProgressPrinter::ProgressPrinter(std::ostream* out, const Terminal& terminal,
                                 std::function<double()> seconds, double plain_seconds)
    : out_(out), terminal_(terminal), seconds_(std::move(seconds)), plain_seconds_(plain_seconds) {}

void ProgressPrinter::Update(const Progress& progress) {
  last_ = progress;
  pending_ = true;
  const double interval = terminal_.is_tty ? 0.1 : plain_seconds_;
  if (seconds_() - drawn_at_ >= interval) Draw();
}

void ProgressPrinter::Message(const std::string& line) {
  if (line_open_) *out_ << "\r\x1b[K";
  *out_ << line << "\n";
  const bool redraw = line_open_;
  line_open_ = false;
  if (redraw) Draw();
  out_->flush();
}

void ProgressPrinter::Finish() {
  if (pending_) Draw();
  if (line_open_) *out_ << "\n";
  line_open_ = false;
  out_->flush();
}

void ProgressPrinter::Draw() {
  drawn_at_ = seconds_();
  pending_ = false;
  if (terminal_.is_tty) {
    *out_ << "\r" << RenderProgress(last_, terminal_) << "\x1b[K";
    line_open_ = true;
  } else {
    *out_ << RenderProgress(last_, terminal_) << "\n";
  }
  out_->flush();
}

}  // namespace espalier
