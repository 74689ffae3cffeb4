#include "serving/grammar/number_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "serving/grammar/dfa.h"

namespace espalier {
namespace {

constexpr int kPlaces = 4;
constexpr int64_t kUnit = 10'000;

// value / kUnit with `places` decimal places, which must suffice.
std::string TextOf(int64_t value, int places) {
  const int64_t magnitude = std::abs(value);
  std::string text = absl::StrCat(value < 0 ? "-" : "", magnitude / kUnit);
  if (places == 0) return text;
  const std::string fraction = absl::StrCat(kUnit + magnitude % kUnit).substr(1);
  return absl::StrCat(text, ".", fraction.substr(0, static_cast<size_t>(places)));
}

int64_t Random(std::mt19937& random) {
  // Bounds near each other and far, round and not.
  const int64_t scales[] = {10, 1'000, 30'000, 1'000'000};
  const int64_t scale = scales[random() % 4];
  int64_t value = static_cast<int64_t>(random() % (2 * scale + 1)) - scale;
  const int64_t round[] = {1, 10, 100, 1'000, 10'000};
  const int64_t to = round[random() % 5];
  return value / to * to;
}

TEST(DecimalsBetween, AcceptsExactlyTheNumbersInRange) {
  std::mt19937 random(4);
  DfaBudget budget = 1 << 30;
  int accepted = 0, refused = 0, empty = 0;
  for (int trial = 0; trial < 600; ++trial) {
    int64_t low = Random(random), high = Random(random);
    if (low > high && random() % 8 != 0) std::swap(low, high);
    std::optional<Bound> least, most;
    if (random() % 5 != 0) {
      least = Bound{ParseDecimal(TextOf(low, kPlaces)), random() % 2 == 0};
    }
    if (random() % 5 != 0) {
      most = Bound{ParseDecimal(TextOf(high, kPlaces)), random() % 2 == 0};
    }
    SCOPED_TRACE(
        absl::StrCat(least ? TextOf(low, 4) : "-", least && least->exclusive ? " < " : " <= ",
                     most ? TextOf(high, 4) : "-", most && most->exclusive ? " excl" : ""));
    const auto inside = [&](int64_t v) {
      return (!least || (least->exclusive ? v > low : v >= low)) &&
             (!most || (most->exclusive ? v < high : v <= high));
    };
    const std::optional<Expression> numbers = DecimalsBetween(least, most, kPlaces);
    if (!numbers) {
      for (int64_t v = low - 3; v <= high + 3 && v < low + 100; ++v) ASSERT_FALSE(inside(v)) << v;
      ++empty;
      continue;
    }
    const absl::StatusOr<Dfa> texts = Dfa::From(*numbers, &budget);
    ASSERT_TRUE(texts.ok()) << texts.status();
    ASSERT_FALSE(texts->empty());
    for (int i = 0; i < 60; ++i) {
      const int64_t near[] = {low + static_cast<int64_t>(random() % 5) - 2,
                              high + static_cast<int64_t>(random() % 5) - 2, Random(random)};
      int64_t v = near[random() % 3];
      const int places = static_cast<int>(random() % (kPlaces + 1));
      for (int p = places; p < kPlaces; ++p) v = v / 10;
      for (int p = places; p < kPlaces; ++p) v = v * 10;
      ASSERT_EQ(texts->Accepts(TextOf(v, places)), inside(v)) << TextOf(v, places);
      (inside(v) ? accepted : refused) += 1;
    }
    for (const char* text : {"", "-", ".5", "00", "-0", "-0.0", "1.", "1e3", "+1", "01.5",
                             "0.00001", "1234567890123456"}) {
      ASSERT_FALSE(texts->Accepts(text)) << text;
    }
  }
  EXPECT_GT(accepted, 3000);
  EXPECT_GT(refused, 3000);
  EXPECT_GT(empty, 5);
}

TEST(DecimalsBetween, HasNoMoreDigitsThanADoubleDistinguishes) {
  // No double lies between 0.3333333333333333 and the bound.
  const Bound third{ParseDecimal("0.3333333333333333"), true};
  DfaBudget budget = 1 << 20;
  const absl::StatusOr<Dfa> below = Dfa::From(*DecimalsBetween(std::nullopt, third, 15), &budget);
  ASSERT_TRUE(below.ok());
  EXPECT_TRUE(below->Accepts("0.33333333333333"));
  EXPECT_FALSE(below->Accepts("0.3333333333333333"));
  EXPECT_FALSE(below->Accepts("0.33333333333334"));
  EXPECT_TRUE(below->Accepts("-999999999999999"));
  EXPECT_FALSE(below->Accepts("-9999999999999999"));
  EXPECT_FALSE(below->Accepts("-12345678.12345678"));
}

TEST(ParseDecimal, ParsesJsonNumbers) {
  const struct {
    const char* text;
    bool negative;
    const char *whole, *fraction;
  } cases[] = {{"0", false, "0", ""},
               {"-0.0", false, "0", ""},
               {"12.50", false, "12", "5"},
               {"-3", true, "3", ""},
               {"1e-07", false, "0", "0000001"},
               {"1.25e+3", false, "1250", ""},
               {"-1.5E1", true, "15", ""},
               {"0.1e1", false, "1", ""},
               {"123456e-3", false, "123", "456"}};
  for (const auto& c : cases) {
    const Decimal decimal = ParseDecimal(c.text);
    EXPECT_EQ(decimal.negative, c.negative) << c.text;
    EXPECT_EQ(decimal.whole, c.whole) << c.text;
    EXPECT_EQ(decimal.fraction, c.fraction) << c.text;
  }
}

}  // namespace
}  // namespace espalier
