// A progress line: redrawn in place on a terminal, printed periodically elsewhere.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "client/terminal/terminal.h"

namespace espalier {

struct Progress {
  double done = 0;
  double total = 0;          // 0: unknown
  std::string unit;          // "step"
  std::string detail;        // "loss 2.3041"
  double rate = 0;           // per second; 0: not shown
  std::string rate_unit;     // "tok/s"
  double seconds_left = -1;  // negative: not shown
};

// One line of at most `terminal.width` - 1 columns, without a newline:
// "step  412/1000  41% ██████▏          loss 2.3041  12.3 k tok/s  1m 12s left".
std::string RenderProgress(const Progress& progress, const Terminal& terminal);

// Decides when to draw: at most ten times a second on a terminal; elsewhere one line every
// `plain_seconds` and one at the end.
class ProgressPrinter {
 public:
  // `seconds` is a steady clock. All arguments must outlive the printer.
  ProgressPrinter(std::ostream* out, const Terminal& terminal, std::function<double()> seconds,
                  double plain_seconds = 10);

  void Update(const Progress& progress);
  // Prints a line above the progress line.
  void Message(const std::string& line);
  // Prints the last state and ends the line.
  void Finish();

 private:
  void Draw();

  std::ostream* out_;
  Terminal terminal_;
  std::function<double()> seconds_;
  double plain_seconds_;
  double drawn_at_ = -1e300;
  bool line_open_ = false;  // the cursor is at the end of a drawn line
  bool pending_ = false;    // `last_` has not been drawn
  Progress last_;
};

}  // namespace espalier
