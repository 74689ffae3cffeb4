// Passes over elements that reductions of probes are made of. Elements are float or double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace espalier::probe {

// Independent accumulators, so that the compiler uses vector instructions.
constexpr int kLanes = 16;

template <typename T, typename Add>
double SumOf(const T* x, int64_t n, Add add) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += add(static_cast<double>(x[i + j]));
  }
  for (; i < n; ++i) lanes[i % kLanes] += add(static_cast<double>(x[i]));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <typename T>
double Sum(const T* x, int64_t n) {
  return SumOf(x, n, [](double v) { return v; });
}

template <typename T>
double SumOfSquares(const T* x, int64_t n) {
  return SumOf(x, n, [](double v) { return v * v; });
}

template <typename T>
double SumOfSquaredDeviations(const T* x, int64_t n, double mean) {
  return SumOf(x, n, [mean](double v) { return (v - mean) * (v - mean); });
}

template <typename T>
int64_t CountNan(const T* x, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] != x[i] ? 1 : 0;
  return count;
}

// The least and greatest of the elements that are numbers.
template <typename T>
void Extend(const T* x, int64_t n, double* least, double* greatest) {
  T low[kLanes], high[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    low[j] = std::numeric_limits<T>::infinity();
    high[j] = -std::numeric_limits<T>::infinity();
  }
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
      high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
    }
  }
  for (; i < n; ++i) {
    low[0] = x[i] < low[0] ? x[i] : low[0];
    high[0] = x[i] > high[0] ? x[i] : high[0];
  }
  for (int j = 0; j < kLanes; ++j) {
    *least = std::min(*least, static_cast<double>(low[j]));
    *greatest = std::max(*greatest, static_cast<double>(high[j]));
  }
}

// Ranges of equal width, with the ends that numpy.histogram gives them.
class Ranges {
 public:
  Ranges(double low, double high, int64_t count)
      : low_(low), high_(high), count_(count), width_((high - low) / static_cast<double>(count)) {}

  // -1: outside, or not a number.
  int64_t Of(double x) const {
    if (!(x >= low_ && x <= high_)) return -1;
    int64_t i = static_cast<int64_t>((x - low_) / (high_ - low_) * static_cast<double>(count_));
    i = std::min(i, count_ - 1);
    if (x < End(i)) return i - 1;
    if (i + 1 < count_ && x >= End(i + 1)) return i + 1;
    return i;
  }

 private:
  double End(int64_t i) const { return low_ + static_cast<double>(i) * width_; }

  double low_, high_;
  int64_t count_;
  double width_;
};

}  // namespace espalier::probe
