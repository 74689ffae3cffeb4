// Decoding after long contexts with KV caches of 32, 16 and 8 bits. The LLaMA has int4 weights and
// by default as many KV heads as query heads, so that a step reads mostly the cache, not the
// weights. Caches hold random keys and values.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "models/kv_cache_dtype.h"
#include "models/llama.h"
#include "ops/operators/register_all.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "tests/benchmarks/serving_models.h"
#include "worker/device/device.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "of the model");
ABSL_FLAG(int, layers, 4, "of the model");
ABSL_FLAG(int, kv_heads, 16, "of the model, which has 16 heads");
ABSL_FLAG(int, rounds, 7, "turns");

namespace espalier {
namespace {

constexpr DType kKvFormats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};
constexpr int kContexts[] = {512, 4096};
constexpr int kMostContext = 4096;
constexpr int kRows[] = {1, 16};  // one token, and a token tree
constexpr int kMostRows = 16;

LlamaConfig Config() {
  LlamaConfig config;
  config.vocab_size = 4096;
  config.hidden_size = 2048;
  config.intermediate_size = 5632;
  config.num_layers = absl::GetFlag(FLAGS_layers);
  config.num_heads = 16;
  config.num_kv_heads = absl::GetFlag(FLAGS_kv_heads);
  config.head_dim = 128;
  config.max_position_embeddings = kMostContext + kMostRows;
  return config;
}

absl::StatusOr<ServedModel> Make(const OpRegistry& registry, DType kv_cache_dtype) {
  const LlamaConfig config = Config();
  ServingShape shape;
  shape.max_rows = shape.max_output_rows = kMostRows;
  shape.kv_slots = shape.max_context_slots = kMostContext + kMostRows;
  shape.max_sequences = 1;
  shape.max_ancestor_slots = kMostRows * kMostRows;
  shape.kv_cache_dtype = kv_cache_dtype;
  absl::StatusOr<ServedModel> model =
      LoadForServing(registry, config, shape, WeightFormat::kInt4, {},
                     NewCpuDevice({absl::GetFlag(FLAGS_threads), int64_t{8} << 30, ""}));
  if (!model.ok()) return model.status();
  if (absl::Status s = FillAtRandom(*model); !s.ok()) return s;
  return model;
}

// A chain of tree nodes after the context.
RunnerBatch Batch(int context, int rows) {
  RunnerBatch batch;
  batch.ancestor_start = {0};
  for (int r = 0; r < rows; ++r) {
    batch.tokens.push_back(r + 1);
    batch.positions.push_back(context + r);
    batch.slots.push_back(context + r);
    batch.row_sequence.push_back(0);
    batch.row_prefix.push_back(context);
    batch.logit_rows.push_back(r);
    for (int a = 0; a <= r; ++a) batch.ancestor_slots.push_back(context + a);
    batch.ancestor_start.push_back(static_cast<int32_t>(batch.ancestor_slots.size()));
  }
  batch.sequence_start = {0, context};
  for (int i = 0; i < context; ++i) batch.sequence_slots.push_back(i);
  return batch;
}

struct Times {
  std::vector<double> step, attention;
};

absl::Status Measure(ServedModel& model, const RunnerBatch& batch, Times* times) {
  RunnerOutput logits;
  if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
  const double start = Seconds();
  if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
  times->step.push_back(Seconds() - start);
  auto profiled = model.runner->executor().Step(
      0, /*profile=*/true, {batch.rows(), static_cast<int64_t>(batch.logit_rows.size())});
  if (!profiled.ok()) return profiled.status();
  double attention = 0;
  for (const InstructionTime& time : profiled->profile) {
    if (time.op == "paged_attention") attention += time.seconds;
  }
  times->attention.push_back(attention);
  return absl::OkStatus();
}

absl::Status Run(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  std::vector<ServedModel> models;
  for (const DType format : kKvFormats) {
    absl::StatusOr<ServedModel> model = Make(registry, format);
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
  }
  struct Load {
    int context, rows;
    std::vector<Times> times;  // by model
  };
  std::vector<Load> loads;
  for (const int rows : kRows) {
    for (const int context : kContexts) {
      loads.push_back({context, rows, std::vector<Times>(models.size())});
    }
  }
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (Load& load : loads) {
      const RunnerBatch batch = Batch(load.context, load.rows);
      for (size_t m = 0; m < models.size(); ++m) {
        if (absl::Status s = Measure(models[m], batch, &load.times[m]); !s.ok()) return s;
      }
    }
  }
  for (const Load& load : loads) {
    report->Table(
        absl::StrCat("A step of ", load.rows, load.rows == 1 ? " row" : " rows", " behind ",
                     load.context, " tokens, ", absl::GetFlag(FLAGS_threads), " threads"),
        {"KV cache", "MB for 4112 tokens", "ms per step", "steps/s", "attention ms", "cache GB/s",
         "against f32"});
    const double f32 = Median(load.times[0].step);
    for (size_t m = 0; m < models.size(); ++m) {
      const double bytes = static_cast<double>(models[m].runner->kv_cache_bytes());
      const double step = Median(load.times[m].step), attention = Median(load.times[m].attention);
      const double read = bytes * load.context / (kMostContext + kMostRows);
      report->Row({Text(KvCacheDTypeName(kKvFormats[m])), Number(bytes / 1e6, 1),
                   Number(step * 1e3, 2), Number(1 / step, 1), Number(attention * 1e3, 2),
                   Number(read / attention / 1e9, 1), Number(f32 / step, 2)});
    }
  }
  report->Note(absl::StrCat(
      "LLaMA of ", absl::GetFlag(FLAGS_layers), " layers, hidden 2048, 16 heads of 128, ",
      absl::GetFlag(FLAGS_kv_heads), " key heads, matrices of 4 bits. Medians of ",
      absl::GetFlag(FLAGS_rounds),
      " rounds, formats in turns. Cache GB/s: the context's keys and values, once, by the time in "
      "attention."));
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("kv_cache_formats");
  if (absl::Status status = espalier::Run(&report); !status.ok()) {
    std::fprintf(stderr, "kv_cache_formats: %s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
