// Golden strings of rendered output.
#include "client/terminal/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "client/terminal/plot.h"
#include "client/terminal/progress.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Terminal Tty(int width = 80) {
  return {.is_tty = true, .color = false, .unicode = true, .width = width};
}

TEST(TextTest, WidthCountsColumnsNotBytes) {
  EXPECT_EQ(DisplayWidth("abc"), 3);
  EXPECT_EQ(DisplayWidth("é"), 1);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);  // e and a combining accent
  EXPECT_EQ(DisplayWidth("模型"), 4);
  EXPECT_EQ(DisplayWidth("\U0001F680"), 2);  // a rocket
  EXPECT_EQ(DisplayWidth("\x1b[1mab\x1b[0m"), 2);
  EXPECT_EQ(DisplayWidth("\xff"), 1);
}

TEST(TextTest, PrintableReplacesEscapesAndInvalidUtf8) {
  EXPECT_EQ(Printable("a\x1b[2Jb"), "a\uFFFD[2Jb");
  EXPECT_EQ(Printable("x\ny\r"), "x y\uFFFD");
  EXPECT_EQ(Printable("x\ny", true), "x\ny");
  EXPECT_EQ(Printable("ok \xc3\xa9 bad \xc3"), "ok é bad \uFFFD");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\uFFFD31m");                            // C1 control sequence introducer
  EXPECT_EQ(Printable("\u202Eevil"), "\uFFFDevil");  // right-to-left override
}

TEST(TextTest, TruncateNeverSplitsACharacter) {
  EXPECT_EQ(Truncate("abcdef", 6), "abcdef");
  EXPECT_EQ(Truncate("abcdef", 4), "abc…");
  EXPECT_EQ(Truncate("模型模型", 4), "模…");
  EXPECT_EQ(Truncate("abcdef", 5, false), "ab...");
  EXPECT_EQ(TruncateMiddle("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(TruncateMiddle("abcdefgh", 6), "ab…fgh");
  EXPECT_EQ(TruncateMiddle("abcdefgh", 7, false), "ab...gh");
  EXPECT_EQ(TruncateMiddle("模型模型", 6), "模…型");
  EXPECT_EQ(TruncateMiddle("abcdefgh", 2), "a…");
}

TEST(TextTest, NumbersReadWell) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(64.0 * 1024 * 1024), "64.0 MiB");
  EXPECT_EQ(FormatNumber(16777216), "16777216");
  EXPECT_EQ(FormatNumber(std::ldexp(1, 60)), "1152921504606846976");
  EXPECT_EQ(FormatNumber(0.1), "0.1");
  EXPECT_EQ(FormatNumber(-0.00001), "-0.00001");
  EXPECT_EQ(FormatNumber(INFINITY), "inf");
  EXPECT_EQ(FormatNumber(5e-324).size(), 326u);
  EXPECT_EQ(FormatCount(87), "87");
  EXPECT_EQ(FormatCount(12345), "12.3 k");
  EXPECT_EQ(FormatCount(4260000), "4.26 M");
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatSeconds(0.0000123), "12.3 µs");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(0.9999), "1.00 s");
  EXPECT_EQ(FormatSeconds(187), "3m 07s");
  EXPECT_EQ(FormatSeconds(59.99), "1m 00s");
  EXPECT_EQ(FormatSeconds(7500), "2h 05m");
  EXPECT_EQ(FormatSeconds(NAN), "?");
  EXPECT_EQ(FormatLoss(2.30412), "2.3041");
  EXPECT_EQ(FormatLoss(0.000412), "0.000412");
  EXPECT_EQ(FormatLoss(0.0005), "0.0005");
  EXPECT_EQ(FormatLoss(-0.00001234), "-0.0000123");
  EXPECT_EQ(FormatLoss(0.0099999), "0.01");
  EXPECT_EQ(FormatLoss(NAN), "nan");
}

TEST(TerminalTest, ColoursNeedATtyAndRespectNoColor) {
  std::map<std::string, std::string> env;
  auto get = [&](const char* name) -> const char* {
    auto it = env.find(name);
    return it == env.end() ? nullptr : it->second.c_str();
  };
  EXPECT_FALSE(DetectTerminal(-1, get).color);
  EXPECT_EQ(Style(Terminal{.color = true}).Bold("x"), "\x1b[1mx\x1b[0m");
  EXPECT_EQ(Style(Terminal{.color = false}).Bold("x"), "x");
  env["LANG"] = "en_US.ISO-8859-1";
  EXPECT_FALSE(DetectTerminal(-1, get).unicode);
  env["LC_ALL"] = "C.UTF-8";
  EXPECT_TRUE(DetectTerminal(-1, get).unicode);
  env["COLUMNS"] = "123";
  EXPECT_EQ(DetectTerminal(-1, get).width, 123);
}

TEST(TableTest, AlignsByDisplayWidth) {
  Table table({{"name"}, {"steps", Align::kRight}, {"state"}});
  table.Row({"llm", "1200", "RUNNING"});
  table.Row({"模型", "8"});
  EXPECT_EQ(table.Render(Tty()),
            "name  steps  state\n"
            "────  ─────  ───────\n"
            "llm    1200  RUNNING\n"
            "模型      8\n");
}

TEST(TableTest, OptionalColumnsAreShownIfTheyHaveText) {
  for (const std::string owner : {"", "alice"}) {
    Table table({{"id"}, {.title = "owner", .optional = true}, {"state"}});
    table.Row({"job-1", owner, "QUEUED"});
    table.Row({"job-2", "", "QUEUED"});
    EXPECT_EQ(table.Render(Tty()), owner.empty() ? "id     state\n"
                                                   "─────  ──────\n"
                                                   "job-1  QUEUED\n"
                                                   "job-2  QUEUED\n"
                                                 : "id     owner  state\n"
                                                   "─────  ─────  ──────\n"
                                                   "job-1  alice  QUEUED\n"
                                                   "job-2         QUEUED\n");
  }
}

TEST(TableTest, NarrowTerminalShrinksMarkedColumnPipesTruncateNothing) {
  Table table({{"id"}, {"error", Align::kLeft, true}});
  table.Row({"job-1", std::string(60, 'x')});
  Terminal narrow = Tty(40);
  EXPECT_EQ(table.Render(narrow),
            "id     error\n"
            "─────  ─────────────────────────────────\n"
            "job-1  " +
                std::string(32, 'x') + "…\n");
  narrow.is_tty = false;
  EXPECT_THAT(table.Render(narrow), HasSubstr(std::string(60, 'x')));
}

Progress Half() {
  Progress p;
  p.done = 412;
  p.total = 1000;
  p.unit = "step";
  p.detail = "loss 2.3041";
  p.rate = 12345;
  p.rate_unit = "tok/s";
  p.seconds_left = 72;
  return p;
}

TEST(ProgressTest, ShowsBarLossRateAndTimeLeft) {
  EXPECT_EQ(
      RenderProgress(Half(), Tty(100)),
      "step  412/1000  41% ████████████▎                   loss 2.3041  12.3 k tok/s  1m 12s left");
  Terminal ascii = Tty(100);
  ascii.unicode = false;
  EXPECT_EQ(
      RenderProgress(Half(), ascii),
      "step  412/1000  41% ############..................  loss 2.3041  12.3 k tok/s  1m 12s left");
}

TEST(ProgressTest, FitsTheTerminal) {
  for (int width = 40; width < 140; ++width) {
    EXPECT_LT(DisplayWidth(RenderProgress(Half(), Tty(width))), width);
  }
}

TEST(ProgressTest, PlainOutputIsOneLineNowAndThenAndTheLast) {
  std::ostringstream out;
  double now = 0;
  ProgressPrinter printer(
      &out, Terminal{}, [&] { return now; }, 10);
  Progress p;
  p.unit = "step";
  p.total = 100;
  for (int i = 1; i <= 100; ++i) {
    now += 0.25;
    p.done = i;
    printer.Update(p);
  }
  printer.Finish();
  EXPECT_EQ(out.str(),
            "step   1/100   1%\nstep  41/100  41%\nstep  81/100  81%\nstep 100/100 100%\n");
}

TEST(ProgressTest, MessagesStandAboveTheLineOnATerminal) {
  std::ostringstream out;
  double now = 0;
  ProgressPrinter printer(&out, Tty(40), [&] { return now; });
  Progress p;
  p.unit = "step";
  p.done = 3;
  printer.Update(p);
  printer.Message("worker w2 lost");
  printer.Finish();
  EXPECT_EQ(out.str(), "\rstep 3\x1b[K\r\x1b[Kworker w2 lost\n\rstep 3\x1b[K\n");
}

TEST(PlotTest, FallingLineInAscii) {
  PlotOptions options;
  options.width = 24;
  options.height = 5;
  options.unicode = false;
  options.title = "loss";
  options.x_label = "step";
  EXPECT_EQ(RenderPlot({{0, 4}, {50, 1}, {100, 0}}, options),
            "        loss\n"
            "4.0000 |**\n"
            "       |  **\n"
            "       |    ***\n"
            "       |       *****\n"
            "0.0000 |            ****\n"
            "       +----------------\n"
            "        0       step 100\n");
}

TEST(PlotTest, BrailleDotsStandWhereThePointsAre) {
  PlotOptions options;
  options.width = 18;
  options.height = 2;
  // From the upper left dot to the lower right one.
  EXPECT_EQ(RenderPlot({{0, 1}, {1, 0}}, options),
            "1.0000 ┤⠉⠒⠢⢄⣀\n"
            "0.0000 ┤     ⠉⠑⠢⠤⣀\n"
            "       └──────────\n"
            "        0        1\n");
}

TEST(PlotTest, LinesAreToldApartByLettersAndColors) {
  PlotOptions options;
  options.width = 24;
  options.height = 5;
  options.unicode = false;
  const std::vector<PlotLine> lines = {
      {"lm@1", {{0, 4}, {100, 0}}}, {"lm@2", {{0, 4}, {50, 4}}}, {"none", {}}};
  EXPECT_EQ(RenderLines(lines, options),
            "4.0000 |********b\n"
            "       |  ****\n"
            "       |      ****\n"
            "       |          ****\n"
            "0.0000 |              *a\n"
            "       +----------------\n"
            "        0            100\n"
            "        a lm@1  b lm@2\n"
            "        c none\n");
  options.color = true;
  EXPECT_THAT(RenderLines(lines, options),
              HasSubstr("|\x1b[33m********b\x1b[0m\n       |  \x1b[36m****\x1b[0m\n"));
}

TEST(PlotTest, FewerThanTwoFinitePointsGiveNothing) {
  EXPECT_EQ(RenderPlot({}, {}), "");
  EXPECT_EQ(RenderPlot({{0, 1}, {1, NAN}}, {}), "");
  EXPECT_THAT(RenderPlot({{0, 1}, {1, NAN}, {2, 1}}, {}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace espalier
