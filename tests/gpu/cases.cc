#include "tests/gpu/cases.h"

#include "tests/gpu/case_inputs.h"

namespace espalier::gpu_check {
namespace {

void AddElementwise(std::vector<Case>* cases) {
  for (const char* op : {"relu", "silu", "sigmoid", "tanh", "exp", "identity", "stop_gradient"}) {
    for (DType t : kFloats) {
      cases->push_back({op, "", {}, {Uniform(t, {3, 257})}});
      cases->push_back({op, "one element", {}, {Uniform(t, {})}});
    }
    cases->push_back({op, "empty", {}, {Uniform(kF32, {0, 4})}});
    cases->push_back({op, "large", {}, {Uniform(kF32, {1 << 20})}});
  }
  for (DType t : kFloats) {
    cases->push_back({"sqrt", "", {}, {Positive(t, {3, 257})}});
    for (const char* approximate : {"none", "tanh"}) {
      cases->push_back({"gelu",
                        approximate,
                        {{"approximate", std::string(approximate)}},
                        {Uniform(t, {5, 129})}});
    }
  }
  for (const char* op : {"add", "subtract", "multiply"}) {
    for (DType t : kNumbers) {
      cases->push_back({op, "", {}, {Number(t, {4, 5, 6}), Number(t, {4, 5, 6})}});
      cases->push_back({.op = op,
                        .name = "broadcast row",
                        .inputs = {Number(t, {64, 96}), Number(t, {96})},
                        .sum_length = 64,
                        .gradient = IsFloat(t)});
    }
    cases->push_back({.op = op,
                      .name = "broadcast both",
                      .inputs = {Uniform(kF32, {7, 1, 5, 1}), Uniform(kF32, {3, 1, 33})},
                      .sum_length = 231});
    cases->push_back({.op = op,
                      .name = "scalar",
                      .inputs = {Uniform(kF32, {300, 301}), Uniform(kF32, {})},
                      .sum_length = 90300});
    cases->push_back({op, "empty", {}, {Uniform(kF32, {0, 4}), Uniform(kF32, {4})}});
  }
  for (DType t : kFloats) {
    cases->push_back({.op = "divide", .inputs = {Uniform(t, {4, 50}), Positive(t, {4, 50})}});
    cases->push_back({.op = "divide",
                      .name = "broadcast column",
                      .inputs = {Uniform(t, {40, 50}), Positive(t, {40, 1})},
                      .sum_length = 50});
  }
  for (DType t : kNumbers) {
    std::vector<CaseInput> three(3, Number(t, {9, 31})), many(40, Number(t, {130}));
    cases->push_back({.op = "add_n", .name = "3 operands", .inputs = three, .sum_length = 3});
    cases->push_back({.op = "add_n", .name = "40 operands", .inputs = many, .sum_length = 40});
  }
  for (DType from : {kF32, kBF16, kF16, kI32, kI64, kBool}) {
    for (DType to : {kF32, kBF16, kF16, kI32, kI64, kBool}) {
      cases->push_back({.op = "cast",
                        .name = std::string(Name(from)) + " to " + Name(to),
                        .attributes = {{"to", std::string(Name(to))}},
                        .inputs = {from == kBool ? Bits({100}) : Number(from, {100})},
                        .gradient = IsFloat(from) && IsFloat(to)});
    }
  }
  for (DType t : kFloats) {
    cases->push_back(
        {.op = "dropout", .attributes = {{"rate", 0.3}}, .inputs = {Uniform(t, {50, 33})}});
  }
  cases->push_back({.op = "dropout",
                    .name = "not training",
                    .attributes = {{"rate", 0.3}},
                    .inputs = {Uniform(kF32, {50, 33})},
                    .training = false});
  for (const char* distribution : {"uniform", "normal"}) {
    cases->push_back(
        {.op = "random_like",
         .name = distribution,
         .attributes = {{"distribution", std::string(distribution)}, {"a", 0.5}, {"b", 2.0}},
         .inputs = {Bits({20, 7, 9})},
         .gradient = false,
         .place = [](KernelSpec* spec) {
           for (TensorSpec* t : {&spec->inputs[0], &spec->outputs[0]}) {
             t->offset = {20, 7, 18};
             t->global = {40, 14, 36};
           }
         }});
  }
  cases->push_back({.op = "dropout",
                    .name = "shard",
                    .attributes = {{"rate", 0.5}},
                    .inputs = {Uniform(kF32, {20, 7, 9})},
                    .place = [](KernelSpec* spec) {
                      for (TensorSpec* t : {&spec->inputs[0], &spec->outputs[0]}) {
                        t->offset = {20, 7, 18};
                        t->global = {40, 14, 36};
                      }
                    }});
}

void AddShapes(std::vector<Case>* cases) {
  for (DType t : {kF32, kBF16, kI64, kBool}) {
    const auto x = [t](Dims dims) {
      return t == kBool ? Bits(std::move(dims)) : Number(t, std::move(dims));
    };
    const bool gradient = IsFloat(t);
    const auto add = [&](const char* op, const char* name, Attributes attributes,
                         std::vector<CaseInput> inputs) {
      cases->push_back({.op = op,
                        .name = name,
                        .attributes = std::move(attributes),
                        .inputs = std::move(inputs),
                        .gradient = gradient});
    };
    add("reshape", "", {{"shape", Ints{0, -1}}}, {x({4, 5, 6})});
    add("flatten", "", {{"axis", int64_t{2}}}, {x({2, 3, 4, 5})});
    add("transpose", "", {{"perm", Ints{1, 0}}}, {x({33, 65})});
    add("transpose", "4-D", {{"perm", Ints{0, 2, 1, 3}}}, {x({3, 5, 7, 16})});
    add("transpose", "reversed", {{"perm", Ints{3, 2, 1, 0}}}, {x({3, 4, 5, 6})});
    add("concat", "", {{"axis", int64_t{1}}}, {x({3, 4, 5}), x({3, 1, 5}), x({3, 8, 5})});
    add("concat", "last axis", {{"axis", int64_t{-1}}}, {x({6, 3}), x({6, 5})});
    add("split", "", {{"axis", int64_t{1}}, {"sizes", Ints{2, 5, 1}}}, {x({3, 8, 5})});
    add("slice", "",
        {{"axes", Ints{0, -1}},
         {"starts", Ints{1, -7}},
         {"ends", Ints{1000, -1}},
         {"steps", Ints{2, 3}}},
        {x({9, 4, 11})});
    add("gather", "", {{"axis", int64_t{1}}},
        {x({5, 13, 6}), GivenAs(kI32, {2, 4}, {0, 12, 3, 3, -1, 7, 0, -13})});
    add("gather", "rows", {{"axis", int64_t{0}}}, {x({50, 17}), Below(kI64, {300}, 50)});
    if (t == kBool) continue;
    add("sort", "", {{"axis", int64_t{1}}, {"descending", true}}, {x({5, 130, 6})});
    add("argsort", "", {}, {x({50, 17})});
  }
  for (DType t : {kF32, kBF16, kF16, kI32, kI64, kBool}) {
    cases->push_back({"fill",
                      Name(t),
                      {{"dims", Ints{3, 5}}, {"value", 1.0}, {"dtype", std::string(Name(t))}},
                      {}});
  }
  cases->push_back({"fill", "zero scalar", {{"dims", Ints{}}, {"value", 0.0}}, {}});
}

void AddReductions(std::vector<Case>* cases) {
  for (const char* op : {"reduce_sum", "reduce_mean"}) {
    for (DType t : kFloats) {
      cases->push_back({.op = op,
                        .name = "last",
                        .attributes = {{"axes", Ints{-1}}},
                        .inputs = {Uniform(t, {7, 300})},
                        .sum_length = 300});
      cases->push_back({.op = op,
                        .name = "first",
                        .attributes = {{"axes", Ints{0}}, {"keepdims", true}},
                        .inputs = {Uniform(t, {500, 70})},
                        .sum_length = 500});
      cases->push_back({.op = op,
                        .name = "middle and outer",
                        .attributes = {{"axes", Ints{0, 2}}},
                        .inputs = {Uniform(t, {6, 5, 40, 3})},
                        .sum_length = 240});
    }
    cases->push_back(
        {.op = op, .name = "all", .inputs = {Uniform(kF32, {1000, 1001})}, .sum_length = 1001000});
    cases->push_back({.op = op,
                      .name = "empty sums",
                      .attributes = {{"axes", Ints{1}}},
                      .inputs = {Uniform(kF32, {4, 0})},
                      .gradient = false});
  }
  for (DType t : kFloats) {
    cases->push_back({.op = "sum_squares", .inputs = {Uniform(t, {123, 77})}, .sum_length = 9471});
  }
  cases->push_back({.op = "sum_squares",
                    .name = "large",
                    .inputs = {Uniform(kF32, {3000000})},
                    .sum_length = 3000000});
  std::vector<CaseInput> scalars(300, Positive(kF32, {}));
  cases->push_back({.op = "clip_scale",
                    .attributes = {{"max_norm", 1.5}},
                    .inputs = scalars,
                    .sum_length = 300});
  cases->push_back({.op = "clip_scale",
                    .name = "left alone",
                    .attributes = {{"max_norm", 1e6}},
                    .inputs = {Positive(kF32, {})}});
}

void AddProducts(std::vector<Case>* cases) {
  for (DType t : kFloats) {
    for (int64_t rows : {1, 3, 64, 200}) {
      cases->push_back({.op = "linear",
                        .name = std::to_string(rows) + " rows",
                        .inputs = {Uniform(t, {rows, 96}), Uniform(t, {40, 96}), Uniform(t, {40})},
                        .sum_length = 200});
    }
    cases->push_back({.op = "linear",
                      .name = "3-D, odd sizes, no bias",
                      .inputs = {Uniform(t, {2, 5, 33}), Uniform(t, {17, 33})},
                      .sum_length = 33});
    cases->push_back({.op = "linear",
                      .name = "no input features",
                      .inputs = {Uniform(t, {4, 0}), Uniform(t, {6, 0}), Uniform(t, {6})}});
    for (bool ta : {false, true}) {
      for (bool tb : {false, true}) {
        const Attributes attributes = {{"transpose_a", ta}, {"transpose_b", tb}};
        const std::string name = std::string(ta ? "a^T " : "a ") + (tb ? "b^T" : "b");
        const auto a = [&](Dims batch) {
          batch.insert(batch.end(), {ta ? 24 : 13, ta ? 13 : 24});
          return Uniform(t, batch);
        };
        const auto b = [&](Dims batch) {
          batch.insert(batch.end(), {tb ? 9 : 24, tb ? 24 : 9});
          return Uniform(t, batch);
        };
        cases->push_back({.op = "matmul",
                          .name = name,
                          .attributes = attributes,
                          .inputs = {a({}), b({})},
                          .sum_length = 24});
        cases->push_back({.op = "matmul",
                          .name = name + ", batched",
                          .attributes = attributes,
                          .inputs = {a({2, 3}), b({2, 3})},
                          .sum_length = 24});
        cases->push_back({.op = "matmul",
                          .name = name + ", one b",
                          .attributes = attributes,
                          .inputs = {a({5}), b({})},
                          .sum_length = 65});
        cases->push_back({.op = "matmul",
                          .name = name + ", one a",
                          .attributes = attributes,
                          .inputs = {a({1}), b({4})},
                          .sum_length = 36});
        cases->push_back({.op = "matmul",
                          .name = name + ", broadcast both",
                          .attributes = attributes,
                          .inputs = {a({2, 1}), b({1, 3})},
                          .sum_length = 72});
      }
    }
  }
}

void AddNetworks(std::vector<Case>* cases) {
  struct Convolution {
    const char* name;
    Dims x, weight;
    Attributes attributes;
  };
  const Convolution convolutions[] = {
      {"3x3", {2, 8, 12, 12}, {16, 8, 3, 3}, {{"pads", Ints{1, 1, 1, 1}}}},
      {"1x1", {3, 16, 7, 9}, {8, 16, 1, 1}, {}},
      {"strided, uneven pads",
       {2, 3, 15, 14},
       {8, 3, 5, 3},
       {{"strides", Ints{2, 2}}, {"pads", Ints{2, 0, 1, 1}}}},
      {"dilated, grouped",
       {2, 8, 11, 11},
       {4, 2, 3, 3},
       {{"dilations", Ints{2, 2}}, {"groups", int64_t{4}}}},
  };
  for (const Convolution& c : convolutions) {
    cases->push_back(
        {.op = "conv2d",
         .name = c.name,
         .attributes = c.attributes,
         .inputs = {Uniform(kF32, c.x), Uniform(kF32, c.weight), Uniform(kF32, {c.weight[0]})},
         .sum_length = 300,
         .slack = 8});
  }
  cases->push_back({.op = "conv2d",
                    .name = "no bias",
                    .inputs = {Uniform(kF32, {1, 4, 6, 6}), Uniform(kF32, {4, 4, 3, 3})},
                    .sum_length = 36,
                    .slack = 8});
  cases->push_back({.op = "conv2d",
                    .name = "no images",
                    .inputs = {Uniform(kF32, {0, 4, 6, 6}), Uniform(kF32, {4, 4, 3, 3})}});
  for (const char* kind : {"max", "average"}) {
    for (DType t : kFloats) {
      const std::string k = kind;
      cases->push_back(
          {.op = "pool2d",
           .name = k,
           .attributes = {{"kind", k}, {"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}},
           .inputs = {Uniform(t, {2, 5, 9, 8})},
           .sum_length = 4});
      cases->push_back({.op = "pool2d",
                        .name = k + ", overlapping, ceil",
                        .attributes = {{"kind", k},
                                       {"kernel", Ints{3, 4}},
                                       {"strides", Ints{2, 3}},
                                       {"pads", Ints{1, 2, 0, 1}},
                                       {"ceil_mode", true},
                                       {"count_include_pad", true}},
                        .inputs = {Uniform(t, {2, 3, 10, 11})},
                        .sum_length = 12});
    }
  }
  for (DType t : kFloats) {
    const Dims x = {6, 5, 7, 4};
    const auto channel = [t] { return Uniform(t, {5}); };
    cases->push_back({.op = "batch_norm_stats", .inputs = {Uniform(t, x)}, .sum_length = 168});
    // Statistics as of another batch: mean in [0.05, 1], mean of squares above its square.
    cases->push_back({.op = "batch_norm",
                      .name = "running",
                      .inputs = {Uniform(t, x), channel(), channel(), channel(), Positive(t, {5}),
                                 Positive(t, {2, 5})},
                      .sum_length = 168,
                      .training = false});
    cases->push_back({.op = "batch_norm",
                      .inputs = {Uniform(t, x), channel(), channel(), channel(), Positive(t, {5}),
                                 GivenAs(t, {2, 5}, {0, 1, 0, -1, 0, 1, 2, 3, 4, 5})},
                      .sum_length = 168});
    for (const char* activation : {"relu", "relu6"}) {
      cases->push_back({.op = "batch_norm",
                        .name = activation,
                        .attributes = {{"activation", std::string(activation)}},
                        .inputs = {Uniform(t, x), channel(), channel(), channel(), Positive(t, {5}),
                                   GivenAs(t, {2, 5}, {0, 1, 0, -1, 0, 1, 2, 3, 4, 5})},
                        .sum_length = 168});
    }
    cases->push_back(
        {.op = "batch_norm",
         .name = "residual",
         .attributes = {{"activation", std::string("relu")}},
         .inputs = {Uniform(t, x), channel(), channel(), channel(), Positive(t, {5}),
                    GivenAs(t, {2, 5}, {0, 1, 0, -1, 0, 1, 2, 3, 4, 5}), Uniform(t, x)},
         .sum_length = 168});
    cases->push_back({.op = "layer_norm",
                      .inputs = {Uniform(t, {4, 9, 300}), Uniform(t, {300}), Uniform(t, {300})},
                      .sum_length = 300});
    cases->push_back(
        {.op = "layer_norm", .name = "bare", .inputs = {Uniform(t, {40, 64})}, .sum_length = 64});
    cases->push_back({.op = "rms_norm",
                      .inputs = {Uniform(t, {3, 100, 64}), Uniform(t, {64})},
                      .sum_length = 300});
    cases->push_back({.op = "softmax", .inputs = {Uniform(t, {5, 1000})}, .sum_length = 1000});
    cases->push_back({.op = "softmax",
                      .name = "axis 1",
                      .attributes = {{"axis", int64_t{1}}},
                      .inputs = {Uniform(t, {3, 40, 7})},
                      .sum_length = 40});
    cases->push_back({.op = "embedding",
                      .inputs = {Below(kI64, {4, 30}, 50), Uniform(t, {50, 40})},
                      .sum_length = 120});
    cases->push_back({.op = "rotary",
                      .attributes = {{"head_dim", int64_t{16}}},
                      .inputs = {Uniform(t, {2, 9, 48})},
                      .slack = 4});
    cases->push_back({.op = "rotary",
                      .name = "positions",
                      .attributes = {{"head_dim", int64_t{64}}, {"theta", 5e5}},
                      .inputs = {Uniform(t, {5, 128}), Given(kI32, {0, 7, 100, 3, 1000})},
                      .slack = 16});
    cases->push_back({.op = "rotary",
                      .name = "frequencies",
                      .attributes = {{"head_dim", int64_t{16}},
                                     {"frequencies", std::vector<double>{0.7, 0.1, 0.03}},
                                     {"magnitude", 1.3}},
                      .inputs = {Uniform(t, {5, 32}), Given(kI32, {0, 7, 100, 3, 1000})},
                      .slack = 16});
    cases->push_back({.op = "rotary",
                      .name = "shard",
                      .attributes = {{"head_dim", int64_t{8}}},
                      .inputs = {Uniform(t, {2, 5, 16})},
                      .slack = 8,
                      .place = [](KernelSpec* spec) {
                        for (TensorSpec* x : {&spec->inputs[0], &spec->outputs[0]}) {
                          x->offset = {0, 10, 16};
                          x->global = {2, 20, 32};
                        }
                      }});
  }
  cases->push_back({.op = "embedding",
                    .name = "shard of the vocabulary",
                    .inputs = {Below(kI32, {64}, 90), Uniform(kF32, {30, 20})},
                    .sum_length = 64,
                    .place = [](KernelSpec* spec) {
                      spec->inputs[1].offset = {30, 0};
                      spec->inputs[1].global = {90, 20};
                    }});
}

void AddAttention(std::vector<Case>* cases) {
  for (DType t : kFloats) {
    const auto add = [&](const char* name, bool causal, int64_t s, int64_t columns, int64_t heads,
                         int64_t kv_heads, int64_t dim, std::vector<CaseInput> mask) {
      std::vector<CaseInput> inputs = {Uniform(t, {2, s, heads * dim}),
                                       Uniform(t, {2, columns, kv_heads * dim}),
                                       Uniform(t, {2, columns, kv_heads * dim})};
      inputs.insert(inputs.end(), mask.begin(), mask.end());
      cases->push_back({.op = "attention",
                        .name = name,
                        .attributes = {{"head_dim", dim}, {"causal", causal}},
                        .inputs = std::move(inputs),
                        .sum_length = columns * heads / kv_heads,
                        .slack = 4});
    };
    add("plain", false, 17, 29, 4, 4, 16, {});
    add("causal, grouped", true, 65, 65, 6, 2, 32, {});
    add("visible mask", false, 20, 24, 4, 2, 8, {Bits({20, 24})});
    add("added mask per head", true, 20, 20, 4, 4, 64, {Uniform(kF32, {2, 4, 20, 20})});
    add("odd head", false, 5, 300, 3, 1, 7, {Bits({2, 5, 300})});
  }
  cases->push_back({.op = "attention",
                    .name = "shard of the queries",
                    .attributes = {{"head_dim", int64_t{8}}, {"causal", true}},
                    .inputs = {Uniform(kF32, {1, 6, 16}), Uniform(kF32, {1, 12, 16}),
                               Uniform(kF32, {1, 12, 16})},
                    .sum_length = 12,
                    .slack = 4,
                    .place = [](KernelSpec* spec) {
                      for (TensorSpec* x : {&spec->inputs[0], &spec->outputs[0]}) {
                        x->offset = {0, 6, 0};
                        x->global = {1, 12, 16};
                      }
                    }});
  // Two sequences of 5 and 3 cached tokens. Rows: the last two tokens of sequence 0, a tree of
  // three nodes behind sequence 1 (a root with two children), and a row without a prefix.
  for (DType t : kFloats) {
    for (int64_t dim : {16, 64, 96, 128, 256}) {
      cases->push_back(
          {.op = "paged_attention",
           .name = "head " + std::to_string(dim),
           .attributes = {{"head_dim", dim}},
           .inputs = {Uniform(t, {6, 4 * dim}), Uniform(t, {6, 2 * dim}), Uniform(t, {6, 2 * dim}),
                      Uniform(t, {24, 2 * dim}), Uniform(t, {24, 2 * dim}),
                      Given(kI32, {9, 4, 11, 12, 20, 23}), Given(kI32, {0, 0, 1, 1, 1, 2}),
                      Given(kI32, {4, 5, 3, 3, 3, 1}), Given(kI32, {0, 0, 0, 1, 3, 5, 5}),
                      Given(kI32, {11, 11, 12, 11, 20}), Given(kI32, {0, 5, 8, 9}),
                      Given(kI32, {3, 0, 7, 9, 4, 15, 2, 14, 23})},
           .sum_length = dim,
           .slack = 4});
      for (const char* alibi : {"relative", "bf16"}) {
        Case shaped = cases->back();
        shaped.name = "head " + std::to_string(dim) + ", window, cap, alibi " + alibi;
        shaped.attributes.Set("window", int64_t{3});
        shaped.attributes.Set("softcap", 2.0);
        shaped.attributes.Set("alibi", std::string(alibi));
        if (shaped.inputs.size() == 12) shaped.inputs.push_back(Uniform(kF32, {4}));
        cases->push_back(std::move(shaped));
      }
      if (t != kF32) continue;
      for (DType cache : {kBF16, DType::kF16, DType::kI8}) {
        Case narrow = cases->back();
        narrow.name = "head " + std::to_string(dim) + ", cache of " + Name(cache);
        const bool scaled = cache == DType::kI8;
        for (int i : {3, 4}) {
          const Dims dims = {24, 2 * dim};
          narrow.inputs[i] = scaled ? Below(cache, dims, 100) : Uniform(cache, dims);
        }
        if (scaled) {
          for (int i = 0; i < 2; ++i) narrow.inputs.push_back(Uniform(kF32, {24, 2}));
        }
        cases->push_back(std::move(narrow));
      }
    }
    for (bool gates : {false, true}) {
      std::vector<CaseInput> inputs = {Uniform(t, {5, 40}), Uniform(t, {4, 24, 40}),
                                       GivenAs(kI32, {5, 2}, {0, 3, 3, 1, 2, 0, 1, 3, 2, 2})};
      if (gates) inputs.push_back(Uniform(t, {5, 2}));
      cases->push_back({.op = "expert_linear",
                        .name = gates ? "gates" : "choices",
                        .inputs = std::move(inputs),
                        .sum_length = 80,
                        .slack = 4});
    }
    cases->push_back({.op = "lora_linear",
                      .name = "rows of three adapters and none",
                      .inputs = {Uniform(t, {6, 40}), Uniform(t, {3, 8, 40}),
                                 Uniform(t, {3, 24, 8}), GivenAs(kI32, {6}, {2, -1, 0, 1, 2, -1})},
                      .sum_length = 320,
                      .slack = 4});
  }
}

}  // namespace

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  AddElementwise(&cases);
  AddShapes(&cases);
  AddReductions(&cases);
  AddProducts(&cases);
  AddNetworks(&cases);
  AddAttention(&cases);
  AddServingCases(&cases);
  AddTrainingCases(&cases);
  return cases;
}

}  // namespace espalier::gpu_check
