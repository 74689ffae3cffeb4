// Weight streaming: a model whose parameters exceed the device's memory gives the same bits, and
// copies overlap with computation.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "ops/program/buffer_accesses.h"
#include "ops/quantized/quantize_graph.h"
#include "planner/planner.h"
#include "storage/safetensors.h"
#include "worker/executor/check_program.h"
#include "worker/executor/initialize.h"
#include "worker/executor/program_memory.h"
#include "worker/executor/swap_dependencies.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

constexpr int kPositions = 64;

class WeightStreamingTest : public testing::Test {
 protected:
  WeightStreamingTest() { RegisterAllOperators(registry_); }

  Graph Model(WeightFormat format = WeightFormat::kF32, DType kv_cache_dtype = DType::kF32) {
    LlamaConfig config;
    config.vocab_size = 512;
    config.hidden_size = 64;
    config.intermediate_size = 160;
    config.num_layers = 5;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 16;
    config.max_position_embeddings = kPositions;
    ServingShape shape;
    shape.max_rows = 16;
    shape.max_output_rows = 16;
    shape.kv_slots = 48;
    shape.max_sequences = 4;
    shape.max_context_slots = 64;
    shape.max_ancestor_slots = 32;
    shape.kv_cache_dtype = kv_cache_dtype;
    auto graph = BuildLlamaServing(registry_, config, shape);
    EXPECT_TRUE(graph.ok()) << graph.status();
    graph = QuantizeLinears(registry_, *graph, format);
    EXPECT_TRUE(graph.ok()) << graph.status();
    EXPECT_TRUE(BindAndInfer(registry_, 1, &*graph).ok());
    return *std::move(graph);
  }

  v1::Program Lower(const Graph& graph, int64_t resident_weight_bytes) {
    auto program = LowerServing(registry_, graph, {.resident_weight_bytes = resident_weight_bytes});
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *std::move(program) : v1::Program();
  }

  // Bytes of its parameters in the arena.
  static int64_t ParameterBytes(const v1::Program& program) {
    std::set<int64_t> taken;
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.kind() != v1::PARAMETER_SHARD) continue;
      int64_t bytes = static_cast<int64_t>(SizeOf(FromProto(buffer.spec().dtype())));
      for (int64_t d : buffer.spec().dims()) bytes *= d;
      for (int64_t at = 0; at < bytes; at += 64) taken.insert(buffer.offset_bytes() + at);
    }
    return static_cast<int64_t>(taken.size()) * 64;
  }

  static void FillRandomly(Executor& executor) {
    v1::Initializer normal;
    normal.set_kind(v1::Initializer::NORMAL);
    normal.set_scale(0.1);
    for (int i = 0; i < executor.num_buffers(); ++i) {
      if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
      const TensorSpec& spec = executor.spec(i);
      std::vector<char> bytes(static_cast<size_t>(spec.bytes()));
      if (spec.dtype == DType::kF32) {
        ASSERT_TRUE(Initialize(normal, executor.buffer(i).name(), 4, spec, bytes.data()).ok());
      } else {
        // Packed bytes below 32, so that any four are a scale within f16.
        for (size_t b = 0; b < bytes.size(); ++b) bytes[b] = static_cast<char>((b * 7 + 3) % 32);
      }
      ASSERT_TRUE(executor.WriteBuffer(i, bytes.data(), spec.bytes()).ok());
      std::vector<char> back(bytes.size());
      ASSERT_TRUE(executor.ReadBuffer(i, back.data(), spec.bytes()).ok());
      EXPECT_EQ(bytes, back) << executor.buffer(i).name();
    }
  }

  OpRegistry registry_;
};

// A prompt in slots 0, 1, ..., then a tree with two branches, then the next token.
std::vector<RunnerBatch> Batches() {
  RunnerBatch prompt;
  for (int i = 0; i < 12; ++i) {
    prompt.tokens.push_back(i * 37 % 512);
    prompt.positions.push_back(i);
    prompt.slots.push_back(i);
    prompt.row_sequence.push_back(0);
    prompt.row_prefix.push_back(i + 1);
    prompt.sequence_slots.push_back(i);
    prompt.logit_rows.push_back(i);
  }
  prompt.ancestor_start.assign(13, 0);
  prompt.sequence_start = {0, 12};
  RunnerBatch tree;
  tree.tokens = {7, 11, 8};
  tree.positions = {12, 12, 13};
  tree.slots = {30, 31, 32};
  tree.row_sequence = {0, 0, 0};
  tree.row_prefix = {12, 12, 12};
  tree.ancestor_start = {0, 1, 2, 4};
  tree.ancestor_slots = {30, 31, 30, 32};
  tree.sequence_start = {0, 12};
  tree.sequence_slots = prompt.sequence_slots;
  tree.logit_rows = {0, 1, 2};
  RunnerBatch next;
  next.tokens = {9};
  next.positions = {12};
  next.slots = {12};
  next.row_sequence = {0};
  next.row_prefix = {13};
  next.ancestor_start = {0, 0};
  next.sequence_slots = prompt.sequence_slots;
  next.sequence_slots.push_back(12);
  next.sequence_start = {0, 13};
  next.logit_rows = {0};
  return {prompt, tree, next};
}

TEST_F(WeightStreamingTest, SameBitsOnADeviceTooSmallForTheWeights) {
  const std::vector<RunnerBatch> batches = Batches();
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    for (const DType kv_cache_dtype : {DType::kF32, DType::kI8}) {
      const Graph graph = Model(format, kv_cache_dtype);
      const v1::Program whole = Lower(graph, 0);
      std::vector<RunnerOutput> expected(batches.size());
      std::unique_ptr<Device> large = NewCpuDevice({1, int64_t{1} << 28});
      auto resident = ProgramModelRunner::Create(whole, "", kPositions, large.get());
      ASSERT_TRUE(resident.ok()) << resident.status();
      FillRandomly((*resident)->executor());
      for (size_t i = 0; i < batches.size(); ++i) {
        const absl::Status s = (*resident)->Step(batches[i], &expected[i]);
        ASSERT_TRUE(s.ok()) << s;
      }
      const int64_t parameters = ParameterBytes(whole);
      for (const int percent : {85, 65}) {
        const int64_t budget = parameters * percent / 100;
        const v1::Program program = Lower(graph, budget);
        EXPECT_LE(ParameterBytes(program), budget);
        EXPECT_GE(ParameterBytes(program) + program.host_bytes(), parameters);
        // The device has exactly what this program needs, less than the unstreamed one.
        const int64_t workspace =
            (*resident)->executor().measured_peak_bytes() - whole.arena_bytes();
        const int64_t limit = program.arena_bytes() + workspace;
        EXPECT_LE(limit, whole.arena_bytes() + workspace - (parameters - budget));
        for (const std::string& folder : {std::string(), testing::TempDir()}) {
          std::unique_ptr<Device> small = NewCpuDevice({1, limit, folder});
          EXPECT_EQ(ProgramModelRunner::Create(whole, "", kPositions, small.get()).status().code(),
                    absl::StatusCode::kResourceExhausted);
          auto streaming = ProgramModelRunner::Create(program, "", kPositions, small.get());
          ASSERT_TRUE(streaming.ok()) << streaming.status();
          EXPECT_LE((*streaming)->executor().measured_peak_bytes(), limit);
          FillRandomly((*streaming)->executor());
          for (int round = 0; round < 3; ++round) {
            for (size_t i = 0; i < batches.size(); ++i) {
              RunnerOutput found;
              const absl::Status s = (*streaming)->Step(batches[i], &found);
              ASSERT_TRUE(s.ok()) << s;
              ASSERT_EQ(found.values.size(), expected[i].values.size());
              EXPECT_EQ(std::memcmp(found.values.data(), expected[i].values.data(),
                                    found.values.size() * sizeof(float)),
                        0)
                  << Name(format) << ", " << Name(kv_cache_dtype) << ", " << percent << " %, batch "
                  << i;
            }
          }
        }
      }
    }
  }
}

// Writes the executor's parameters to a folder as they are in memory.
std::string WriteFolder(Executor& executor, const std::string& name) {
  const std::string folder = JoinPath(testing::TempDir(), name);
  std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(files->CreateDirectories(folder).ok());
  SafetensorsWriter writer(*files, JoinPath(folder, "model.safetensors"));
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<int> indices;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    tensors.push_back({executor.tensor_name(i), executor.spec(i).type()});
    indices.push_back(i);
  }
  EXPECT_TRUE(writer.Begin(tensors, {}).ok());
  for (const int i : indices) {
    std::vector<char> bytes(static_cast<size_t>(executor.spec(i).bytes()));
    EXPECT_TRUE(executor.ReadBuffer(i, bytes.data(), executor.spec(i).bytes()).ok());
    EXPECT_TRUE(writer.Append(bytes.data(), executor.spec(i).bytes()).ok());
  }
  EXPECT_TRUE(writer.Finish().ok());
  return folder;
}

// Streamed parameters that the files store as memory does are read from the files: the device below
// has no host memory. A file modified or truncated meanwhile fails the step, naming it, and nothing
// else.
TEST_F(WeightStreamingTest, FileBackedParametersNeedNoHostMemory) {
  const std::vector<RunnerBatch> batches = Batches();
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    SCOPED_TRACE(Name(format));
    const Graph graph = Model(format);
    const v1::Program whole = Lower(graph, 0);
    std::unique_ptr<Device> large = NewCpuDevice({1, int64_t{1} << 28});
    auto resident = ProgramModelRunner::Create(whole, "", kPositions, large.get());
    ASSERT_TRUE(resident.ok()) << resident.status();
    FillRandomly((*resident)->executor());
    const std::string folder =
        WriteFolder((*resident)->executor(), absl::StrCat("stream-", Name(format)));
    const std::string file = JoinPath(folder, "model.safetensors");

    const v1::Program program = Lower(graph, ParameterBytes(whole) * 65 / 100);
    std::unique_ptr<Device> none = NewCpuDevice({1, int64_t{1} << 28, "/no such folder"});
    auto streaming = ProgramModelRunner::Create(program, folder, kPositions, none.get());
    ASSERT_TRUE(streaming.ok()) << streaming.status();
    Executor& executor = (*streaming)->executor();
    int streamed = 0;
    for (int i = 0; i < executor.num_buffers(); ++i) streamed += executor.CanBeFileBacked(i);
    EXPECT_GT(streamed, 8);
    std::vector<RunnerOutput> expected(batches.size()), found(batches.size());
    const auto step = [&](size_t i) { return (*streaming)->Step(batches[i], &found[i]); };
    for (size_t i = 0; i < batches.size(); ++i) {
      ASSERT_TRUE((*resident)->Step(batches[i], &expected[i]).ok());
      const absl::Status s = step(i);
      ASSERT_TRUE(s.ok()) << s;
      EXPECT_EQ(std::memcmp(found[i].values.data(), expected[i].values.data(),
                            expected[i].values.size() * sizeof(float)),
                0);
    }
    // They can be read, also after the file is renamed.
    const std::string moved = JoinPath(folder, "moved");
    std::filesystem::rename(file, moved);
    for (int i = 0; i < executor.num_buffers(); ++i) {
      if (!executor.CanBeFileBacked(i)) continue;
      std::vector<char> bytes(static_cast<size_t>(executor.spec(i).bytes())), kept = bytes;
      ASSERT_TRUE(executor.ReadBuffer(i, bytes.data(), executor.spec(i).bytes()).ok());
      const int of = (*resident)->executor().FindBuffer(executor.buffer(i).name());
      ASSERT_TRUE(
          (*resident)->executor().ReadBuffer(of, kept.data(), executor.spec(i).bytes()).ok());
      EXPECT_EQ(bytes, kept) << executor.buffer(i).name();
      // Writing them would need memory.
      EXPECT_EQ(executor.WriteBuffer(i, bytes.data(), 4).code(),
                absl::StatusCode::kResourceExhausted);
    }
    ASSERT_TRUE(step(0).ok());
    const auto written = std::filesystem::last_write_time(moved);
    std::filesystem::last_write_time(moved, written + std::chrono::seconds(1));
    EXPECT_EQ(step(0).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(step(0).message()).find(file), std::string::npos) << step(0);
    std::filesystem::last_write_time(moved, written);
    ASSERT_TRUE(step(0).ok()) << step(0);
    std::filesystem::resize_file(moved, std::filesystem::file_size(moved) / 2);
    EXPECT_EQ(step(0).code(), absl::StatusCode::kFailedPrecondition);
  }
}

// The files hold f32 and memory bf16: such parameters stay on the host.
TEST_F(WeightStreamingTest, ParametersOfAnotherTypeStayOnTheHost) {
  const v1::Program whole = Lower(Model(), 0);
  std::unique_ptr<Device> large = NewCpuDevice({1, int64_t{1} << 28});
  auto resident = ProgramModelRunner::Create(whole, "", kPositions, large.get());
  ASSERT_TRUE(resident.ok()) << resident.status();
  FillRandomly((*resident)->executor());
  const std::string folder = WriteFolder((*resident)->executor(), "stream-wide");
  const Graph narrow = Model(WeightFormat::kBF16);
  WeightMap weights;
  for (const Value& value : narrow.values()) {
    if (value.kind != ValueKind::kParameter || value.type.dtype != DType::kBF16) continue;
    const Dims& dims = value.type.dims;
    const std::string name = value.name.substr(0, value.name.rfind('.'));
    weights.sources[value.name] = {{{name, dims, false, 0, dims[0]}}};
  }
  const v1::Program program = Lower(narrow, ParameterBytes(Lower(narrow, 0)) * 75 / 100);
  std::unique_ptr<Device> none = NewCpuDevice({1, int64_t{1} << 28, "/no such folder"});
  EXPECT_EQ(
      ProgramModelRunner::Create(program, folder, kPositions, none.get(), weights).status().code(),
      absl::StatusCode::kResourceExhausted);
  auto kept = ProgramModelRunner::Create(program, folder, kPositions, large.get(), weights);
  ASSERT_TRUE(kept.ok()) << kept.status();
  std::filesystem::remove_all(folder);
  RunnerOutput logits;
  EXPECT_TRUE((*kept)->Step(Batches()[0], &logits).ok());
}

// Checks the program's structure: an operator's weights start to arrive before the preceding
// operator with weights runs, and only their own operator waits for them.
TEST_F(WeightStreamingTest, CopiesOverlapWithComputation) {
  const Graph graph = Model();
  const v1::Program program = Lower(graph, ParameterBytes(Lower(graph, 0)) * 65 / 100);
  auto checked = CheckProgram(program);
  ASSERT_TRUE(checked.ok()) << checked.status();
  std::unique_ptr<Device> device = NewCpuDevice({1, int64_t{1} << 28});
  ProgramMemory memory;
  ASSERT_TRUE(memory.Place(program, *checked, device.get(), nullptr).ok());
  const SwapDependencies waits = FindSwapDependencies(program, memory);
  int copies = 0, beside = 0;
  for (int i = 0; i < program.instructions_size(); ++i) {
    if (!program.instructions(i).has_swap_in()) continue;
    ++copies;
    const int buffer = program.instructions(i).swap_in().buffer();
    bool matrices_between = false;
    for (int j = i + 1; j < program.instructions_size(); ++j) {
      bool uses = false, streamed = false;
      if (program.instructions(j).has_compute()) {
        for (const BufferAccess& access : AccessesOf(program.instructions(j))) {
          uses |= access.buffer == buffer;
          streamed |= checked->streamed_slot[access.buffer] >= 0;
        }
      }
      const std::vector<int>& before = waits.before[j];
      const bool waited = std::find(before.begin(), before.end(), i) != before.end();
      EXPECT_EQ(waited, uses) << "instruction " << j << " and the copy of instruction " << i;
      if (uses || waited) break;
      matrices_between |= streamed;
    }
    beside += matrices_between;
  }
  EXPECT_GT(copies, 8);
  EXPECT_EQ(beside, copies - 1);  // the first one overlaps with nothing
}

TEST_F(WeightStreamingTest, TooSmallLimitIsRefusedWithASufficientOne) {
  const Graph graph = Model();
  const absl::Status refused =
      LowerServing(registry_, graph, {.resident_weight_bytes = 4096}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(refused.message());
  EXPECT_EQ(text.rfind("resident_weight_bytes: ", 0), 0u) << text;
  const int64_t least = std::stoll(text.substr(text.rfind(' ') + 1));
  EXPECT_LE(ParameterBytes(Lower(graph, least)), least);
}

// Programs come from the network.
TEST_F(WeightStreamingTest, ProgramsThatMisuseStreamedParametersAreRefused) {
  const Graph graph = Model();
  const v1::Program good = Lower(graph, ParameterBytes(Lower(graph, 0)) * 65 / 100);
  ASSERT_TRUE(CheckProgram(good).ok());
  std::vector<int> swaps;
  for (int i = 0; i < good.instructions_size(); ++i) {
    if (good.instructions(i).has_swap_in()) swaps.push_back(i);
  }
  const auto refuse = [&](auto change, const std::string& what) {
    v1::Program program = good;
    change(program);
    const absl::Status s = CheckProgram(program).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_NE(std::string(s.message()).find(what), std::string::npos) << s;
  };
  const auto swap = [&](v1::Program& p, size_t i) {
    return p.mutable_instructions(swaps[i])->mutable_swap_in();
  };
  refuse([&](v1::Program& p) { swap(p, 1)->set_host_slot(swap(p, 0)->host_slot()); },
         "is that of parameter");
  refuse([&](v1::Program& p) { swap(p, 1)->set_buffer(swap(p, 0)->buffer()); }, "");
  refuse([&](v1::Program& p) { swap(p, 1)->set_host_slot(-1); }, "");
  refuse([&](v1::Program& p) { swap(p, 1)->set_host_slot(1 << 30); }, "");
  refuse(
      [&](v1::Program& p) {
        const int buffer = swap(p, 0)->buffer();
        p.add_instructions()->mutable_fill()->set_buffer(buffer);
      },
      "which lies on the host and is only read");
  refuse(
      [&](v1::Program& p) {
        // The last copy comes after everything else.
        v1::Instruction last = p.instructions(swaps.back());
        p.mutable_instructions()->DeleteSubrange(swaps.back(), 1);
        *p.add_instructions() = last;
      },
      "before its swap_in");
  refuse(
      [&](v1::Program& p) {
        // Another, resident parameter is in the double buffer.
        for (v1::Buffer& buffer : *p.mutable_buffers()) {
          if (buffer.name() == "model.norm.weight") {
            buffer.set_offset_bytes(p.buffers(swap(p, 0)->buffer()).offset_bytes());
          }
        }
      },
      "share memory");
  refuse([&](v1::Program& p) { p.mutable_optimizer()->set_name("sgd"); }, "trains");
}

}  // namespace
}  // namespace espalier
