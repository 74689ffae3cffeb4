// Formulas of rnn, gru and lstm for single elements (row n, column j): Run where the row is active,
// Idle where it is not. recurrent_steps.h has the order of the steps.
#pragma once

#include "ops/kernel/recurrent.h"

namespace espalier::recurrent {

// The data of one step's elements (row n, column j of `hidden`); each kind of step uses some of it.
// In the backward pass the gates' gradients replace their arguments.
struct StepData {
  const int32_t* lengths = nullptr;  // null: every row has every step
  int64_t t = 0;
  int64_t hidden = 0;
  int64_t count = 1;                      // gates
  float* gates = nullptr;                 // [rows, count * hidden], before activation
  const float* candidate_bias = nullptr;  // gru: Rb of the candidate; may be null
  const float* peephole = nullptr;        // lstm: [3 * hidden] of i, o, f; may be null
  float* h = nullptr;                     // forward: the state; backward: the previous state
  float* c = nullptr;                     // lstm: the cell; backward: the cell of this step
  float* c_previous = nullptr;            // lstm, backward
  float* y = nullptr;                     // may be null; backward: its gradient
  float* e = nullptr;  // gru: q = h R^T if linear before reset (backward: its gradient), else r * h
  float* dh = nullptr;  // gradient of the state after this step, then of the state before it
  float* dc = nullptr;
  float* drh = nullptr;  // gru: gradient of r * h

  ESPALIER_HOST_DEVICE bool Active(int64_t n) const { return lengths == nullptr || t < lengths[n]; }
  ESPALIER_HOST_DEVICE int64_t At(int64_t n, int64_t j) const { return n * hidden + j; }
  ESPALIER_HOST_DEVICE float& Gate(int64_t n, int gate, int64_t j) const {
    return gates[(n * count + gate) * hidden + j];
  }
  ESPALIER_HOST_DEVICE float Peephole(int which, int64_t j) const {
    return peephole != nullptr ? peephole[which * hidden + j] : 0.0f;
  }
  ESPALIER_HOST_DEVICE float Q(int64_t n, int64_t j) const {
    return e[At(n, j)] + (candidate_bias != nullptr ? candidate_bias[j] : 0.0f);
  }
  ESPALIER_HOST_DEVICE void Store(int64_t n, int64_t j, float value) const {
    h[At(n, j)] = value;
    if (y != nullptr) y[At(n, j)] = value;
  }
  ESPALIER_HOST_DEVICE void ZeroY(int64_t n, int64_t j) const {
    if (y != nullptr) y[At(n, j)] = 0;
  }
  ESPALIER_HOST_DEVICE void ZeroGates(int64_t n, int64_t j) const {
    for (int g = 0; g < count; ++g) Gate(n, g, j) = 0;
  }
  // The gradient of the state, including that through y.
  ESPALIER_HOST_DEVICE float Arriving(int64_t n, int64_t j) const {
    return dh[At(n, j)] + (y != nullptr ? y[At(n, j)] : 0.0f);
  }
};

template <typename A>
struct RnnForward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const { Store(n, j, act.g(Gate(n, 0, j))); }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { ZeroY(n, j); }
};

template <typename A>
struct RnnBackward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    const float a = Gate(n, 0, j);
    Gate(n, 0, j) = Arriving(n, j) * act.g.Slope(a, act.g(a));
    dh[At(n, j)] = 0;
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { ZeroGates(n, j); }
};

// Gates i, o, f, c.
template <typename A>
struct LstmForward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    float& cell = c[At(n, j)];
    const float i = act.f(Gate(n, 0, j) + Peephole(0, j) * cell);
    const float f = act.f(Gate(n, 2, j) + Peephole(2, j) * cell);
    cell = f * cell + i * act.g(Gate(n, 3, j));
    Store(n, j, act.f(Gate(n, 1, j) + Peephole(1, j) * cell) * act.h(cell));
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { ZeroY(n, j); }
};

// Recomputes the cells from the gates of whole sequences; dc holds the running cell. Completes the
// gates' arguments.
template <typename A>
struct LstmCells : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    const float before = dc[At(n, j)];
    const float ai = Gate(n, 0, j) += Peephole(0, j) * before;
    const float af = Gate(n, 2, j) += Peephole(2, j) * before;
    const float cell = act.f(af) * before + act.f(ai) * act.g(Gate(n, 3, j));
    Gate(n, 1, j) += Peephole(1, j) * cell;
    c_previous[At(n, j)] = before;
    c[At(n, j)] = dc[At(n, j)] = cell;
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const {
    c_previous[At(n, j)] = c[At(n, j)] = 0;
  }
};

template <typename A>
struct LstmBackward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    const float ai = Gate(n, 0, j), ao = Gate(n, 1, j), af = Gate(n, 2, j), ag = Gate(n, 3, j);
    const float i = act.f(ai), o = act.f(ao), f = act.f(af), g = act.g(ag);
    const float cell = c[At(n, j)], before = c_previous[At(n, j)], out = act.h(cell);
    const float arriving = Arriving(n, j);
    const float dao = arriving * out * act.f.Slope(ao, o);
    const float dcell = dc[At(n, j)] + arriving * o * act.h.Slope(cell, out) + Peephole(1, j) * dao;
    const float dai = dcell * g * act.f.Slope(ai, i);
    const float daf = dcell * before * act.f.Slope(af, f);
    Gate(n, 0, j) = dai;
    Gate(n, 1, j) = dao;
    Gate(n, 2, j) = daf;
    Gate(n, 3, j) = dcell * i * act.g.Slope(ag, g);
    dc[At(n, j)] = dcell * f + Peephole(0, j) * dai + Peephole(2, j) * daf;
    dh[At(n, j)] = 0;
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { ZeroGates(n, j); }
};

// Gates z, r, h. e = r * h, for active and idle rows.
template <typename A>
struct GruReset : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    e[At(n, j)] = act.f(Gate(n, 1, j)) * h[At(n, j)];
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { e[At(n, j)] = 0; }
};

template <typename A, bool kLinearFirst>
struct GruForward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    const float z = act.f(Gate(n, 0, j));
    float a = Gate(n, 2, j);
    if constexpr (kLinearFirst) a += act.f(Gate(n, 1, j)) * Q(n, j);
    Store(n, j, (1.0f - z) * act.g(a) + z * h[At(n, j)]);
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { ZeroY(n, j); }
};

// All gates if linear before reset; otherwise all but r, which needs the gradient of r * h first.
template <typename A, bool kLinearFirst>
struct GruBackward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    const float arriving = Arriving(n, j);
    const float az = Gate(n, 0, j), z = act.f(az);
    const float ar = Gate(n, 1, j);
    float a = Gate(n, 2, j), r = 0, q = 0;
    if constexpr (kLinearFirst) {
      r = act.f(ar);
      q = Q(n, j);
      a += r * q;
    }
    const float candidate = act.g(a);
    const float da = arriving * (1.0f - z) * act.g.Slope(a, candidate);
    Gate(n, 0, j) = arriving * (h[At(n, j)] - candidate) * act.f.Slope(az, z);
    Gate(n, 2, j) = da;
    if constexpr (kLinearFirst) {
      Gate(n, 1, j) = da * q * act.f.Slope(ar, r);
      e[At(n, j)] = da * r;
    }
    dh[At(n, j)] = arriving * z;
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const {
    ZeroGates(n, j);
    if constexpr (kLinearFirst) e[At(n, j)] = 0;
  }
};

template <typename A>
struct GruResetBackward : StepData {
  A act;
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    const float ar = Gate(n, 1, j), r = act.f(ar), d = drh[At(n, j)];
    Gate(n, 1, j) = d * h[At(n, j)] * act.f.Slope(ar, r);
    dh[At(n, j)] += d * r;
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t n, int64_t j) const { Gate(n, 1, j) = 0; }
};

struct AllActive {
  ESPALIER_HOST_DEVICE bool Active(int64_t) const { return true; }
  ESPALIER_HOST_DEVICE void Idle(int64_t, int64_t) const {}
};

// to[n, j] = from[n, j], or 0 without a source.
struct CopyRows : AllActive {
  float* to;
  const float* from;
  int64_t columns;
  CopyRows(float* to, const float* from, int64_t columns) : to(to), from(from), columns(columns) {}
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    to[n * columns + j] = from != nullptr ? from[n * columns + j] : 0.0f;
  }
};

// Rows of Wb + Rb; columns from `alone` on have Wb only.
struct BiasRows : AllActive {
  float* to;
  const float* bias;
  int64_t columns, alone;
  BiasRows(float* to, const float* bias, int64_t columns, int64_t alone)
      : to(to), bias(bias), columns(columns), alone(alone) {}
  ESPALIER_HOST_DEVICE void Run(int64_t n, int64_t j) const {
    to[n * columns + j] = bias[j] + (j < alone ? bias[columns + j] : 0.0f);
  }
};

// The state before every step, [S * N, H], from y and h0; zero where rows are idle.
struct PreviousStates {
  float* to;
  const float* y;   // of this direction: y[t * y_stride + n * hidden + j]
  const float* h0;  // may be null
  const int32_t* lengths;
  int64_t steps, samples, hidden, y_stride;
  bool reversed;
  ESPALIER_HOST_DEVICE bool Lasts(int64_t t, int64_t n) const {
    return t >= 0 && t < steps && (lengths == nullptr || t < lengths[n]);
  }
  ESPALIER_HOST_DEVICE bool Active(int64_t row) const {
    return Lasts(row / samples, row % samples);
  }
  ESPALIER_HOST_DEVICE void Run(int64_t row, int64_t j) const {
    const int64_t n = row % samples, before = row / samples + (reversed ? 1 : -1);
    float value = h0 != nullptr ? h0[n * hidden + j] : 0.0f;
    if (Lasts(before, n)) value = y[before * y_stride + n * hidden + j];
    to[row * hidden + j] = value;
  }
  ESPALIER_HOST_DEVICE void Idle(int64_t row, int64_t j) const { to[row * hidden + j] = 0; }
};

// The gradient of one peephole weight: the sum over rows of the gate's gradient times the cell.
struct PeepholeSums : AllActive {
  float* to;
  const float* gates;
  const float* cells;
  int64_t rows, hidden, gate;
  PeepholeSums(float* to, const float* gates, const float* cells, int64_t rows, int64_t hidden,
               int64_t gate)
      : to(to), gates(gates), cells(cells), rows(rows), hidden(hidden), gate(gate) {}
  ESPALIER_HOST_DEVICE void Run(int64_t, int64_t j) const {
    float sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum += gates[(row * 4 + gate) * hidden + j] * cells[row * hidden + j];
    }
    to[j] = sum;
  }
};

struct FillRow : AllActive {
  float* to;
  float value;
  FillRow(float* to, float value) : to(to), value(value) {}
  ESPALIER_HOST_DEVICE void Run(int64_t, int64_t j) const { to[j] = value; }
};

}  // namespace espalier::recurrent
