// Property checks of attention over the paged KV cache: batch invariance.
#include <limits>
#include <string>
#include <vector>

#include "tests/gpu/mixed_batch.h"
#include "tests/gpu/property_inputs.h"

namespace espalier::gpu_check {
namespace {

// Checks that a token's attention has the same bits as the next token of its sequence, in a token
// tree, and in a batch with others.
std::string CheckAttentionBatchInvariance(Backend& cuda, DType dtype, int32_t tokens) {
  const int64_t dim = 64, heads = 4, kv_heads = 2, slots = 2 * tokens + 56;
  const int32_t own = 2 * tokens, other = own + 22;  // slots, beside the sequence's odd ones
  constexpr int32_t kCrowd = 600;
  // All filler rows write one slot: they are equal.
  const auto rows_alike = [&](int64_t width, uint64_t seed) {
    HostTensor one = Random(dtype, {1, width}, seed);
    HostTensor all{TensorSpec::Whole({dtype, {kCrowd, width}}), {}};
    for (int32_t i = 0; i < kCrowd; ++i) {
      all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
    }
    return all;
  };
  const HostTensor q = rows_alike(heads * dim, 1);
  const HostTensor k = rows_alike(kv_heads * dim, 2), v = rows_alike(kv_heads * dim, 3);
  const HostTensor k_cache = Random(dtype, {slots, kv_heads * dim}, 4);
  const HostTensor v_cache = Random(dtype, {slots, kv_heads * dim}, 5);
  std::vector<int32_t> sequence;
  for (int32_t i = 0; i < tokens; ++i) sequence.push_back(i * 2 + 1);
  std::vector<int32_t> with_own = sequence;
  with_own.push_back(own);
  const auto run = [&](int64_t rows, std::vector<HostTensor> tables, HostTensor* row) {
    std::vector<HostTensor> inputs = {Rows(q, 0, rows), Rows(k, 0, rows), Rows(v, 0, rows), k_cache,
                                      v_cache};
    for (HostTensor& t : tables) inputs.push_back(std::move(t));
    std::vector<HostTensor> outputs = {HostTensor::Zeros(inputs[0].spec)};
    KernelSpec spec =
        SpecFor("paged_attention", {{"head_dim", dim}, {"scale", 0.0}}, inputs, outputs[0].spec);
    spec.batch_invariant = true;
    std::string error = cuda.Run(spec, {}, &inputs, &outputs);
    if (error.empty()) *row = Rows(outputs[0], 0, 1);
    return error;
  };
  const int32_t n = tokens;
  HostTensor next, node, together, crowded;
  // As the next token of the sequence: its slot is the last one.
  if (std::string e = run(1,
                          {Ints({own}), Ints({0}), Ints({n + 1}), Ints({0, 0}), Ints({7}),
                           Ints({0, n + 1}), Ints(with_own)},
                          &next);
      !e.empty()) {
    return e;
  }
  // As the root of a token tree, in another slot.
  if (std::string e = run(1,
                          {Ints({other}), Ints({0}), Ints({n}), Ints({0, 1}), Ints({other}),
                           Ints({0, n}), Ints(sequence)},
                          &node);
      !e.empty()) {
    return e;
  }
  if (std::string e = run(2,
                          {Ints({other, other + 8}), Ints({0, 0}), Ints({n, n}), Ints({0, 1, 3}),
                           Ints({other, other, other + 8}), Ints({0, n}), Ints(sequence)},
                          &together);
      !e.empty()) {
    return e;
  }
  // In a batch so large that no row uses split-KV.
  std::vector<int32_t> slot_of, sequence_of, prefix_of, starts = {0}, ancestors;
  for (int32_t i = 0; i < kCrowd; ++i) {
    slot_of.push_back(other);
    sequence_of.push_back(0);
    prefix_of.push_back(n);
    ancestors.push_back(other);
    starts.push_back(i + 1);
  }
  if (std::string e = run(kCrowd,
                          {Ints(slot_of), Ints(sequence_of), Ints(prefix_of), Ints(starts),
                           Ints(ancestors), Ints({0, n}), Ints(sequence)},
                          &crowded);
      !e.empty()) {
    return e;
  }
  if (crowded.bytes != node.bytes) return "a row differs in a crowd";
  if (next.bytes != node.bytes) return "a tree node differs from the next token of the sequence";
  if (node.bytes != together.bytes) return "a row depends on another row of the batch";
  return "";
}

// Returns the inputs of a batch whose rows are those of `q`, `k` and `v` from `first` on.
std::vector<HostTensor> MixedInputs(const MixedBatch& batch, const std::vector<HostTensor>& whole,
                                    int first) {
  const int rows = batch.rows();
  std::vector<HostTensor> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(Rows(whole[i], first, first + rows));
  inputs.insert(inputs.end(),
                {whole[3], whole[4], Ints(batch.slots), Ints(batch.row_sequence),
                 Ints(batch.row_prefix), Ints(batch.ancestor_start), Ints(batch.ancestor_slots),
                 Ints(batch.sequence_start), Ints(batch.sequence_slots)});
  inputs.insert(inputs.end(), whole.begin() + 12, whole.end());
  return inputs;
}

// Checks that batched rows of prompts, trees and single tokens have the same bits as each alone,
// and, unless the cache is int8, that they do not depend on later tokens of their sequence.
std::string MixedRowsAreEachAlone(Backend& cuda, const MixedAttention& how) {
  const MixedBatch batch = MixedBatch::Make();
  const int64_t rows = batch.rows(), width = how.kv_heads * how.dim;
  const bool scaled = how.cache == DType::kI8;
  const auto cache = [&](uint64_t seed) {
    HostTensor tensor =
        HostTensor::Zeros(TensorSpec::Whole({how.cache, {int64_t{batch.cache_slots}, width}}));
    const HostTensor random = Random(DType::kF32, {int64_t{batch.cache_slots}, width}, seed);
    for (int64_t i = 0; i < tensor.spec.num_elements(); ++i) {
      SetValue(&tensor, i, (scaled ? 100 : 1) * ValueAt(random, i));
    }
    return tensor;
  };
  std::vector<HostTensor> all = {Random(DType::kF32, {rows, how.heads * how.dim}, 1),
                                 Random(DType::kF32, {rows, width}, 2),
                                 Random(DType::kF32, {rows, width}, 3), cache(4), cache(5)};
  all.resize(12);
  all.emplace_back();  // no slopes
  if (scaled) {
    for (uint64_t seed : {6, 7}) {
      all.push_back(Random(DType::kF32, {int64_t{batch.cache_slots}, how.kv_heads}, seed));
    }
  }
  const auto run = [&](std::vector<HostTensor>* inputs, HostTensor* result) {
    std::vector<HostTensor> outputs = {HostTensor::Zeros((*inputs)[0].spec)};
    KernelSpec spec = SpecFor("paged_attention",
                              {{"head_dim", how.dim},
                               {"scale", 0.0},
                               {"window", how.window},
                               {"softcap", double{how.softcap}}},
                              *inputs, outputs[0].spec);
    spec.batch_invariant = true;
    std::string error = cuda.Run(spec, {}, inputs, &outputs);
    if (error.empty()) *result = outputs[0];
    return error;
  };
  std::vector<HostTensor> inputs = MixedInputs(batch, all, 0);
  HostTensor together, alone;
  if (std::string e = run(&inputs, &together); !e.empty()) return e;
  // The cache then holds the other rows' keys and values.
  std::vector<HostTensor> stored = all;
  for (size_t i : {size_t{3}, size_t{4}, size_t{13}, size_t{14}}) {
    if (i < stored.size()) stored[i] = inputs[i];
  }
  for (int i = 0; i < batch.rows(); ++i) {
    std::vector<HostTensor> one = MixedInputs(batch.Row(i), stored, i);
    if (std::string e = run(&one, &alone); !e.empty()) return e;
    if (alone.bytes != Rows(together, i, i + 1).bytes) {
      return "row " + std::to_string(i) + " differs when it is alone";
    }
  }
  if (scaled) return "";
  std::vector<HostTensor> spoilt = all;
  for (int64_t e = 0; e < width; ++e) {
    SetValue(&spoilt[2], 36 * width + e, std::numeric_limits<double>::infinity());
  }
  inputs = MixedInputs(batch, spoilt, 0);
  HostTensor others;
  if (std::string e = run(&inputs, &others); !e.empty()) return e;
  for (int i = 0; i < batch.rows(); ++i) {
    if (i == 36 || Rows(others, i, i + 1).bytes == Rows(together, i, i + 1).bytes) continue;
    return "row " + std::to_string(i) + " sees the value of a later token";
  }
  return "";
}

}  // namespace

void CheckAttention(Backend& cuda, const AddVerdict& add) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int32_t tokens : {100, 255, 256, 3000}) {
      add(std::string("batch-invariant paged_attention ") + Name(dtype) + ", " +
              std::to_string(tokens) + " tokens",
          CheckAttentionBatchInvariance(cuda, dtype, tokens));
    }
  }
  for (const MixedAttention& how : kMixedAttentions) {
    add("paged_attention of a mixed batch, " + how.Name(), MixedRowsAreEachAlone(cuda, how));
  }
}

}  // namespace espalier::gpu_check
