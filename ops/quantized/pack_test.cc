#include "ops/quantized/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/cpu/gemm/quantized_gemm.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<float> Normal(int64_t n, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<uint8_t> Packed(const PackedWeights& shape, const std::vector<float>& weights) {
  std::vector<uint8_t> packed(static_cast<size_t>(shape.blocks() * shape.block_bytes()), 0xaa);
  EXPECT_TRUE(Pack("w", shape, weights.data(), packed.data()).ok());
  return packed;
}

// The product by the named instruction set, for outputs of blocks [begin, end); rows are quantized
// first.
void Product(QuantizedIsa isa, const PackedWeights& shape, const std::vector<uint8_t>& packed,
             const std::vector<float>& x, int64_t begin, int64_t end, float* y) {
  const int64_t count = static_cast<int64_t>(x.size()) / shape.in;
  std::vector<int32_t> memory(static_cast<size_t>(QuantizedRows::Bytes(count, shape.groups())) /
                              sizeof(int32_t));
  const QuantizedRows rows = QuantizedRows::At(memory.data(), count, shape.groups());
  QuantizeRows(isa, x.data(), shape.in, rows);
  QuantizedGemm(isa, shape, packed.data(), rows, begin, end, y);
}

std::vector<float> Product(QuantizedIsa isa, const PackedWeights& shape,
                           const std::vector<uint8_t>& packed, const std::vector<float>& x) {
  std::vector<float> y(x.size() / static_cast<size_t>(shape.in) * static_cast<size_t>(shape.out));
  Product(isa, shape, packed, x, 0, shape.blocks(), y.data());
  return y;
}

std::vector<QuantizedIsa> Isas() {
  std::vector<QuantizedIsa> isas;
  for (int i = 0; i <= static_cast<int>(BestQuantizedIsa()); ++i) {
    isas.push_back(static_cast<QuantizedIsa>(i));
  }
  return isas;
}

constexpr PackedWeights kShapes[] = {{8, 16, 32},  {4, 16, 32},  {8, 1, 1},     {4, 1, 1},
                                     {8, 17, 33},  {4, 17, 33},  {8, 40, 95},   {4, 40, 95},
                                     {8, 64, 256}, {4, 64, 256}, {8, 90, 1100}, {4, 90, 1100}};

// Numbers and scales of Q8_0 blocks stay as they are, also where no number of a block is 127.
TEST(PackQ8Blocks, KeepsNumbersAndScales) {
  std::mt19937 random(5);
  for (const PackedWeights& shape :
       {PackedWeights{8, 16, 32}, PackedWeights{8, 35, 96}, PackedWeights{8, 32, 128}}) {
    std::vector<uint8_t> blocks;
    std::vector<float> expected;
    for (int64_t b = 0; b < shape.out * shape.groups(); ++b) {
      const uint16_t scale = F32ToF16(0.01f * static_cast<float>(b + 1));
      blocks.push_back(static_cast<uint8_t>(scale));
      blocks.push_back(static_cast<uint8_t>(scale >> 8));
      for (int64_t i = 0; i < kPackGroup; ++i) {
        const auto q = static_cast<int8_t>(static_cast<int>(random() % 256) - 128);
        blocks.push_back(static_cast<uint8_t>(q));
        expected.push_back(static_cast<float>(q) * F16ToF32(scale));
      }
    }
    std::vector<uint8_t> packed(static_cast<size_t>(shape.blocks() * shape.block_bytes()), 0xaa);
    ASSERT_EQ(PackQ8Blocks("w", shape, blocks.data(), packed.data()), absl::OkStatus());
    EXPECT_EQ(Unpack(shape, packed.data()), expected);
    blocks[1] = 0x7c;  // infinity
    blocks[0] = 0;
    EXPECT_THAT(std::string(PackQ8Blocks("w", shape, blocks.data(), packed.data()).message()),
                AllOf(HasSubstr("'w'"), HasSubstr("row 0, column 0")));
  }
}

TEST(PackTest, ErrorIsAtMostHalfAStep) {
  for (const PackedWeights& shape : kShapes) {
    const std::vector<float> weights = Normal(shape.out * shape.in, shape.bits);
    const std::vector<float> back = Unpack(shape, Packed(shape, weights).data());
    for (int64_t o = 0; o < shape.out; ++o) {
      for (int64_t first = 0; first < shape.in; first += kPackGroup) {
        const float* const row = weights.data() + o * shape.in;
        const int64_t end = std::min(shape.in, first + kPackGroup);
        const auto [least, most] = std::minmax_element(row + first, row + end);
        const float largest = std::max(std::fabs(*least), std::fabs(*most));
        const float step = shape.bits == 8 ? largest / 127 : (*most - *least) / 15;
        // Half a step; scale and minimum are rounded to f16 (2^-11), over up to 127 or 15 steps.
        const float bound = step * 0.5f + 1.1f * largest / 1024;
        for (int64_t i = first; i < end; ++i) {
          EXPECT_NEAR(back[static_cast<size_t>(o * shape.in + i)], row[i], bound)
              << shape.bits << " bits, " << o << ", " << i;
        }
      }
    }
  }
}

// As in GGUF's Q4_0: some of 16 numbers, -8 to 7 times an f16 scale.
TEST(PackTest, FourBitNumbersRoundTripExactly) {
  const PackedWeights shape{4, 33, 85};
  std::mt19937 random(7);
  std::vector<float> weights(static_cast<size_t>(shape.out * shape.in));
  for (int64_t o = 0; o < shape.out; ++o) {
    float step = 0;
    int first = 0, levels = 1;
    for (int64_t i = 0; i < shape.in; ++i) {
      if (i % kPackGroup == 0) {
        step = F16ToF32(F32ToF16(0.001f * static_cast<float>(1 + random() % 1000)));
        first = static_cast<int>(random() % 16);
        levels = 1 + static_cast<int>(random() % static_cast<unsigned>(16 - first));
      }
      const int q = first + static_cast<int>(random() % static_cast<unsigned>(levels));
      weights[static_cast<size_t>(o * shape.in + i)] = static_cast<float>(q - 8) * step;
    }
  }
  EXPECT_EQ(Unpack(shape, Packed(shape, weights).data()), weights);
}

// As in Q4_K: scales and minima with more digits than f16 has.
TEST(PackTest, FourBitNumbersWithFinerScalesStayClose) {
  const PackedWeights shape{4, 16, 256};
  std::mt19937 random(8);
  std::vector<float> weights(static_cast<size_t>(shape.out * shape.in)), steps;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (i % kPackGroup == 0) steps.push_back(0.00137f * static_cast<float>(1 + random() % 63));
    const float least = -0.0113f * static_cast<float>(1 + i / kPackGroup % 63);
    weights[i] = least + steps.back() * static_cast<float>(random() % 16);
  }
  const std::vector<float> back = Unpack(shape, Packed(shape, weights).data());
  for (size_t i = 0; i < weights.size(); ++i) {
    // The rounding of a scale, times 15, and of a minimum.
    const float rounding = (15 * steps[i / kPackGroup] + 0.0113f * 63) / 2048;
    EXPECT_NEAR(back[i], weights[i], rounding) << i;
  }
}

TEST(PackTest, UnrepresentableWeightIsLocated) {
  for (const int bits : {8, 4}) {
    const PackedWeights shape{bits, 3, 40};
    std::vector<uint8_t> packed(static_cast<size_t>(shape.blocks() * shape.block_bytes()));
    std::vector<float> weights(120, 0.5f);
    weights[2 * 40 + 35] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(std::string(Pack("layers.3.up", shape, weights.data(), packed.data()).message()),
                AllOf(HasSubstr("layers.3.up"), HasSubstr("row 2, column 35 is nan")));
    weights[2 * 40 + 35] = 1e9f;
    EXPECT_THAT(std::string(Pack("layers.3.up", shape, weights.data(), packed.data()).message()),
                HasSubstr("too large"));
  }
}

TEST(QuantizeRowsTest, ErrorIsAtMostHalfAStepNonFiniteMarksGroup) {
  constexpr int64_t kRows = 3, kIn = 85, kGroups = 3;  // the last group has 21 of 32
  std::vector<float> x = Normal(kRows * kIn, 8);
  x[kIn + 40] = std::numeric_limits<float>::infinity();
  x[2 * kIn + 70] = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(x.begin() + 2 * kIn, 32, 0.0f);
  for (const QuantizedIsa isa : Isas()) {
    std::vector<int32_t> memory(QuantizedRows::Bytes(kRows, kGroups) / sizeof(int32_t), -1);
    const QuantizedRows rows = QuantizedRows::At(memory.data(), kRows, kGroups);
    QuantizeRows(isa, x.data(), kIn, rows);
    for (int64_t group = 0; group < kRows * kGroups; ++group) {
      const int64_t row = group / kGroups, first = group % kGroups * kPackGroup;
      int32_t sum = 0, most = 0;
      for (int64_t i = 0; i < kPackGroup; ++i) {
        const int q = rows.q[group * kPackGroup + i];
        sum += q;
        most = std::max(most, std::abs(q));
        const float value = first + i < kIn ? x[row * kIn + first + i] : 0.0f;
        if (std::isfinite(rows.scale[group])) {
          EXPECT_NEAR(q * rows.scale[group], value, 0.5001f * rows.scale[group]);
        }
      }
      const bool marked = group == 4 || group == 8;
      EXPECT_EQ(std::isnan(rows.scale[group]), marked) << group;
      EXPECT_EQ(most, marked || group == 6 ? 0 : 127) << group;
      EXPECT_EQ(rows.sum[group], sum);
      if (!marked) {
        EXPECT_EQ(rows.scaled_sum[group], rows.scale[group] * static_cast<float>(sum));
      }
    }
  }
}

// Integers with maximum 127 are quantized exactly, so the product equals that of Unpack.
TEST(QuantizedProductTest, EqualsProductOfUnpackedWeights) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> whole(-127, 127);
  for (const PackedWeights& shape : kShapes) {
    const std::vector<uint8_t> packed = Packed(shape, Normal(shape.out * shape.in, 3));
    const std::vector<float> weights = Unpack(shape, packed.data());
    std::vector<float> x(static_cast<size_t>(11 * shape.in));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<int64_t>(i) % shape.in % kPackGroup == 0
                 ? 127.0f
                 : static_cast<float>(whole(random));
    }
    for (const QuantizedIsa isa : Isas()) {
      const std::vector<float> y = Product(isa, shape, packed, x);
      for (int64_t r = 0; r < 11; ++r) {
        for (int64_t o = 0; o < shape.out; ++o) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < shape.in; ++i) {
            const double term =
                static_cast<double>(weights[o * shape.in + i]) * x[r * shape.in + i];
            sum += term;
            size += std::fabs(term);
          }
          EXPECT_NEAR(y[r * shape.out + o], sum, 1e-6 * size + 1e-6)
              << shape.bits << " bits, " << shape.out << " x " << shape.in << ", isa "
              << static_cast<int>(isa);
        }
      }
    }
  }
}

TEST(QuantizedProductTest, InstructionSetsAgreeToTheBit) {
  for (const PackedWeights& shape : kShapes) {
    const std::vector<uint8_t> packed = Packed(shape, Normal(shape.out * shape.in, 4));
    for (const int rows : {1, 2, 3, 4, 6, 13, 16, 17, 37}) {
      const std::vector<float> x = Normal(rows * shape.in, 5);
      const std::vector<float> portable = Product(QuantizedIsa::kPortable, shape, packed, x);
      for (const QuantizedIsa isa : Isas()) EXPECT_EQ(Product(isa, shape, packed, x), portable);
    }
  }
}

// Other programs' files may hold bytes that Pack never writes.
TEST(QuantizedProductTest, AnyBytesAreValidWeights) {
  std::mt19937 random(9);
  for (const int bits : {8, 4}) {
    const PackedWeights shape{bits, 32, 512};
    std::vector<uint8_t> packed = Packed(shape, Normal(shape.out * shape.in, 10));
    for (int64_t block = 0; block < shape.blocks(); ++block) {
      uint8_t* const bytes = packed.data() + block * shape.block_bytes();
      for (int64_t g = 0; g < shape.groups(); ++g) {
        uint8_t* const numbers = bytes + shape.numbers_at(g);
        for (int64_t i = 0; i < shape.group_bytes(); ++i) {
          // Many extreme values next to each other.
          numbers[i] = random() % 2 ? static_cast<uint8_t>(random()) : i % 64 < 32 ? 0 : 255;
        }
      }
    }
    const std::vector<float> weights = Unpack(shape, packed.data());
    std::vector<float> x(static_cast<size_t>(3 * shape.in));
    for (float& value : x) value = random() % 2 ? 127.0f : -127.0f;
    for (const QuantizedIsa isa : Isas()) {
      const std::vector<float> y = Product(isa, shape, packed, x);
      for (int64_t i = 0; i < 3 * shape.out; ++i) {
        const int64_t r = i / shape.out, o = i % shape.out;
        double sum = 0, size = 0;
        for (int64_t k = 0; k < shape.in; ++k) {
          const double term = static_cast<double>(weights[o * shape.in + k]) * x[r * shape.in + k];
          sum += term;
          size += std::fabs(term);
        }
        EXPECT_NEAR(y[i], sum, 1e-6 * size) << bits << " bits, isa " << static_cast<int>(isa);
      }
    }
  }
}

// Few rows are multiplied with several blocks at once, many with one; threads take blocks in any
// order.
TEST(QuantizedProductTest, IsBatchInvariantAndSplitInvariant) {
  constexpr int kMost = 19;
  for (const PackedWeights& shape : kShapes) {
    const std::vector<uint8_t> packed = Packed(shape, Normal(shape.out * shape.in, 6));
    const std::vector<float> x = Normal(kMost * shape.in, 7);
    for (const QuantizedIsa isa : Isas()) {
      const std::vector<float> all = Product(isa, shape, packed, x);
      for (int rows = 1; rows <= kMost; ++rows) {
        const std::vector<float> some(x.begin(), x.begin() + rows * shape.in);
        const std::vector<float> y = Product(isa, shape, packed, some);
        EXPECT_TRUE(std::equal(y.begin(), y.end(), all.begin()))
            << rows << " rows, " << shape.out << " x " << shape.in;
        std::vector<float> parts(y.size());
        for (int64_t block = 0; block < shape.blocks();) {
          const int64_t end = std::min(shape.blocks(), block + 1 + block % 5);
          Product(isa, shape, packed, some, block, end, parts.data());
          block = end;
        }
        EXPECT_EQ(parts, y);
      }
    }
  }
}

// A box of the bytes is the packed matrix of those inputs.
TEST(PackTest, InputSplitsArePackedMatrices) {
  for (const int bits : {8, 4}) {
    const int64_t unit = PackedWeights{bits}.unit();
    // With 8 bits the last unit of the second has one group.
    for (const int64_t in : {6 * unit, 5 * unit + kPackGroup}) {
      const PackedWeights whole{bits, 37, in};
      const std::vector<float> weights = Normal(whole.out * whole.in, 11);
      const std::vector<uint8_t> packed = Packed(whole, weights);
      for (const int64_t units : {1, 2, 3, 6}) {
        int64_t at = 0;
        for (int64_t first = 0; first < in; first += units * unit) {
          const PackedWeights part{bits, whole.out, std::min(units * unit, in - first)};
          std::vector<float> columns;
          for (int64_t o = 0; o < whole.out; ++o) {
            const auto row = weights.begin() + o * in + first;
            columns.insert(columns.end(), row, row + part.in);
          }
          std::vector<uint8_t> cut;
          for (int64_t b = 0; b < part.blocks(); ++b) {
            const auto block = packed.begin() + b * whole.block_bytes() + at;
            cut.insert(cut.end(), block, block + part.block_bytes());
          }
          EXPECT_EQ(cut, Packed(part, columns)) << bits << " bits, inputs from " << first;
          at += part.block_bytes();
        }
        EXPECT_EQ(at, whole.block_bytes());
      }
    }
  }
}

}  // namespace
}  // namespace espalier
