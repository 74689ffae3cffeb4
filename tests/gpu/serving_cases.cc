#include <string>

#include "tests/gpu/case_inputs.h"
#include "tests/gpu/mixed_batch.h"

namespace espalier::gpu_check {
namespace {

// Numbers of rows on both sides of the thresholds between kernels; sizes that fill no tile.
void AddMixedInputGemms(std::vector<Case>* cases) {
  const auto add = [&](const Weights& weights, int64_t rows, int64_t in, int64_t out,
                       const char* activation) {
    Case c{.op = weights.bits == 32 ? "linear" : "quantized_linear",
           .name = weights.Name() + ", " + std::to_string(rows) + " rows, " + std::to_string(out) +
                   " by " + std::to_string(in) + ", " + activation,
           .attributes = {{"activation", std::string(activation)}},
           .inputs = {Uniform(kF32, {rows, in}), Matrix(weights, out, in)},
           .sum_length = in,
           .slack = 2,
           .gradient = false,
           .place = [](KernelSpec* spec) { spec->batch_invariant = true; }};
    if (weights.bits != 32) {
      c.attributes.Set("bits", int64_t{weights.bits});
      c.attributes.Set("out", out);
      c.attributes.Set("source", std::string("w"));
    }
    if (*activation == 'g') c.inputs.push_back(Uniform(kF32, {out}));
    cases->push_back(std::move(c));
  };
  std::vector<Weights> formats = kNarrowWeights;
  formats.push_back({32, kF32});
  for (const Weights& weights : formats) {
    for (int64_t rows : {1, 8, 9, 16, 17, 32, 40, 64, 65, 130}) {
      add(weights, rows, 288, 130, "none");
    }
    add(weights, 3, 2048, 1536, "none");
    add(weights, 150, 1024, 4096, "silu");
    add(weights, 150, 96, 2048, "none");  // enough blocks for MultistageKernel
    add(weights, 300, 96, 8192, "gelu");
    for (int64_t in : {1, 30, 33, 77, 100, 250}) add(weights, 21, in, 35, "gelu");
  }
}

// Four experts; every row chooses two.
void AddExperts(std::vector<Case>* cases) {
  constexpr int64_t kRows = 5, kExperts = 4, kOut = 40, kIn = 100;
  for (const Weights& weights : kNarrowWeights) {
    for (bool gates : {false, true}) {
      CaseInput matrices = Matrix(weights, kOut, kIn);
      matrices.type.dims.insert(matrices.type.dims.begin(), kExperts);
      Case c{.op = "quantized_expert_linear",
             .name = weights.Name() + (gates ? ", gates" : ", choices"),
             .attributes = {{"bits", int64_t{weights.bits}}, {"out", kOut}},
             .inputs = {Uniform(kF32, {kRows, kIn}), std::move(matrices),
                        GivenAs(kI32, {kRows, 2}, {0, 3, 3, 1, 2, 0, 1, 3, 2, 2})},
             .sum_length = 2 * kIn,
             .slack = 2};
      if (gates) c.inputs.push_back(Uniform(kF32, {kRows, 2}));
      cases->push_back(std::move(c));
    }
  }
}

// One sequence of 700 tokens, some of them in a token tree; heads share keys (GQA).
void AddLongAttention(std::vector<Case>* cases) {
  constexpr int64_t kTokens = 700, kSlots = 800;
  Ints sequence;
  for (int64_t i = 0; i < kTokens; ++i) sequence.push_back(i * 7 % kSlots);
  const auto add = [&](DType cache, int64_t heads, int64_t kv_heads, int64_t dim,
                       const char* name) -> Case& {
    const int64_t rows = 5, width = kv_heads * dim;
    // The last two tokens, a tree of two nodes, and a row that sees exactly two tiles of keys.
    Case c{.op = "paged_attention",
           .name = std::string(name) + ", " + std::to_string(heads) + " heads on " +
                   std::to_string(kv_heads) + ", " + std::to_string(dim) + " wide, cache of " +
                   Name(cache),
           .attributes = {{"head_dim", dim}},
           .inputs = {Uniform(kF32, {rows, heads * dim}), Uniform(kF32, {rows, width}),
                      Uniform(kF32, {rows, width}), Uniform(cache, {kSlots, width}),
                      Uniform(cache, {kSlots, width}),
                      Given(kI32, {sequence[698], sequence[699], 100, 107, sequence[511]}),
                      Given(kI32, {0, 0, 0, 0, 0}), Given(kI32, {699, 700, 690, 690, 512}),
                      Given(kI32, {0, 0, 0, 1, 3, 3}), Given(kI32, {100, 100, 107}),
                      Given(kI32, {0, kTokens}), Given(kI32, sequence)},
           .sum_length = kTokens,
           .slack = 4};
    if (cache == DType::kI8) {
      for (int i : {3, 4}) c.inputs[i] = Below(cache, {kSlots, width}, 100);
      c.inputs.push_back(Absent());
      for (int i = 0; i < 2; ++i) c.inputs.push_back(Uniform(kF32, {kSlots, kv_heads}));
    }
    cases->push_back(std::move(c));
    return cases->back();
  };
  for (DType cache : {kF32, kBF16, kF16, DType::kI8}) {
    for (int64_t dim : {32, 40, 64, 96, 128, 256}) add(cache, 4, 2, dim, "700 keys");
    add(cache, 8, 1, 64, "700 keys");
    add(cache, 3, 3, 128, "700 keys");
    add(cache, 6, 2, 64, "700 keys");
    add(cache, 4, 1, 64, "700 keys, window").attributes.Set("window", int64_t{300});
    add(cache, 4, 1, 64, "700 keys, cap").attributes.Set("softcap", 2.0);
  }
}

// Prompt chunks, token trees and single tokens in one batch.
void AddMixedAttention(std::vector<Case>* cases) {
  const MixedBatch batch = MixedBatch::Make();
  const auto table = [](const MixedBatch::Ints& values) {
    return Given(kI32, Ints(values.begin(), values.end()));
  };
  for (const MixedAttention& how : kMixedAttentions) {
    const int64_t width = how.kv_heads * how.dim, slots = batch.cache_slots;
    const auto cache = [&] {
      return how.cache == DType::kI8 ? Below(how.cache, {slots, width}, 100)
                                     : Uniform(how.cache, {slots, width});
    };
    Case c{.op = "paged_attention",
           .name = "a mixed batch, " + how.Name(),
           .attributes = {{"head_dim", how.dim},
                          {"window", how.window},
                          {"softcap", double{how.softcap}}},
           .inputs = {Uniform(kF32, {batch.rows(), how.heads * how.dim}),
                      Uniform(kF32, {batch.rows(), width}), Uniform(kF32, {batch.rows(), width}),
                      cache(), cache(), table(batch.slots), table(batch.row_sequence),
                      table(batch.row_prefix), table(batch.ancestor_start),
                      table(batch.ancestor_slots), table(batch.sequence_start),
                      table(batch.sequence_slots)},
           .sum_length = 300,
           .slack = 4};
    if (how.cache == DType::kI8) {
      c.inputs.push_back(Absent());
      for (int i = 0; i < 2; ++i) c.inputs.push_back(Uniform(kF32, {slots, how.kv_heads}));
    }
    cases->push_back(std::move(c));
  }
}

}  // namespace

void AddServingCases(std::vector<Case>* cases) {
  AddMixedInputGemms(cases);
  AddExperts(cases);
  AddLongAttention(cases);
  AddMixedAttention(cases);
}

}  // namespace espalier::gpu_check
