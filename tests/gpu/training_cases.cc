#include "tests/gpu/case_inputs.h"

namespace espalier::gpu_check {
namespace {

void AddLosses(std::vector<Case>* cases) {
  for (DType labels : {kI32, kI64}) {
    cases->push_back({.op = "sparse_categorical_crossentropy",
                      .inputs = {Uniform(kF32, {6, 50, 1000}), Below(labels, {6, 50}, 1000)},
                      .sum_length = 300,
                      .slack = 2});
    cases->push_back(
        {.op = "accuracy", .inputs = {Uniform(kF32, {500, 3}), Below(labels, {500}, 3)}});
  }
  cases->push_back({.op = "sparse_categorical_crossentropy",
                    .name = "ignored labels",
                    .inputs = {Uniform(kF32, {4, 10}), Given(kI32, {3, -100, 0, 9})},
                    .sum_length = 10,
                    .slack = 2});
  cases->push_back({.op = "mean_squared_error",
                    .inputs = {Uniform(kF32, {70, 80}), Uniform(kF32, {70, 80})},
                    .sum_length = 5600});
}

void AddUpdates(std::vector<Case>* cases) {
  const auto hyper = GivenAs(kF32, {2}, {1, 4});
  const auto x = [] { return Uniform(kF32, {33, 65}); };
  cases->push_back({.op = "sgd_update",
                    .name = "plain",
                    .attributes = {{"weight_decay", 0.01}},
                    .inputs = {x(), x(), Absent(), hyper}});
  cases->push_back({.op = "sgd_update",
                    .name = "momentum, scaled",
                    .attributes = {{"momentum", 0.9}},
                    .inputs = {x(), x(), Positive(kF32, {}), hyper, x()}});
  cases->push_back({.op = "sgd_update",
                    .name = "first step",
                    .attributes = {{"momentum", 0.9}},
                    .inputs = {x(), x(), Absent(), GivenAs(kF32, {2}, {1, 1}), x()}});
  for (bool decoupled : {false, true}) {
    cases->push_back(
        {.op = "adam_update",
         .name = decoupled ? "decoupled" : "",
         .attributes = {{"weight_decay", 0.1}, {"decoupled", decoupled}},
         .inputs = {x(), x(), Positive(kF32, {}), hyper, x(), Positive(kF32, {33, 65})},
         .slack = 4});
  }
  const auto positive = [] { return Positive(kF32, {33, 65}); };
  cases->push_back(
      {.op = "adagrad_update", .inputs = {x(), x(), Absent(), hyper, positive()}, .slack = 4});
  cases->push_back({.op = "lion_update",
                    .attributes = {{"weight_decay", 0.1}},
                    .inputs = {x(), x(), Positive(kF32, {}), hyper, x()}});
  cases->push_back(
      {.op = "rmsprop_update",
       .name = "centred, momentum",
       .attributes = {{"momentum", 0.9}, {"centered", true}},
       .inputs = {x(), x(), Absent(), hyper, GivenAs(kF32, {33, 65}, Ints(33 * 65, 2)), x(), x()},
       .slack = 4});
  for (const char* op : {"sgd_update", "lion_update"}) {
    cases->push_back({.op = op,
                      .name = "step 0 leaves everything",
                      .attributes = {{"weight_decay", 0.1}},
                      .inputs = {x(), x(), Absent(), GivenAs(kF32, {2}, {1, 0}), x()}});
  }
}

// Mixed precision as WithPrecision builds it: f32 operands with narrow ones, and dynamic loss
// scaling.
void AddMixedPrecision(std::vector<Case>* cases) {
  for (DType t : {kBF16, kF16}) {
    for (int64_t rows : {1, 64, 200}) {
      cases->push_back(
          {.op = "linear",
           .name = "f32 weights, " + std::to_string(rows) + " rows",
           .inputs = {Uniform(t, {rows, 96}), Uniform(kF32, {40, 96}), Uniform(kF32, {40})},
           .sum_length = 200});
    }
    cases->push_back(
        {.op = "linear",
         .name = "f32 weights, gelu",
         .attributes = {{"activation", std::string("gelu")}},
         .inputs = {Uniform(t, {30, 48}), Uniform(kF32, {24, 48}), Uniform(kF32, {24})},
         .sum_length = 48,
         .slack = 2,
         .rounded_to = t});  // the gradient before the activation
    cases->push_back(
        {.op = "conv2d",
         .name = "f32 weights",
         .attributes = {{"pads", Ints{1, 1, 1, 1}}},
         .inputs = {Uniform(t, {2, 8, 12, 12}), Uniform(kF32, {16, 8, 3, 3}), Uniform(kF32, {16})},
         .sum_length = 300,
         .slack = 8,
         .rounded_to = t});
  }
  const auto state = [](Ints values) { return GivenAs(kF32, {3}, std::move(values)); };
  cases->push_back({.op = "loss_scale", .inputs = {state({-2, 5, 7})}});
  const auto unscale = [&](const char* name, CaseInput squares, Ints values) {
    cases->push_back(
        {.op = "unscale_gradients",
         .name = name,
         .attributes = {{"growth_interval", int64_t{8}}, {"max_norm", 0.5}},
         .inputs = {std::move(squares), state(std::move(values)), GivenAs(kF32, {2}, {1, 4})}});
  };
  unscale("finite", Positive(kF32, {}), {0, 3, 20});
  unscale("grows", Positive(kF32, {}), {0, 7, 20});
}

}  // namespace

void AddTrainingCases(std::vector<Case>* cases) {
  AddLosses(cases);
  AddUpdates(cases);
  AddMixedPrecision(cases);
}

}  // namespace espalier::gpu_check
