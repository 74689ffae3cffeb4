// The steps of rnn, gru and lstm, forward and backward, in the same order on every backend. A
// backend supplies a Machine:
//   float* Take(int64_t count)               a piece of the workspace
//   void Gemm(const Product&)
//   void ForEach(const F& f, int64_t rows, int64_t columns)
//                                            f.Run(n, j), or f.Idle(n, j) where f.Active(n) is
//                                            false
//   void WithActivations(const Problem&, int64_t direction, f)      f(an ActivationSet)
// After one of these failed, nothing else runs.
//
// Rows are samples. A row beyond its length is idle: its state stays and its y is zero. A reverse
// direction does not reverse time in memory: it iterates from the end, where rows are idle until
// their last step.
//
// In the backward pass y holds every previous state, so products over whole sequences recompute the
// arguments of all gates; only the gradients of the state go from step to step.
#pragma once

#include <utility>

#include "ops/kernel/recurrent_formulas.h"

namespace espalier::recurrent {

// C[m, n] (+)= A B. Untransposed, A is [m, k] and B is [k, n] in memory.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  bool a_transposed = false;
  int64_t lda = 0;
  const float* b = nullptr;
  bool b_transposed = false;
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
};

// Inputs of the operator; those after r may be null.
struct Inputs {
  const float *x = nullptr, *w = nullptr, *r = nullptr, *b = nullptr;
  const int32_t* lengths = nullptr;
  const float *h0 = nullptr, *c0 = nullptr, *p = nullptr;
};

// Any may be null.
struct Outputs {
  float *y = nullptr, *h = nullptr, *c = nullptr;
};

// One direction's slices of the operands, and the products that forward and backward share.
template <typename Machine>
class Direction {
 public:
  Direction(Machine& machine, const Problem& p, const Inputs& in, int64_t d)
      : machine_(machine),
        p_(p),
        hidden_(p.hidden),
        gates_(p.gates()),
        x(in.x),
        w(in.w + d * gates_ * p.in),
        r(in.r + d * gates_ * hidden_),
        b(in.b != nullptr ? in.b + d * 2 * gates_ : nullptr),
        h0(Part(in.h0, d)),
        c0(Part(in.c0, d)),
        reversed(p.reversed(d)) {
    step.lengths = in.lengths;
    step.hidden = hidden_;
    step.count = Gates(p.cell);
    if (in.p != nullptr) step.peephole = in.p + d * 3 * hidden_;
    if (linear_first() && b != nullptr) step.candidate_bias = b + gates_ + 2 * hidden_;
  }

  bool linear_first() const { return p_.cell == Cell::kGru && p_.linear_before_reset; }
  // Columns of the gates that the state enters directly: all but a GRU's candidate.
  int64_t direct() const { return p_.cell == Cell::kGru ? 2 * hidden_ : gates_; }
  const float* r_candidate() const { return r + direct() * hidden_; }
  int64_t TimeOf(int64_t k) const { return reversed ? p_.steps - 1 - k : k; }
  float* Part(float* whole, int64_t d) const {
    return whole != nullptr ? whole + d * p_.rows * hidden_ : nullptr;
  }
  const float* Part(const float* whole, int64_t d) const {
    return whole != nullptr ? whole + d * p_.rows * hidden_ : nullptr;
  }

  // pre[S * N, gates] = x W^T + biases.
  void Project(float* pre) {
    const int64_t rows = p_.steps * p_.rows;
    if (b != nullptr) {
      machine_.ForEach(BiasRows(pre, b, gates_, linear_first() ? direct() : gates_), rows, gates_);
    }
    machine_.Gemm(
        {rows, gates_, p_.in, x, false, p_.in, w, true, p_.in, pre, gates_, b != nullptr});
  }
  // The state's contribution to the gates of `rows` rows, except a GRU's candidate.
  void AddState(int64_t rows, const float* h, float* pre) {
    machine_.Gemm(
        {rows, direct(), hidden_, h, false, hidden_, r, true, hidden_, pre, gates_, true});
  }
  // A GRU's candidate: q = h R^T, or pre += (r * h) R^T.
  void LinearState(int64_t rows, const float* h, float* q) {
    machine_.Gemm({rows, hidden_, hidden_, h, false, hidden_, r_candidate(), true, hidden_, q,
                   hidden_, false});
  }
  void AddResetState(int64_t rows, const float* rh, float* pre) {
    machine_.Gemm({rows, hidden_, hidden_, rh, false, hidden_, r_candidate(), true, hidden_,
                   pre + direct(), gates_, true});
  }
  template <template <typename> class Kind, typename A>
  void Run(const A& act, int64_t rows) {
    machine_.ForEach(Kind<A>{step, act}, rows, hidden_);
  }

 private:
  Machine& machine_;
  const Problem& p_;
  const int64_t hidden_, gates_;

 public:
  const float *x, *w, *r, *b, *h0, *c0;
  const bool reversed;
  StepData step;  // of the current step
};

template <typename A>
using GruLinearFirst = GruForward<A, true>;
template <typename A>
using GruResetFirst = GruForward<A, false>;
template <typename A>
using GruLinearFirstBackward = GruBackward<A, true>;
template <typename A>
using GruResetFirstBackward = GruBackward<A, false>;

template <typename Machine>
void RunForward(Machine& machine, const Problem& p, const Inputs& in, const Outputs& out) {
  const int64_t state = p.rows * p.hidden;
  float* const pre = machine.Take(p.steps * p.rows * p.gates());
  float* const h = machine.Take(state);
  float* const c = machine.Take(p.cell == Cell::kLstm ? state : 0);
  float* const e = machine.Take(p.cell == Cell::kGru ? state : 0);
  for (int64_t d = 0; d < p.directions; ++d) {
    Direction<Machine> run(machine, p, in, d);
    run.Project(pre);
    machine.ForEach(CopyRows(h, run.h0, p.hidden), p.rows, p.hidden);
    if (p.cell == Cell::kLstm) {
      machine.ForEach(CopyRows(c, run.c0, p.hidden), p.rows, p.hidden);
    }
    run.step.h = h;
    run.step.c = c;
    run.step.e = e;
    machine.WithActivations(p, d, [&](auto act) {
      for (int64_t k = 0; k < p.steps; ++k) {
        const int64_t t = run.TimeOf(k);
        run.step.t = t;
        run.step.gates = pre + t * p.rows * p.gates();
        run.step.y = out.y != nullptr ? out.y + (t * p.directions + d) * state : nullptr;
        run.AddState(p.rows, h, run.step.gates);
        if (p.cell == Cell::kRnn) {
          run.template Run<RnnForward>(act, p.rows);
        } else if (p.cell == Cell::kLstm) {
          run.template Run<LstmForward>(act, p.rows);
        } else if (run.linear_first()) {
          run.LinearState(p.rows, h, e);
          run.template Run<GruLinearFirst>(act, p.rows);
        } else {
          run.template Run<GruReset>(act, p.rows);
          run.AddResetState(p.rows, e, run.step.gates);
          run.template Run<GruResetFirst>(act, p.rows);
        }
      }
    });
    if (out.h != nullptr) {
      machine.ForEach(CopyRows(run.Part(out.h, d), h, p.hidden), p.rows, p.hidden);
    }
    if (out.c != nullptr) {
      machine.ForEach(CopyRows(run.Part(out.c, d), c, p.hidden), p.rows, p.hidden);
    }
  }
}

// y of the forward pass, and the gradients of the outputs, which may be null.
struct BackwardInputs {
  Inputs forward;
  const float *y = nullptr, *dy = nullptr, *dh = nullptr, *dc = nullptr;
};

// Any may be null.
struct BackwardOutputs {
  float *x = nullptr, *w = nullptr, *r = nullptr, *b = nullptr;
  float *h0 = nullptr, *c0 = nullptr, *p = nullptr;
};

template <typename Machine>
class Backward {
 public:
  Backward(Machine& machine, const Problem& p, const BackwardInputs& in, const BackwardOutputs& out)
      : machine_(machine),
        p_(p),
        in_(in),
        out_(out),
        all_(p.steps * p.rows),
        state_(p.rows * p.hidden),
        gates_(machine.Take(all_ * p.gates())),
        before_(machine.Take(all_ * p.hidden)),
        e_(machine.Take(p.cell == Cell::kGru ? all_ * p.hidden : 0)),
        c_(machine.Take(p.cell == Cell::kLstm ? all_ * p.hidden : 0)),
        c_before_(machine.Take(p.cell == Cell::kLstm ? all_ * p.hidden : 0)),
        dh_(machine.Take(state_)),
        dc_(machine.Take(p.cell == Cell::kLstm ? state_ : 0)),
        drh_(machine.Take(p.cell == Cell::kGru ? state_ : 0)),
        ones_(machine.Take(all_)) {}

  void Run() {
    machine_.ForEach(FillRow(ones_, 1.0f), 1, all_);
    for (int64_t d = 0; d < p_.directions; ++d) {
      Direction<Machine> run(machine_, p_, in_.forward, d);
      machine_.WithActivations(p_, d, [&](auto act) {
        Recompute(run, d, act);
        WalkBack(run, d, act);
      });
      Finish(run, d);
    }
  }

 private:
  void SetStep(Direction<Machine>* run, int64_t t) {
    StepData& step = run->step;
    step.t = t;
    step.gates = gates_ + t * p_.rows * p_.gates();
    step.h = before_ + t * state_;
    step.e = e_ + (p_.cell == Cell::kGru ? t * state_ : 0);
    step.c = c_ + (p_.cell == Cell::kLstm ? t * state_ : 0);
    step.c_previous = c_before_ + (p_.cell == Cell::kLstm ? t * state_ : 0);
  }

  // Recomputes the gates' arguments at every step, and what else the formulas need.
  template <typename A>
  void Recompute(Direction<Machine>& run, int64_t d, const A& act) {
    machine_.ForEach(
        PreviousStates{before_, run.Part(in_.y, d), run.h0, in_.forward.lengths, p_.steps, p_.rows,
                       p_.hidden, p_.directions * state_, run.reversed},
        all_, p_.hidden);
    run.Project(gates_);
    run.AddState(all_, before_, gates_);
    run.step.dh = dh_;
    run.step.dc = dc_;
    run.step.drh = drh_;
    if (run.linear_first()) {
      run.LinearState(all_, before_, e_);
    } else if (p_.cell == Cell::kGru) {
      // One product for all steps: idle rows have a state of zero.
      const int32_t* const lengths = std::exchange(run.step.lengths, nullptr);
      SetStep(&run, 0);
      run.template Run<GruReset>(act, all_);
      run.step.lengths = lengths;
      run.AddResetState(all_, e_, gates_);
    } else if (p_.cell == Cell::kLstm) {
      machine_.ForEach(CopyRows(dc_, run.c0, p_.hidden), p_.rows, p_.hidden);
      for (int64_t k = 0; k < p_.steps; ++k) {
        SetStep(&run, run.TimeOf(k));
        run.template Run<LstmCells>(act, p_.rows);
      }
    }
  }

  // From the last step to the first: gradients of the gates' arguments and of the state.
  template <typename A>
  void WalkBack(Direction<Machine>& run, int64_t d, const A& act) {
    machine_.ForEach(CopyRows(dh_, run.Part(in_.dh, d), p_.hidden), p_.rows, p_.hidden);
    if (p_.cell == Cell::kLstm) {
      machine_.ForEach(CopyRows(dc_, run.Part(in_.dc, d), p_.hidden), p_.rows, p_.hidden);
    }
    for (int64_t k = p_.steps; k-- > 0;) {
      const int64_t t = run.TimeOf(k);
      SetStep(&run, t);
      // StepData::y is written in the forward pass only.
      run.step.y = in_.dy != nullptr ? const_cast<float*>(in_.dy) + (t * p_.directions + d) * state_
                                     : nullptr;
      if (p_.cell == Cell::kRnn) {
        run.template Run<RnnBackward>(act, p_.rows);
      } else if (p_.cell == Cell::kLstm) {
        run.template Run<LstmBackward>(act, p_.rows);
      } else if (run.linear_first()) {
        run.template Run<GruLinearFirstBackward>(act, p_.rows);
        AddCandidate(run, run.step.e, p_.hidden, dh_, /*accumulate=*/true);
      } else {
        const float* const r_arguments = run.step.gates;
        run.template Run<GruResetFirstBackward>(act, p_.rows);
        AddCandidate(run, r_arguments + run.direct(), p_.gates(), drh_, /*accumulate=*/false);
        run.template Run<GruResetBackward>(act, p_.rows);
      }
      machine_.Gemm({p_.rows, p_.hidden, run.direct(), run.step.gates, false, p_.gates(), run.r,
                     false, p_.hidden, dh_, p_.hidden, true});
    }
  }

  // to (+)= from R, including the candidate's part of R.
  void AddCandidate(const Direction<Machine>& run, const float* from, int64_t ld, float* to,
                    bool accumulate) {
    machine_.Gemm({p_.rows, p_.hidden, p_.hidden, from, false, ld, run.r_candidate(), false,
                   p_.hidden, to, p_.hidden, accumulate});
  }

  // Sums over all steps.
  void Finish(const Direction<Machine>& run, int64_t d) {
    const int64_t gates = p_.gates(), hidden = p_.hidden;
    if (out_.x != nullptr) {
      machine_.Gemm(
          {all_, p_.in, gates, gates_, false, gates, run.w, false, p_.in, out_.x, p_.in, d > 0});
    }
    if (out_.w != nullptr) {
      machine_.Gemm({gates, p_.in, all_, gates_, true, gates, run.x, false, p_.in,
                     out_.w + d * gates * p_.in, p_.in, false});
    }
    const bool linear = run.linear_first();
    const float* const candidate = linear ? e_ : gates_ + run.direct();
    const int64_t candidate_ld = linear ? hidden : gates;
    if (out_.r != nullptr) {
      float* const dr = out_.r + d * gates * hidden;
      machine_.Gemm({run.direct(), hidden, all_, gates_, true, gates, before_, false, hidden, dr,
                     hidden, false});
      if (p_.cell == Cell::kGru) {
        machine_.Gemm({hidden, hidden, all_, candidate, true, candidate_ld, linear ? before_ : e_,
                       false, hidden, dr + run.direct() * hidden, hidden, false});
      }
    }
    if (out_.b != nullptr) {
      float* const db = out_.b + d * 2 * gates;
      SumRows(gates_, gates, gates, db);
      SumRows(gates_, gates, run.direct(), db + gates);
      if (p_.cell == Cell::kGru)
        SumRows(candidate, candidate_ld, hidden, db + gates + run.direct());
    }
    if (out_.h0 != nullptr) {
      machine_.ForEach(CopyRows(run.Part(out_.h0, d), dh_, hidden), p_.rows, hidden);
    }
    if (out_.c0 != nullptr) {
      machine_.ForEach(CopyRows(run.Part(out_.c0, d), dc_, hidden), p_.rows, hidden);
    }
    if (out_.p != nullptr) {
      for (int gate = 0; gate < 3; ++gate) {
        machine_.ForEach(PeepholeSums(out_.p + (d * 3 + gate) * hidden, gates_,
                                      gate == 1 ? c_ : c_before_, all_, hidden, gate),
                         1, hidden);
      }
    }
  }

  void SumRows(const float* from, int64_t ld, int64_t columns, float* to) {
    machine_.Gemm({1, columns, all_, ones_, false, all_, from, false, ld, to, columns, false});
  }

  Machine& machine_;
  const Problem& p_;
  const BackwardInputs& in_;
  const BackwardOutputs& out_;
  const int64_t all_, state_;
  float *const gates_, *const before_, *const e_, *const c_, *const c_before_;
  float *const dh_, *const dc_, *const drh_, *const ones_;
};

template <typename T = float>
T* DataOf(std::span<const TensorView> views, size_t i) {
  return i < views.size() ? views[i].as<T>() : nullptr;
}

// Views without memory, for a dry run that measures the workspace: only their presence matters.
inline std::vector<TensorView> PlannedViews(const std::vector<TensorSpec>& specs) {
  static float nowhere;
  std::vector<TensorView> views;
  for (const TensorSpec& spec : specs) {
    views.push_back({spec.dtype == DType::kInvalid ? nullptr : &nowhere, spec});
  }
  return views;
}

// Runs the operator, or its gradient, on its operands.
template <typename Machine>
void RunOperator(Machine& machine, const Problem& p, std::span<const TensorView> inputs,
                 std::span<const TensorView> outputs, bool backward) {
  const bool lstm = p.cell == Cell::kLstm;
  const Inputs in = {DataOf(inputs, 0),
                     DataOf(inputs, 1),
                     DataOf(inputs, 2),
                     DataOf(inputs, 3),
                     DataOf<const int32_t>(inputs, 4),
                     DataOf(inputs, 5),
                     lstm ? DataOf(inputs, 6) : nullptr,
                     lstm ? DataOf(inputs, 7) : nullptr};
  if (!backward) {
    RunForward(machine, p, in,
               {DataOf(outputs, 0), DataOf(outputs, 1), lstm ? DataOf(outputs, 2) : nullptr});
    return;
  }
  const size_t y = lstm ? 8 : 6;
  const BackwardInputs given{in, DataOf(inputs, y), DataOf(inputs, y + 1), DataOf(inputs, y + 2),
                             lstm ? DataOf(inputs, y + 3) : nullptr};
  const BackwardOutputs wanted{DataOf(outputs, 0),
                               DataOf(outputs, 1),
                               DataOf(outputs, 2),
                               DataOf(outputs, 3),
                               DataOf(outputs, 4),
                               lstm ? DataOf(outputs, 5) : nullptr,
                               lstm ? DataOf(outputs, 6) : nullptr};
  Backward<Machine>(machine, p, given, wanted).Run();
}

}  // namespace espalier::recurrent
